"""What was in memory at one moment of a run, and what that adds up to.

Sums are of `block_bytes`, what the allocator charged, so that they agree with what PyTorch reports as allocated.
Every storage carries its final category: what it turned out to be, not what it was taken for at its birth.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from legroom.memory.events import Alloc, Category, Frame, Phase

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in a run, and how much memory there was."""

    index: int
    """Of the event after which it was so; -1 for before the first."""
    time: float
    step: int
    phase: Phase
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one line of code holds in one category."""

    file: str | None
    """None, like `line` and `function`, where no line of the user's is known."""
    line: int | None
    function: str | None
    bytes: int
    category: Category
    module: str
    """The one that most of the bytes belong to; "" for none."""
    count: int
    """How many storages that is."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What a device held at one moment. Much may be alive, so what is asked for again and again is summed once."""

    device: int
    index: int
    """Of the event after which it was so; -1 for before the first."""
    time: float
    live: list[Alloc]
    """In the order of their birth, with their final categories."""
    reserved: int

    @cached_property
    def allocated(self) -> int:
        return sum(alloc.block_bytes for alloc in self.live)

    @property
    def requested(self) -> int:
        return sum(alloc.bytes for alloc in self.live)

    def by_category(self) -> dict[Category, int]:
        """Every category is there, also where it is 0. This and the others: the largest first."""
        return dict(self._by_category)

    @cached_property
    def _by_category(self) -> dict[Category, int]:
        return _sums(self.live, lambda alloc: alloc.category, at_least=Category)

    def by_line(self) -> dict[Frame | None, int]:
        """None where no line of the user's is known."""
        spoken_for: dict[tuple[str, int], Frame] = {}

        def line(alloc: Alloc) -> Frame | None:
            # A line may run as several functions (a comprehension is one): the first stands for all.
            frame = alloc.frame
            return frame and spoken_for.setdefault((frame.file, frame.line), frame)

        return _sums(self.live, line)

    def by_module(self) -> dict[str, int]:
        return _sums(self.live, lambda alloc: alloc.module)

    def top(self, number: int = 10) -> list[Holding]:
        """The lines that hold the most, each apart by category."""
        groups: dict[tuple[str | None, int | None, Category], list[Alloc]] = {}
        for alloc in self.live:
            file, line, _ = alloc.frame or (None, None, None)
            groups.setdefault((file, line, alloc.category), []).append(alloc)
        rows = [
            Holding(
                file=file,
                line=line,
                function=allocs[0].frame and allocs[0].frame.function,
                bytes=sum(alloc.block_bytes for alloc in allocs),
                category=category,
                module=next(iter(_sums(allocs, lambda alloc: alloc.module))),
                count=len(allocs),
            )
            for (file, line, category), allocs in groups.items()
        ]
        return sorted(rows, key=lambda row: -row.bytes)[:number]

    def coverage(self) -> float:
        """The share of the bytes that a line of the user's is known for; 1 where there are none."""
        total = self.allocated
        known = sum(alloc.block_bytes for alloc in self.live if alloc.frame is not None)
        return known / total if total else 1.0


def _sums(
    allocs: Iterable[Alloc], key: Callable[[Alloc], _Key], at_least: Iterable[_Key] = ()
) -> dict[_Key, int]:
    sums = dict.fromkeys(at_least, 0)
    for alloc in allocs:
        group = key(alloc)
        sums[group] = sums.get(group, 0) + alloc.block_bytes
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
