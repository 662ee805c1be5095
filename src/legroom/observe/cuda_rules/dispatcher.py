"""Makes torch's dispatcher take the code paths of CUDA for tensors on a virtual device.

Some operations are composed of other operations, and the composition depends on the device. Examples are attention,
dropout, recurrent layers, and all operations under autocast. Tensors on a virtual device are CPU tensors, so these
operations would follow the CPU's implementation and save different tensors for the backward pass than on CUDA. While
`Overrides` is active, these operations have kernels that follow CUDA's implementation. Closing `Overrides` restores the
original kernels.
"""

import inspect
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

COMPOSITE = ("AutogradCPU", "CPU")
"""The dispatch keys for the kernel of a composite operation, with and without gradients."""

MAY_REPLACE = (
    {"allow_override": True}
    if "allow_override" in inspect.signature(torch.library.Library.impl).parameters
    else {}
)
"""The option that allows replacing a kernel written in Python. Older versions of torch do not have this option."""


class Overrides:
    def __init__(self, is_on_device: Callable[[torch.Tensor], bool]) -> None:
        self.is_on_device = is_on_device
        library: Any = torch.library.Library
        self._library = library("aten", "IMPL")
        self._unregistered: set[str] = set()

    def put(self, name: str, kernel: Callable[..., Any], *keys: str) -> None:
        """Make the operation `name` (such as `dropout` or `softmax.int`) run `kernel`. Do nothing if torch lacks this
        operation.
        """
        if overload(name) is None:
            return
        for key in keys:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
                self._unregistered |= _allow_replacement(f"aten/{name}/{key}")
                self._library.impl(name, kernel, key, **MAY_REPLACE)

    def composite(self, name: str, replacement: Callable[..., Any]) -> None:
        """Make the operation `name` run `replacement(original, *args, **kwargs)` if its first argument is on a virtual
        device.
        """
        original = overload(name)
        if original is None:
            return

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if isinstance(args[0], torch.Tensor) and self.is_on_device(args[0]):
                return replacement(original, *args, **kwargs)
            return original.decompose(*args, **kwargs)

        self.put(name, kernel, *COMPOSITE)

    def close(self) -> None:
        self._library._destroy()
        known: set[str] = getattr(torch.library, "_impls", set())
        known.update(self._unregistered)

    def __enter__(self) -> "Overrides":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def overload(name: str) -> Any:
    """Return the aten operation `name` or `name.overload`, or None if this version of torch does not have it."""
    base, _, variant = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, variant or "default", None)


def _allow_replacement(kernel: str) -> set[str]:
    """Remove `kernel` from torch's list of kernels written in Python, and return the removed entries. Older versions of
    torch refuse to replace kernels in this list. `close` restores the entries.
    """
    if MAY_REPLACE:
        return set()
    listed: set[str] = getattr(torch.library, "_impls", set())
    removed = listed & {kernel}
    listed -= removed
    return removed
