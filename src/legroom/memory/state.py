"""The memory of a device at one point in a run, summed by category, line or module.

Sums use `block_bytes`, so they agree with the allocated memory that PyTorch reports. Every storage has its final
category, which may differ from its category at the time of allocation.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in a run, with the memory in use."""

    index: int
    """The index of the last event before this point, or -1 before the first event."""
    time: float
    step: int
    phase: Phase
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The live memory of one category that one line allocated."""

    file: str | None
    """The file, or None if the line is not known. If `file` is None, `line` and `function` are None too."""
    line: int | None
    function: str | None
    bytes: int
    category: Category
    module: str
    count: int


@dataclass(frozen=True, kw_only=True)
class State:
    """The live storages of a device at one point in a run."""

    device: int
    index: int
    """See `Moment.index`."""
    time: float
    live: list[Alloc]
    reserved: int

    @cached_property
    def allocated(self) -> int:
        return sum(alloc.block_bytes for alloc in self.live)

    @property
    def requested(self) -> int:
        return sum(alloc.bytes for alloc in self.live)

    def by_category(self) -> dict[Category, int]:
        """Return the bytes of every category, including categories with 0 bytes, largest first."""
        return dict(self._by_category)

    @cached_property
    def _by_category(self) -> dict[Category, int]:
        return _sums(self.live, lambda alloc: alloc.category, at_least=Category)

    def by_line(self) -> dict[Frame | None, int]:
        # Memory without a known line has the key None.
        first: dict[tuple[str, int], Frame] = {}

        def line(alloc: Alloc) -> Frame | None:
            # A line may belong to several functions, for example to a comprehension. The first function is used.
            frame = alloc.frame
            return frame and first.setdefault((frame.file, frame.line), frame)

        return _sums(self.live, line)

    def by_module(self) -> dict[str, int]:
        return _sums(self.live, lambda alloc: alloc.module)

    def top(self, number: int = 10) -> list[Holding]:
        """Return the lines of code that allocated the most memory, with a separate entry for each category."""
        groups: dict[tuple[str | None, int | None, Category], list[Alloc]] = {}
        for alloc in self.live:
            file, line, _ = alloc.frame or (None, None, None)
            groups.setdefault((file, line, alloc.category), []).append(alloc)
        holdings = [
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
        return sorted(holdings, key=lambda holding: -holding.bytes)[:number]

    def coverage(self) -> float:
        """Return the fraction of the bytes whose allocating line is known, or 1 if no memory is allocated."""
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
