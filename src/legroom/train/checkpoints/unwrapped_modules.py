"""Reads and loads the state of a model without the name prefixes of DataParallel, DistributedDataParallel and
torch.compile."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from legroom.train.checkpoints.key_check import Shapes, check_names, loadable_names, plain_name
from legroom.train.checkpoints.plain_state import is_sharded


def unwrapped(module: nn.Module) -> nn.Module:
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def module_state(module: nn.Module) -> dict[str, Any]:
    """Return `state_dict()` without the prefixes of wrappers in the names, including the extra state from
    `get_extra_state`."""
    return {plain_name(name): value for name, value in unwrapped(module).state_dict().items()}


def check_module(saved: Mapping[str, Any], expected: Shapes, source: str) -> None:
    check_names(shapes(saved), expected, source)


def load_module(module: nn.Module, saved: Mapping[str, Any], *, strict: bool = True) -> list[str]:
    """Load a state into the model, and return the names of the tensors that were not loaded. Each tensor keeps its
    device and its sharding.
    """
    inner = unwrapped(module)
    current = inner.state_dict()
    names = loadable_names(shapes(saved), shapes(module_state(module))) if not strict else None
    loaded = {
        name: shard_like(saved[plain_name(name)], value)
        for name, value in current.items()
        if names is None or plain_name(name) in names
    }
    inner.load_state_dict(loaded, strict=strict)
    return [plain_name(name) for name in current if name not in loaded]


def shard_like(saved: Any, current: Any) -> Any:
    """If `current` is sharded, shard `saved` in the same way. Every rank must have the unsharded tensor `saved`."""
    if not (isinstance(current, torch.Tensor) and is_sharded(current)) or not isinstance(saved, torch.Tensor):
        return saved
    from legroom.train.checkpoints.sharded import shard

    return shard(saved, cast(Any, current))


def shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(value.shape) if isinstance(value, torch.Tensor) else () for name, value in state.items()
    }
