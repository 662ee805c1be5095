"""Operations of the script's own (`torch.library.custom_op(..., device_types="cuda")`): their CUDA kernel serves here.

torch chooses a kernel by where a tensor really is, which is the CPU. A kernel in Python runs there as well; one that is
written in Triton or C++ fails with its own error.
"""

import functools
from collections.abc import Iterable
from typing import Any

from legroom.observe.virtual.patching import Replacement, optional_module, table


def replacements() -> Iterable[Replacement]:
    """Registering a kernel for CUDA registers it for the CPU too. Without torch's private class, only for CUDA."""
    kind = getattr(optional_module("torch._library.custom_ops"), "CustomOpDef", None)
    plain = getattr(kind, "register_kernel", None)
    if plain is None:
        return []

    @functools.wraps(plain)
    def register_kernel(self: Any, device_types: Any, *arguments: Any, **options: Any) -> Any:
        types = [device_types] if isinstance(device_types, str) else list(device_types or ())
        if "cuda" in types and "cpu" not in types:
            types.append("cpu")
        return plain(self, types or device_types, *arguments, **options)

    return table(kind, {"register_kernel": register_kernel})
