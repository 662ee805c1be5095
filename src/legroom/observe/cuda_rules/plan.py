"""The memory plan of an operation: the memory that it allocates and frees on CUDA, step by step.

The order of the requests matters as much as their sizes. The caching allocator serves each request from the blocks that
are free at that moment. Therefore the free blocks after an operation depend on whether it allocates scratch memory
before or after its result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from legroom.gpus.catalog import GpuSpec


class OutputAlloc(NamedTuple):
    """Allocate the operation's `index`-th result, unless the result shares the memory of another tensor."""

    index: int  # type: ignore[assignment]  # (overrides a method of tuple)
    bytes: int | None = None
    """The number of bytes to allocate, or None for the size of the tensor's elements."""


class ScratchAlloc(NamedTuple):
    """Allocate scratch memory. The memory is freed by a `ScratchFree` with the same name, or else at the end of the
    operation.

    At the end of the operation, scratch memory is freed in reverse order, because C++ destroys the variables of a
    function in this order.
    """

    name: str
    bytes: int
    alternatives: tuple[int, ...] = ()
    """Other possible sizes, if `bytes` is a guess. The sizes are sorted, with the most likely size first."""
    optional: bool = False
    """Whether the operation falls back to a kernel without scratch memory if this allocation fails."""


class ScratchFree(NamedTuple):
    """Free scratch memory."""

    name: str


class PersistentAlloc(NamedTuple):
    """Memory that a library allocates once and never frees. Only the first allocation with a given name has an
    effect."""

    name: str
    bytes: int


class OutputCopy(NamedTuple):
    """On CUDA, the operation's `index`-th result is a copy, but in the trace, the result is a view. Allocate the new
    memory, then free the old memory.
    """

    index: int  # type: ignore[assignment]  # (overrides a method of tuple)


MemoryStep = OutputAlloc | ScratchAlloc | ScratchFree | PersistentAlloc | OutputCopy


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The allocations and frees of one operation, as a list of steps. If no step allocates a result, the
    result is allocated before the first step."""

    steps: Sequence[MemoryStep] = ()
    notes: tuple[str, ...] = ()
    """Remarks for the report of the estimate."""


@dataclass(slots=True)
class OpCall:
    """One operation of the trace."""

    func: Any
    arguments: dict[str, Any]
    """Maps the parameter names in the operation's schema to the arguments, including default values."""
    result: Any
    gpu: GpuSpec
    in_backward: bool
    """Whether the autograd engine runs the operation. The engine has its own thread and its own library handles."""


Rule = Callable[[OpCall], MemoryPlan | None]


def scratch(*sizes: int) -> MemoryPlan | None:
    """Return a plan that allocates the results, then scratch memory of these sizes until the end of the operation."""
    steps = [ScratchAlloc(str(index), size) for index, size in enumerate(sizes) if size > 0]
    return MemoryPlan(steps) if steps else None


def numbered(name: str, sizes: Sequence[int]) -> list[ScratchAlloc]:
    """Return a scratch allocation for each of these sizes, with numbered names. Sizes of 0 are skipped."""
    return [ScratchAlloc(f"{name} {index}", size) for index, size in enumerate(sizes) if size > 0]


def size_of(tensor: Any) -> int:
    """Return the size in bytes of a tensor's elements, without gaps."""
    count: int = tensor.numel() * tensor.element_size()
    return count
