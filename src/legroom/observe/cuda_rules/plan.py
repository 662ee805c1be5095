"""The vocabulary of the rules: what an operation does to memory on CUDA, step by step.

The order matters as much as the sizes: the caching allocator answers each request from what is free at that moment,
so an operation that takes scratch before its result leaves other holes than one that takes it after.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from legroom.gpus.catalog import GpuSpec


class Output(NamedTuple):
    """The operation's `index`-th result is allocated now (if it is new memory)."""

    index: int  # type: ignore[assignment]  # (tuples have a method of that name, which nobody needs here)
    bytes: int | None = None
    """Where CUDA gives it more memory than its elements need."""


class Take(NamedTuple):
    """Scratch is allocated now; given back by a `Give` of the same name, or when the operation ends.

    What is left at the end is given back in the reverse order of taking, as C++ does with what a function holds.
    """

    name: str
    bytes: int
    others: tuple[int, ...] = ()
    """Where `bytes` is a guess: what it may be instead, likelier sizes first."""
    spare: bool = False
    """Whether the operation does without it where there is no room: another kernel is taken, one that needs none."""


class Give(NamedTuple):
    """Scratch is given back now."""

    name: str


class Keep(NamedTuple):
    """Memory that a library takes the first time and keeps: only the first `Keep` of a name allocates."""

    name: str
    bytes: int


class Move(NamedTuple):
    """The operation's `index`-th result is a copy on CUDA, where here it shares its input's memory: the new is taken, then the old given back."""

    index: int  # type: ignore[assignment]


Step = Output | Take | Give | Keep | Move


@dataclass(frozen=True, slots=True)
class Plan:
    """What one operation does, in order. Results that no step names are allocated before the first step."""

    steps: Sequence[Step] = ()
    notes: tuple[str, ...] = ()
    """Remarks on the estimate, because of this operation."""


@dataclass(slots=True)
class Call:
    """One operation that has run on stand-in tensors, seen as CUDA would run it."""

    func: Any
    arguments: dict[str, Any]
    """By the names of the operation's schema; defaults filled in."""
    result: Any
    gpu: GpuSpec
    in_backward: bool
    """Whether the autograd engine runs it: there it is another thread, with its own library handles."""


Rule = Callable[[Call], Plan | None]


def scratch(*sizes: int) -> Plan | None:
    """The commonest plan: results first, then scratch of these sizes, all given back at the end."""
    steps = [Take(str(index), size) for index, size in enumerate(sizes) if size > 0]
    return Plan(steps) if steps else None


def numbered(name: str, sizes: Sequence[int]) -> list[Take]:
    """Scratch of these sizes, numbered; none of what is empty."""
    return [Take(f"{name} {index}", size) for index, size in enumerate(sizes) if size > 0]


def size_of(tensor: Any) -> int:
    """Bytes of a tensor's elements, densely packed."""
    count: int = tensor.numel() * tensor.element_size()
    return count
