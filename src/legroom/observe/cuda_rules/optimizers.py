"""Optimizers and gradient clipping with `foreach`, which is the default on CUDA but not on the CPU.

An update with `foreach` allocates temporary tensors as large as all parameters together, often at the peak of a step.
Whether `foreach` is the default depends on the device of the parameters (`_default_to_fused_or_foreach`) and on their
class. In a trace, the class is `FakeTensor`.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from torch.utils import _foreach_utils


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Make optimizers, `clip_grad_norm_` and averaged models treat CPU tensors like CUDA tensors.

    A virtual GPU disables `foreach` for some optimizers, so that results are bit-for-bit equal to the results on the
    CPU. Fake tensors compute nothing, so `foreach` is enabled again in a trace. Without torch's private
    `_get_foreach_kernels_supported_devices`, optimizers are traced as loops and their temporaries are not counted.
    """
    optimizer: Any = importlib.import_module("torch.optim.optimizer")
    supported_devices: Any = getattr(_foreach_utils, _DEVICES, None)
    default: Any = getattr(optimizer, _DECISION, None)
    if supported_devices is None:
        yield
        return

    def with_cpu() -> list[str]:
        return [*supported_devices(), "cpu"]

    modules = [module for name, module in list(sys.modules.items()) if name.startswith("torch.optim")]
    before = [
        (module, name, getattr(module, name))
        for module in (_foreach_utils, *modules)
        for name in (_DEVICES, _DECISION)
        if hasattr(module, name)
    ]
    fake_tensor = _fake_tensor_type()
    lists: list[list[Any]] = [
        getattr(module, "_foreach_supported_types", []) for module in (_foreach_utils, optimizer)
    ]
    lists = [types for types in lists if fake_tensor is not None and fake_tensor not in types]
    for module, name, _ in before:
        setattr(module, name, with_cpu if name == _DEVICES else default)
    for types in lists:
        types.append(fake_tensor)
    try:
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
        for types in lists:
            types.remove(fake_tensor)


_DEVICES = "_get_foreach_kernels_supported_devices"
_DECISION = "_default_to_fused_or_foreach"


def _fake_tensor_type() -> Any:
    try:
        from torch._subclasses.fake_tensor import FakeTensor
    except ImportError:
        return None
    return FakeTensor
