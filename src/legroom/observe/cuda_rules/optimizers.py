"""Optimizers and gradient clipping by whole lists of tensors (`foreach`): CUDA's default, not the CPU's.

Such an update makes temporaries as large as all parameters together, often a step's peak. Whether it is the default
is decided by the device of the parameters (`_default_to_fused_or_foreach`) and by their type, which for a stand-in
may be a class of torch's own (`FakeTensor`).
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from torch.utils import _foreach_utils


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Optimizers, `clip_grad_norm_` and averaged models treat CPU tensors as they would CUDA's.

    What a virtual GPU puts in their way, to compute bit for bit as the CPU does, is set aside meanwhile: stand-ins
    compute nothing. Without torch's private `_get_foreach_kernels_supported_devices`, optimizers are traced as loops and
    their temporaries are missed.
    """
    optimizer: Any = importlib.import_module("torch.optim.optimizer")
    ask: Any = getattr(_foreach_utils, _DEVICES, None)
    decide: Any = getattr(optimizer, _DECISION, None)
    if ask is None:
        yield
        return

    def with_cpu() -> list[str]:
        return [*ask(), "cpu"]

    modules = [module for name, module in list(sys.modules.items()) if name.startswith("torch.optim")]
    before = [
        (module, name, getattr(module, name))
        for module in (_foreach_utils, *modules)
        for name in (_DEVICES, _DECISION)
        if hasattr(module, name)
    ]
    stand_in = _stand_in_type()
    lists: list[list[Any]] = [
        getattr(module, "_foreach_supported_types", []) for module in (_foreach_utils, optimizer)
    ]
    lists = [types for types in lists if stand_in is not None and stand_in not in types]
    for module, name, _ in before:
        setattr(module, name, with_cpu if name == _DEVICES else decide)
    for types in lists:
        types.append(stand_in)
    try:
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
        for types in lists:
            types.remove(stand_in)


_DEVICES = "_get_foreach_kernels_supported_devices"
_DECISION = "_default_to_fused_or_foreach"


def _stand_in_type() -> Any:
    try:
        from torch._subclasses.fake_tensor import FakeTensor
    except ImportError:
        return None
    return FakeTensor
