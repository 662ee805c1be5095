"""The memory of a run over time, in a few hundred samples.

Time is divided into equal intervals. Each interval keeps four samples: the lowest allocated memory, the highest
allocated memory, the highest reserved memory, and the last sample. The samples therefore always include the peaks.
Between two samples, memory is assumed to be constant.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from legroom.memory.annotations import GapEnded, GapStarted
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc, Event, Free, Holder, Oom, SegmentChange, Step, Tag


class Sample(NamedTuple):
    time: float
    allocated: int
    reserved: int
    by_category: dict[Category, int]


_Point = tuple[int, float, int, int, tuple[int, ...]]
"""The event number, the time, allocated memory, reserved memory, and the memory of each `Category` in order."""

_CATEGORIES = tuple(Category)
_POSITIONS = {category: position for position, category in enumerate(_CATEGORIES)}


class TimelineBuilder:
    """Selects at most about `samples` samples of one device from the events of a run."""

    def __init__(
        self, device: int, tags: Mapping[int, Category], *, begin: float, end: float, samples: int
    ) -> None:
        self._device = device
        self._tags = tags
        self._begin = begin
        self._width = (end - begin) / max(samples // 4, 1)
        self._edge = begin + self._width
        self._number = 0
        self._now = begin
        self._in_gap = False
        self._selected: list[_Point] = []
        self._lowest: _Point | None = None
        # This and the next three attributes are samples of the current interval.
        self._highest: _Point | None = None
        self._most_reserved: _Point | None = None
        self._last: _Point | None = None

    def samples(self) -> list[Sample]:
        self._end_interval(self._now)
        return [
            Sample(time, allocated, reserved, dict(zip(_CATEGORIES, sums, strict=True)))
            for _, time, allocated, reserved, sums in self._selected
        ]

    def add_events(self, alive: Iterable[Alloc], reserved: int, events: Iterable[Event]) -> None:
        """Add consecutive events. `alive` and `reserved` describe the state before `events`."""
        device, tags, number, now = self._device, self._tags, self._number, self._now
        sums = [0] * len(_CATEGORIES)
        live: dict[int, tuple[int, int]] = {}
        for alloc in alive:
            if alloc.device == device:
                position = _POSITIONS[tags.get(alloc.id, alloc.category)]
                live[alloc.id] = position, alloc.block_bytes
                sums[position] += alloc.block_bytes
        allocated = sum(sums)
        low, high, most = self._extremes()
        in_gap = self._in_gap
        # This loop runs for every event, so it creates a point only for a new minimum or maximum.
        for event in events:
            if isinstance(event, (Tag, Step, Oom, Holder)):
                continue
            time = max(event.time, now)
            if time >= self._edge:
                if high >= 0:
                    self._last = (number, now, allocated, reserved, tuple(sums))
                self._end_interval(time)
                low, high, most = self._extremes()
            number += 1
            now = time
            if isinstance(event, Alloc):
                if event[4] != device:
                    continue
                id, block = event[1], event[3]
                position = _POSITIONS[tags.get(id, event[6])]
                if id in live:
                    sums[live[id][0]] -= live[id][1]
                    allocated -= live[id][1]
                live[id] = position, block
                sums[position] += block
                allocated += block
            elif isinstance(event, Free):
                freed = live.pop(event[1], None)
                if freed is None:
                    continue
                position, block = freed
                sums[position] -= block
                allocated -= block
            elif isinstance(event, SegmentChange):
                if event[1] != device:
                    continue
                reserved += event[2]
            elif isinstance(event, GapStarted | GapEnded):
                in_gap = isinstance(event, GapStarted)
            else:
                continue
            if in_gap:
                continue
            if allocated > high:
                high = allocated
                self._highest = (number, now, allocated, reserved, tuple(sums))
            if allocated < low:
                low = allocated
                self._lowest = (number, now, allocated, reserved, tuple(sums))
            if reserved > most:
                most = reserved
                self._most_reserved = (number, now, allocated, reserved, tuple(sums))
        if high >= 0:
            self._last = (number, now, allocated, reserved, tuple(sums))
        self._number, self._now, self._in_gap = number, now, in_gap

    def _extremes(self) -> tuple[float, int, int]:
        low = inf if self._lowest is None else self._lowest[2]
        high = -1 if self._highest is None else self._highest[2]
        most = -1 if self._most_reserved is None else self._most_reserved[3]
        return low, high, most

    def _end_interval(self, time: float) -> None:
        """Store the samples of the current interval, and start the interval that contains `time`."""
        candidates = {self._lowest, self._highest, self._most_reserved, self._last} - {None}
        self._selected += sorted(point for point in candidates if point is not None)
        self._lowest = self._highest = self._most_reserved = self._last = None
        if self._width > 0:
            self._edge = self._begin + ((time - self._begin) // self._width + 1) * self._width
        else:
            self._edge = inf
