"""Intercepts the collectives of a training step, so that a failed rank can issue them with zeros.

    with intercept_collectives(listener):   # every collective that Python code issues goes through listener.issue(...)
        step()
    repeat_with_zeros(call, ...)            # for a rank that failed while other ranks wait for it

FSDP2, SyncBatchNorm and Guard's gradient reduction call `torch.distributed.<name>` from Python. Therefore, these
public names are replaced while a step runs. Two kinds of collectives are not intercepted. Collectives that are issued
in C++ are not visible to Python: those of DDP's own reducer, which Guard disables, and DTensor's functional
collectives. Functions that the user imported by name from torch.distributed cannot be replaced.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from legroom.train.ranks.waiting import waiting

NAMES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "scatter",
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The properties of a tensor that are the same on all ranks. The contents and the device index are omitted,
    because they differ between ranks."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_cpu: bool


@dataclass(frozen=True, slots=True)
class GroupIndex:
    """The index of a process group in the list of the model's groups. The name of a process group differs between
    ranks, but the index is the same on all ranks.
    """

    index: int


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """The properties of one collective that are the same on all ranks."""

    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]


class Listener(Protocol):
    def issue(
        self, name: str, collective: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any: ...


@contextmanager
def intercept_collectives(listener: Listener) -> Iterator[None]:
    """Pass every collective that Python code issues in the block, in any thread, to `listener.issue`."""
    originals = {name: getattr(dist, name) for name in NAMES if hasattr(dist, name)}
    for name, collective in originals.items():
        setattr(dist, name, _intercepted(listener, name, collective))
    try:
        yield
    finally:
        for name, collective in originals.items():
            setattr(dist, name, collective)


def describe(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any], groups: Sequence[Any]
) -> CollectiveCall | None:
    """Return a description of the collective, or None if its process group is not in `groups`."""
    try:
        return CollectiveCall(
            name,
            tuple(_without_contents(argument, groups) for argument in arguments),
            tuple((option, _without_contents(argument, groups)) for option, argument in options.items()),
        )
    except _UnknownGroup:
        return None


def repeat_with_zeros(call: CollectiveCall, groups: Sequence[Any], device: torch.device) -> None:
    with waiting("a method of Guard"):
        result = getattr(dist, call.name)(
            *(_with_zeros(argument, groups, device) for argument in call.arguments),
            **{name: _with_zeros(argument, groups, device) for name, argument in call.options},
        )
        if isinstance(result, dist.Work):
            result.wait()


class _UnknownGroup(Exception):  # noqa: N818  (never leaves this file)
    pass


def _intercepted(listener: Listener, name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
    def issue(*arguments: Any, **options: Any) -> Any:
        return listener.issue(name, collective, arguments, options)

    return issue


def _without_contents(value: Any, groups: Sequence[Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorSpec(tuple(value.shape), value.dtype, value.device.type == "cpu")
    if isinstance(value, dist.ProcessGroup):
        for index, group in enumerate(groups):
            if group is value or group.group_name == value.group_name:  # one group can have several objects
                return GroupIndex(index)
        raise _UnknownGroup
    if isinstance(value, list | tuple):
        return tuple(_without_contents(item, groups) for item in value)
    return value


def _with_zeros(value: Any, groups: Sequence[Any], device: torch.device) -> Any:
    if isinstance(value, TensorSpec):
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu" if value.on_cpu else device)
    if isinstance(value, GroupIndex):
        return groups[value.index]
    if isinstance(value, tuple):
        return [_with_zeros(item, groups, device) for item in value]
    return value
