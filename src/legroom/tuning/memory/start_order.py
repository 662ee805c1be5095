"""In which order trials that wait should start: several orders are played to the end in several futures, and the best on average is taken.

Nobody knows how long trials will take, and the best order for the likeliest lengths may be a bad one for others that are nearly as likely:
so each is judged by all futures that `Lengths` foretells. A plan is for now: whenever a trial starts or ends, another is made with what is known then.
"""

import heapq
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WEIGHTS = (0.0, 0.5, 1.0, 2.0)
"""Of a trial's length against its size: a large one finds room only while there is much of it, a long one must not begin last."""
EFFORT = 16 * 32 * 32
"""Futures times the square of the trials that wait: so much is played, about a hundredth of a second."""
MOST = 128
"""Trials that are planned; more wait only where so many run at once that a plan gains little."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a trial that waits would take."""

    sizes: Sequence[int | None]
    """Bytes on each GPU; None: it cannot run there."""
    lengths: Sequence[float]
    """Seconds in each future."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a trial that runs has, and for how long still."""

    sizes: Sequence[tuple[int, int]]
    """A GPU and bytes of it for each rank."""
    lengths: Sequence[float]


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to plan with."""

    free: Sequence[int]
    """Bytes of each GPU."""
    running: Sequence[Taken]
    slots: int
    """Trials at once at most."""
    ranks: int = 1
    """GPUs for each trial."""


def best_order(waiting: Mapping[int, Demand], room: Room) -> list[int]:
    """The trials that wait: of those that have room, whoever comes first here should start first."""
    oldest, others = sorted(waiting)[:MOST], sorted(waiting)[MOST:]
    return _planned({number: waiting[number] for number in oldest}, room) + others


def _planned(waiting: Mapping[int, Demand], room: Room) -> list[int]:
    least = {n: min((size for size in demand.sizes if size is not None), default=0) for n, demand in waiting.items()}  # fmt: skip
    known = min(len(demand.lengths) for demand in waiting.values())
    futures = range(min(known, max(2, EFFORT // len(waiting) ** 2)))

    def mean(order: Sequence[int]) -> float:
        return statistics.fmean(makespan(order, waiting, least, room, future) for future in futures)

    return min(_orders(waiting, least), key=mean)


def makespan(
    order: Sequence[int], waiting: Mapping[int, Demand], least: Mapping[int, int], room: Room, future: int
) -> float:
    """Seconds until all are over, if each starts as soon as it has room, earlier ones in the order first. `least`: bytes of the GPU where it takes least."""
    free, left, clock = list(room.free), list(order), 0.0
    ends = [(taken.lengths[future], taken.sizes) for taken in room.running]
    heapq.heapify(ends)
    last = max((end for end, _ in ends), default=0.0)
    while left:
        most, passed = max(free), list[int]()
        for position, number in enumerate(left):
            if len(ends) >= room.slots:
                passed += left[position:]
                break
            if (
                least[number] > most
                or len(chosen := _tightest(waiting[number], free, room.ranks)) < room.ranks
            ):
                passed.append(number)
                continue
            for index, size in chosen:
                free[index] -= size
            most = max(free)
            end = clock + waiting[number].lengths[future]
            heapq.heappush(ends, (end, chosen))
            last = max(last, end)
        left = passed
        if not ends:
            break  # other programs have the room of those that are left
        clock, given = heapq.heappop(ends)
        for index, size in given:
            free[index] += size
    return last


def _tightest(demand: Demand, free: Sequence[int], ranks: int) -> list[tuple[int, int]]:
    """GPUs with room, those on which least stays free, with the bytes taken there."""
    options = []
    for index, size in enumerate(demand.sizes):
        if size is not None and size <= free[index]:
            options.append((free[index] - size, index, size))
    if len(options) > 1:
        options.sort()
    return [(index, size) for _, index, size in options[:ranks]]


def _orders(waiting: Mapping[int, Demand], least: Mapping[int, int]) -> list[list[int]]:
    """By size, by length, by sums of both and by their product."""
    largest = max(least.values()) or 1
    lengths = {number: statistics.fmean(demand.lengths) for number, demand in waiting.items()}
    longest = max(lengths.values())
    pairs = {number: (least[number] / largest, lengths[number] / longest) for number in waiting}
    keys = [{n: size + weight * length for n, (size, length) in pairs.items()} for weight in WEIGHTS]
    keys.append({n: length for n, (_, length) in pairs.items()})
    keys.append({n: size * length for n, (size, length) in pairs.items()})
    return [sorted(waiting, key=lambda n: (-key[n], n)) for key in keys]
