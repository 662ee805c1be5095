"""Plans the start order of waiting trials. Several orders are simulated with several sampled runtimes, and the best
order on average is chosen.

Each order is evaluated with all samples of the `RuntimeModel`. The best order for the most likely runtimes alone may
be bad for other likely runtimes. The plan is repeated whenever a trial starts or ends.
"""

import heapq
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WEIGHTS = (0.0, 0.5, 1.0, 2.0)
"""Each weight defines one candidate order, in which trials are sorted by size plus weight times runtime. A large trial
should start early, because it needs a lot of free memory. A long trial should start early so that it does not end
last.
"""
MAX_SIMULATIONS = 16 * 32 * 32
"""The maximum product of the number of samples and the square of the number of trials. A simulation of this size takes
about 10 ms.
"""
MAX_PLANNED = 128
"""The maximum number of waiting trials whose order is planned. Further trials start afterwards, in the order of their
numbers.
"""


@dataclass(frozen=True, slots=True)
class Demand:
    """The requirements of a waiting trial."""

    sizes: Sequence[int | None]
    """The number of bytes that the trial needs on each GPU, or None for a GPU on which it cannot run."""
    runtimes: Sequence[float]


@dataclass(frozen=True, slots=True)
class Allocation:
    """The memory and the remaining runtime of a running trial."""

    sizes: Sequence[tuple[int, int]]
    runtimes: Sequence[float]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The free memory and the running trials."""

    free: Sequence[int]
    running: Sequence[Allocation]
    slots: int
    ranks: int = 1


def best_order(waiting: Mapping[int, Demand], capacity: Capacity) -> list[int]:
    """Return the waiting trials in the order in which they should start. The first trial in this order that fits into
    the free memory starts next.
    """
    oldest, others = sorted(waiting)[:MAX_PLANNED], sorted(waiting)[MAX_PLANNED:]
    return _planned({number: waiting[number] for number in oldest}, capacity) + others


def _planned(waiting: Mapping[int, Demand], capacity: Capacity) -> list[int]:
    min_sizes = {n: min((size for size in demand.sizes if size is not None), default=0) for n, demand in waiting.items()}  # fmt: skip
    known = min(len(demand.runtimes) for demand in waiting.values())
    samples = range(min(known, max(2, MAX_SIMULATIONS // len(waiting) ** 2)))

    def mean(order: Sequence[int]) -> float:
        return statistics.fmean(makespan(order, waiting, min_sizes, capacity, sample) for sample in samples)

    return min(_orders(waiting, min_sizes), key=mean)


def makespan(
    order: Sequence[int],
    waiting: Mapping[int, Demand],
    min_sizes: Mapping[int, int],
    capacity: Capacity,
    sample: int,
) -> float:
    """Return the number of seconds until all trials have ended, if each trial starts in this order as soon as it fits.
    `min_sizes` contains the smallest size of each trial across the GPUs.
    """
    free, left, clock = list(capacity.free), list(order), 0.0
    ends = [(allocation.runtimes[sample], allocation.sizes) for allocation in capacity.running]
    heapq.heapify(ends)
    last = max((end for end, _ in ends), default=0.0)
    while left:
        most, passed = max(free), list[int]()
        for position, number in enumerate(left):
            if len(ends) >= capacity.slots:
                passed += left[position:]
                break
            if (
                min_sizes[number] > most
                or len(chosen := _tightest(waiting[number], free, capacity.ranks)) < capacity.ranks
            ):
                passed.append(number)
                continue
            for index, size in chosen:
                free[index] -= size
            most = max(free)
            end = clock + waiting[number].runtimes[sample]
            heapq.heappush(ends, (end, chosen))
            last = max(last, end)
        left = passed
        if not ends:
            break  # other programs use the memory that the remaining trials need
        clock, freed = heapq.heappop(ends)
        for index, size in freed:
            free[index] += size
    return last


def _tightest(demand: Demand, free: Sequence[int], ranks: int) -> list[tuple[int, int]]:
    options = []
    for index, size in enumerate(demand.sizes):
        if size is not None and size <= free[index]:
            options.append((free[index] - size, index, size))
    if len(options) > 1:
        options.sort()
    return [(index, size) for _, index, size in options[:ranks]]


def _orders(waiting: Mapping[int, Demand], min_sizes: Mapping[int, int]) -> list[list[int]]:
    largest = max(min_sizes.values()) or 1
    runtimes = {number: statistics.fmean(demand.runtimes) for number, demand in waiting.items()}
    longest = max(runtimes.values())
    pairs = {number: (min_sizes[number] / largest, runtimes[number] / longest) for number in waiting}
    keys = [{n: size + weight * length for n, (size, length) in pairs.items()} for weight in WEIGHTS]
    keys.append({n: length for n, (_, length) in pairs.items()})
    keys.append({n: size * length for n, (size, length) in pairs.items()})
    return [sorted(waiting, key=lambda n: (-key[n], n)) for key in keys]
