"""A model's state under the names its author gave, whatever it is wrapped in: DataParallel, DistributedDataParallel,
torch.compile.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from legroom.train.checkpoints.key_check import Shapes, check_names, fitting, plain_name
from legroom.train.checkpoints.plain_state import is_sharded


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside its wrappers."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def module_state(module: nn.Module) -> dict[str, Any]:
    """`state_dict()` by plain names: tensors, and what modules add by `get_extra_state`."""
    return {plain_name(name): value for name, value in unwrapped(module).state_dict().items()}


def check_module(saved: Mapping[str, Any], wanted: Shapes, source: str) -> None:
    """Refuse a state that is another model's. `wanted`: what the model has, on all ranks together."""
    check_names(shapes(saved), wanted, source)


def load_module(module: nn.Module, saved: Mapping[str, Any], *, strict: bool = True) -> list[str]:
    """Put a state into the model, on the devices and over the ranks where its tensors are. The names that were left out."""
    inner = unwrapped(module)
    now = inner.state_dict()
    names = fitting(shapes(saved), shapes(module_state(module))) if not strict else None
    ready = {
        name: spread_like(saved[plain_name(name)], value)
        for name, value in now.items()
        if names is None or plain_name(name) in names
    }
    inner.load_state_dict(ready, strict=strict)
    return [plain_name(name) for name in now if name not in ready]


def spread_like(saved: Any, now: Any) -> Any:
    """A whole tensor, which every rank has read, spread over the ranks as another one is."""
    if not (isinstance(now, torch.Tensor) and is_sharded(now)) or not isinstance(saved, torch.Tensor):
        return saved
    from legroom.train.checkpoints.sharded import spread

    return spread(saved, cast(Any, now))


def shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(value.shape) if isinstance(value, torch.Tensor) else () for name, value in state.items()
    }
