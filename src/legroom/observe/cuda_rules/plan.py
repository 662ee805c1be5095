"""The memory plan of an operation: the memory that it allocates and frees on CUDA, step by step.

The order of the requests matters as much as their sizes. The caching allocator serves each request from the blocks that
are free at that moment. The free blocks after an operation therefore depend on whether it allocates scratch memory
before or after its result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from legroom.gpus.catalog import GpuSpec


class OutputAlloc(NamedTuple):
    """Allocate result number `index` of the operation, unless the result shares the memory of another tensor."""

    index: int  # type: ignore[assignment]  # (overrides a method of tuple)
    bytes: int | None = None
    """The number of bytes to allocate, or None for the size of the tensor's elements."""


class ScratchAlloc(NamedTuple):
    """Allocate scratch memory. The memory is freed by a `ScratchFree` with the same name, or when the operation ends.

    At the end of the operation, scratch memory is freed in reverse order, because C++ destroys the variables of a
    function in this order.
    """

    name: str
    bytes: int
    alternatives: tuple[int, ...] = ()
    """Other possible sizes if `bytes` is a guess, most likely first."""
    optional: bool = False
    """True if the operation uses a kernel without scratch memory when this allocation fails."""


class ScratchFree(NamedTuple):
    name: str


class PersistentAlloc(NamedTuple):
    """Memory that a library allocates once per `name` and never frees."""

    name: str
    bytes: int


class OutputCopy(NamedTuple):
    """Copy result number `index` of the operation: allocate new memory, then free the old memory. On CUDA, the result
    is a copy, but in the trace, it is a view.
    """

    index: int  # type: ignore[assignment]  # (overrides a method of tuple)


MemoryStep = OutputAlloc | ScratchAlloc | ScratchFree | PersistentAlloc | OutputCopy


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The allocations and frees of an operation, in order. If no step allocates a result, the result is allocated
    before the first step.
    """

    steps: Sequence[MemoryStep] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class OpCall:
    """One operation of the trace."""

    func: Any
    arguments: dict[str, Any]
    """The arguments by their names in the operation's schema, including default values."""
    result: Any
    gpu: GpuSpec
    in_backward: bool
    """True if the autograd engine runs the operation. The engine has its own thread and its own library handles."""


Rule = Callable[[OpCall], MemoryPlan | None]


def scratch(*sizes: int) -> MemoryPlan | None:
    steps = [ScratchAlloc(str(index), size) for index, size in enumerate(sizes) if size > 0]
    return MemoryPlan(steps) if steps else None


def numbered(name: str, sizes: Sequence[int]) -> list[ScratchAlloc]:
    return [ScratchAlloc(f"{name} {index}", size) for index, size in enumerate(sizes) if size > 0]


def size_of(tensor: Any) -> int:
    """Return the size of the tensor's elements in bytes, without gaps."""
    count: int = tensor.numel() * tensor.element_size()
    return count
