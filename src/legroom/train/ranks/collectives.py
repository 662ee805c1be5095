"""The collectives that a training step makes, seen as they are made, and made again with nothing in them.

    with seen(listener):          # every collective that Python code asks of torch.distributed passes listener.meet(...)
        step()
    repeat(call, ...)             # the same collective with zeros: for a rank that has failed but is waited for

FSDP2, SyncBatchNorm and our own gradient reduction all call `torch.distributed.<name>` from Python, so the public names
are replaced while a step runs. What is not seen: collectives made in C++ (DDP's own reducer, which Guard leaves idle,
and functional collectives of DTensor) and names that were imported from torch.distributed one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

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
"""Some exist in some releases of torch only."""


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor, without its contents and without where it is: ranks have devices of their own."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A process group by its place in the list of the model's groups: its name differs from rank to rank."""

    place: int


@dataclass(frozen=True, slots=True)
class Call:
    """One collective: what must be the same on every rank that takes part."""

    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]


class Listener(Protocol):
    """Who is told of each collective."""

    def meet(
        self, name: str, make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Make the collective, and return what it returned."""


@contextmanager
def seen(listener: Listener) -> Iterator[None]:
    """Every collective made by Python code meanwhile, in any thread, passes `listener.meet`."""
    plain = {name: getattr(dist, name) for name in NAMES if hasattr(dist, name)}
    for name, make in plain.items():
        setattr(dist, name, _passing(listener, name, make))
    try:
        yield
    finally:
        for name, make in plain.items():
            setattr(dist, name, make)


def describe(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any], groups: Sequence[Any]
) -> Call | None:
    """The call without its contents; None if it is made in a group that is not of `groups`."""
    try:
        return Call(
            name,
            tuple(_without_contents(argument, groups) for argument in arguments),
            tuple((word, _without_contents(argument, groups)) for word, argument in options.items()),
        )
    except _Foreign:
        return None


def repeat(call: Call, groups: Sequence[Any], device: torch.device) -> None:
    """Make the collective with zeros, and wait for it."""
    result = getattr(dist, call.name)(
        *(_with_zeros(argument, groups, device) for argument in call.arguments),
        **{word: _with_zeros(argument, groups, device) for word, argument in call.options},
    )
    if isinstance(result, dist.Work):
        result.wait()


class _Foreign(Exception):  # noqa: N818  (never leaves this file)
    """A group that is none of the model's."""


def _passing(listener: Listener, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    def met(*arguments: Any, **options: Any) -> Any:
        return listener.meet(name, make, arguments, options)

    return met


def _without_contents(value: Any, groups: Sequence[Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return Like(tuple(value.shape), value.dtype, value.device.type == "cpu")
    if isinstance(value, dist.ProcessGroup):
        for place, group in enumerate(groups):
            if group is value or group.group_name == value.group_name:  # one group can have several objects
                return Group(place)
        raise _Foreign
    if isinstance(value, list | tuple):
        return tuple(_without_contents(item, groups) for item in value)
    return value


def _with_zeros(value: Any, groups: Sequence[Any], device: torch.device) -> Any:
    if isinstance(value, Like):
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu" if value.on_host else device)
    if isinstance(value, Group):
        return groups[value.place]
    if isinstance(value, tuple):
        return [_with_zeros(item, groups, device) for item in value]
    return value
