"""Optimizers and gradient clipping by whole lists of tensors (`foreach`): CUDA's default, not the CPU's.

Such an update makes temporaries as large as all parameters together, often a step's peak. Whether it is the default
is decided by the device of the parameters (`_default_to_fused_or_foreach`) and by their type, which for a stand-in
may be a class of torch's own (`FakeTensor`).
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from torch.utils import _foreach_utils


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Optimizers and `clip_grad_norm_` treat CPU tensors as they would CUDA's.

    Without torch's private `_get_foreach_kernels_supported_devices`, optimizers are traced as loops and their
    temporaries are missed.
    """
    name = "_get_foreach_kernels_supported_devices"
    ask: Any = getattr(_foreach_utils, name, None)
    if ask is None:
        yield
        return

    def with_cpu() -> list[str]:
        return [*ask(), "cpu"]

    names = ("torch.utils._foreach_utils", "torch.optim.optimizer", "torch.optim.swa_utils")
    owners: list[Any] = [importlib.import_module(module) for module in names]
    owners = [module for module in owners if getattr(module, name, None) is ask]
    lists: list[list[Any]] = [getattr(module, "_foreach_supported_types", []) for module in owners]
    stand_in = _stand_in_type()
    lists = [types for types in lists if stand_in is not None and stand_in not in types]
    for module in owners:
        setattr(module, name, with_cpu)
    for types in lists:
        types.append(stand_in)
    try:
        yield
    finally:
        for module in owners:
            setattr(module, name, ask)
        for types in lists:
            types.remove(stand_in)


def _stand_in_type() -> Any:
    try:
        from torch._subclasses.fake_tensor import FakeTensor
    except ImportError:
        return None
    return FakeTensor
