"""The memory of a device over time as columns, at several resolutions.

A chart cannot draw a million events. Consecutive events are therefore combined into columns. A column contains the
memory by category at its highest point, so no resolution omits a peak. The finest resolution has up to `MAX_COLUMNS`
columns. Each coarser resolution has a quarter of the columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from legroom.memory.annotations import GapEnded, GapStarted
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event, Free, Holder, Oom, SegmentChange, Step, Tag

MAX_COLUMNS = 1 << 16
_FEWEST = 1 << 12
_FACTOR = 4
CATEGORIES = tuple(Category)
_POSITIONS = {category: position for position, category in enumerate(CATEGORIES)}


@dataclass(slots=True)
class Columns:
    """The columns of one resolution, in chronological order."""

    times: list[float] = field(default_factory=list)
    """The time of the first event of each column."""
    sums: list[tuple[int, ...]] = field(default_factory=list)
    """The bytes of each category, in the order of `CATEGORIES`, at the highest point of each column."""
    reserved: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    """The index of the event at the highest point of each column."""

    def __len__(self) -> int:
        return len(self.times)

    def coarser(self) -> "Columns":
        result = Columns()
        for start in range(0, len(self), _FACTOR):
            group = range(start, min(start + _FACTOR, len(self)))
            highest = max(group, key=lambda position: sum(self.sums[position]))
            result.times.append(self.times[start])
            result.sums.append(self.sums[highest])
            result.reserved.append(max(self.reserved[position] for position in group))
            result.indices.append(self.indices[highest])
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The memory of one device over time."""

    begin: float
    end: float
    levels: list[Columns]
    phases: list[tuple[float, Phase]]
    gaps: list[tuple[float, float]]


def final_categories(events: Sequence[Event]) -> dict[int, Category]:
    """Return the last tag of each storage, which applies to the whole lifetime of the storage."""
    return {event.id: event.category for event in events if isinstance(event, Tag)}


def history_of(
    events: Sequence[Event], device: int, tags: Mapping[int, Category], *, max_columns: int = MAX_COLUMNS
) -> History:
    columns = Columns()
    phases: list[tuple[float, Phase]] = []
    gaps: list[tuple[float, float]] = []
    size = max(1, -(-len(events) // max_columns))
    sums = [0] * len(CATEGORIES)
    live: dict[int, tuple[int, int]] = {}
    allocated = reserved = 0
    now = first_time = 0.0
    gap_start: float | None = None
    highest = most_reserved = highest_at = -1
    highest_sums: tuple[int, ...] = ()
    phase: Phase | None = None
    for index, event in enumerate(events):  # this loop runs for every event of a run
        if isinstance(event, Alloc):
            if event[4] == device:
                id, block = event[1], event[3]
                if id in live:
                    position, before = live[id]
                    sums[position] -= before
                    allocated -= before
                position = _POSITIONS[tags.get(id, event[6])]
                live[id] = position, block
                sums[position] += block
                allocated += block
                if event[7] is not phase:
                    phase = event[7]
                    phases.append((max(event[0], now), phase))
        elif isinstance(event, Free):
            freed = live.pop(event[1], None)
            if freed is not None:
                sums[freed[0]] -= freed[1]
                allocated -= freed[1]
        elif isinstance(event, Tag | Holder):
            continue
        elif isinstance(event, SegmentChange):
            if event.device == device:
                reserved += event.bytes
        elif isinstance(event, Oom | Step):
            if event.device == device:
                after = event.phase if isinstance(event, Oom) else Phase.OTHER
                if after is not (phase or Phase.OTHER):
                    phase = after
                    phases.append((max(event.time, now), phase))
        elif isinstance(event, GapStarted):
            gap_start = max(event.time, now)
        elif isinstance(event, GapEnded):
            gaps.append((now if gap_start is None else gap_start, max(event.time, now)))
            gap_start = None
        if event[0] > now if isinstance(event, tuple) else event.time > now:
            now = event.time
        if gap_start is not None:
            continue
        if highest < 0:
            first_time = now
        if allocated > highest:
            highest, highest_at, highest_sums = allocated, index, tuple(sums)
        if reserved > most_reserved:
            most_reserved = reserved
        if index % size == size - 1:
            _append(columns, first_time, highest_sums, most_reserved, highest_at)
            highest = most_reserved = -1
    if highest >= 0:
        _append(columns, first_time, highest_sums, most_reserved, highest_at)
    if gap_start is not None:
        gaps.append((gap_start, now))
    levels = [columns]
    while len(levels[-1]) > _FEWEST:
        levels.append(levels[-1].coarser())
    return History(
        begin=columns.times[0] if columns.times else 0.0, end=now, levels=levels, phases=phases, gaps=gaps
    )


def _append(columns: Columns, time: float, sums: tuple[int, ...], reserved: int, index: int) -> None:
    if columns.times and columns.sums[-1] == sums and columns.reserved[-1] == reserved:
        return  # the previous column continues
    columns.times.append(time)
    columns.sums.append(sums)
    columns.reserved.append(reserved)
    columns.indices.append(index)
