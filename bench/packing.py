"""How good the packing is: makespan against one trial per GPU, and against an oracle that knows how long trials take.

    python -m bench.packing

Trials of random sizes and lengths on two GPUs of different sizes, played against a clock with the very `Packer` that engines use and the
same look ahead. Trials that share a GPU are taken not to slow each other: this measures the packing, not the GPU. The oracle is the
best of many orders, each with all trials known beforehand, their lengths too; no schedule can be shorter than the bound.
"""

import heapq
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.table import print_table
from legroom.tuning.admission import Admission, Fit, Place, Verdict
from legroom.tuning.packing import Packer
from legroom.units import GiB

SLOTS = 8
STUDIES = (40, 100)
"""Trials."""
ORDERS = 100


@dataclass(frozen=True, slots=True)
class Work:
    """A trial: what it needs, and how long it takes."""

    size: int
    seconds: float


def main() -> None:
    for trials in STUDIES:
        rows = [[name, *figures(draw, trials)] for name, draw in KINDS.items()]
        header = ["trials", "one per GPU / packed", "oracle / packed", "worst of ten", "bound / packed"]
        print_table(f"{trials} trials on 24 GiB and 8 GiB, at most {SLOTS} at once", header, rows)


def figures(draw: Callable[[random.Random], Work], trials: int) -> list[str]:
    """Means over ten studies; the oracle's worst too."""
    against_one, against_oracle, against_bound = [], [], []
    for seed in range(10):
        dice = random.Random(seed)
        works = [draw(dice) for _ in range(trials)]
        places = [Place(index=0, memory=24 * GiB, virtual=True), Place(index=1, memory=8 * GiB, virtual=True)]
        ours = packed(works, places)
        against_one.append(one_each(works, places) / ours)
        against_oracle.append(oracle(works, places, dice) / ours)
        against_bound.append(bound(works, places) / ours)
    return [
        f"{statistics.fmean(against_one):.2f}",
        f"{statistics.fmean(against_oracle):.1%}",
        f"{min(against_oracle):.1%}",
        f"{statistics.fmean(against_bound):.1%}",
    ]


def packed(works: Sequence[Work], places: Sequence[Place]) -> float:
    """Our rule, with the look ahead that engines have: trials come in the order in which they are proposed."""
    packer = Packer(places, slots=SLOTS)
    coming, waiting = list(enumerate(works)), {}
    clock, ends = 0.0, []
    while coming or waiting or ends:
        while coming and len(waiting) < SLOTS + 2:
            number, work = coming.pop(0)
            waiting[number] = _admission(work, places)
        placement = packer.place(waiting)
        if placement is not None:
            del waiting[placement.number]
            heapq.heappush(ends, (clock + works[placement.number].seconds, placement.number))
        else:
            clock, number = heapq.heappop(ends)
            packer.release(number)
    return clock


def one_each(works: Sequence[Work], places: Sequence[Place]) -> float:
    """A GPU for each trial, in order: the next that is free and large enough."""
    free = {place.index: 0.0 for place in places}
    for work in works:
        able = [place for place in places if place.memory >= work.size]
        index = min(able, key=lambda place: (free[place.index], place.memory)).index
        free[index] += work.seconds
    return max(free.values())


def oracle(works: Sequence[Work], places: Sequence[Place], dice: random.Random) -> float:
    """The best of many orders, beginning with those that are known to be good."""
    orders: list[list[Work]] = [
        sorted(works, key=lambda work: -work.seconds),
        sorted(works, key=lambda work: -work.size),
        sorted(works, key=lambda work: -work.size * work.seconds),
    ]
    best = min(_listed(order, places) for order in orders)
    for _ in range(ORDERS):
        order = list(min(orders, key=lambda one: _listed(one, places)))
        a, b = dice.randrange(len(order)), dice.randrange(len(order))
        order[a], order[b] = order[b], order[a]
        length = _listed(order, places)
        if length <= best:
            best, orders = length, [order]
    return best


def _listed(order: Sequence[Work], places: Sequence[Place]) -> float:
    """Each trial as early as there is room for it, in this order; later ones may go before where they fit."""
    free = {place.index: place.memory for place in places}
    left, ends, clock, count = list(order), [], 0.0, 0
    while left or ends:
        for work in list(left):
            able = [place for place in places if free[place.index] >= work.size]
            if able and len(ends) < SLOTS:
                index = min(able, key=lambda place: free[place.index] - work.size).index
                free[index] -= work.size
                count += 1
                heapq.heappush(ends, (clock + work.seconds, count, index, work.size))
                left.remove(work)
        clock, _, index, size = heapq.heappop(ends)
        free[index] += size
    return clock


def bound(works: Sequence[Work], places: Sequence[Place]) -> float:
    """No schedule is shorter: memory times time, the longest trial, and the places."""
    area = sum(work.size * work.seconds for work in works) / sum(place.memory for place in places)
    return max(area, max(work.seconds for work in works), sum(work.seconds for work in works) / SLOTS)


def _admission(work: Work, places: Sequence[Place]) -> Admission:
    fits = {p.index: Fit(predicted=work.size, safe=work.size) for p in places if p.memory >= work.size}
    return Admission(verdict=Verdict.FITS, fits=fits)


KINDS: dict[str, Callable[[random.Random], Work]] = {
    "all sizes, 1 to 20 GiB": lambda dice: Work(round(dice.uniform(1, 20) * GiB), dice.uniform(10, 100)),
    "mostly small, 1 to 6 GiB": lambda dice: Work(round(dice.uniform(1, 6) * GiB), dice.uniform(10, 100)),
    "small and long, large and short": lambda dice: (
        Work(2 * GiB, dice.uniform(60, 120)) if dice.random() < 0.7 else Work(16 * GiB, dice.uniform(10, 30))
    ),
    "cut short by ASHA": lambda dice: Work(
        round(dice.uniform(1, 12) * GiB), 10.0 * 2 ** min(4, int(dice.expovariate(1.0)))
    ),
}

if __name__ == "__main__":
    main()
