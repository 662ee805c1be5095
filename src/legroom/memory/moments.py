"""The live memory of a device at selected moments in a run, grouped by the code that allocated it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from legroom.memory.event_base import Category, Frame
from legroom.memory.events import Alloc, Event, Free, Holder, Tag


class Site(NamedTuple):
    module: str
    frame: Frame | None
    category: Category


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSites:
    """The live memory of each site after one event. `sites` contains indices into the list of all sites."""

    index: int
    time: float
    sites: list[int]
    bytes: list[int]
    counts: list[int]


def live_sites(
    events: Sequence[Event], device: int, tags: Mapping[int, Category], indices: Iterable[int]
) -> tuple[list[Site], list[LiveSites]]:
    """Return all sites, and the live memory of `device` after each event in `indices`."""
    positions: dict[Site, int] = {}
    sizes: list[int] = []
    counts: list[int] = []
    live: dict[int, tuple[int, int]] = {}
    result: list[LiveSites] = []
    start = 0
    for stop in sorted(set(indices)):
        for event in events[start : stop + 1]:
            if isinstance(event, Free):
                freed = live.pop(event[1], None)
            elif isinstance(event, Alloc) and event[4] == device:
                freed = live.pop(event[1], None)
                site = Site(event[9], event[10], tags.get(event[1], event[6]))
                position = positions.setdefault(site, len(positions))
                if position == len(sizes):
                    sizes.append(0)
                    counts.append(0)
                live[event[1]] = position, event[3]
                sizes[position] += event[3]
                counts[position] += 1
            else:
                continue
            if freed is not None:
                sizes[freed[0]] -= freed[1]
                counts[freed[0]] -= 1
        present = [position for position, count in enumerate(counts) if count]
        result.append(
            LiveSites(
                index=stop,
                time=_time_of(events[stop]),
                sites=present,
                bytes=[sizes[position] for position in present],
                counts=[counts[position] for position in present],
            )
        )
        start = stop + 1
    return list(positions), result


def _time_of(event: Event) -> float:
    return 0.0 if isinstance(event, Tag | Holder) else event.time
