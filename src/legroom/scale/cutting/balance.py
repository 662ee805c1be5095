"""The cut that leaves all stages equally full: parameters, gradients, optimizer state, activations in flight, buffers in between.

What each position of the score costs is read off one trace of a whole step. Sums of that make a first cut; each of its stages is then
rehearsed (see `rehearsal`), and what the sums had missed is added to them, until rehearsed peaks are even or the cut no longer moves.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from legroom.scale.cutting.forward_graph import CannotCut
from legroom.scale.cutting.stages import Sheet

MOST_PLACES = 160
"""Where a cut is looked for: those with the least to hand on, if there are more."""
EVEN = 1.05
"""Largest over smallest stage: no further cut is tried."""
ROUNDS = 8
POWER = 6


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes, by position of the score."""

    kept: list[int]
    """Made there for the backward pass of one micro-batch."""
    weights: list[list["Weight"]]
    """Tensors of the model that are read there."""


class Weight(NamedTuple):
    """A tensor of the model, in bytes."""

    which: int
    held: int
    """With its gradient and optimizer state."""
    updating: int
    """What the optimizer needs besides while it takes its step."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """How micro-batches pass through the stages."""

    in_flight: tuple[int, ...]
    """Of every stage: how many micro-batches wait for their backward pass at once."""
    buffered: int
    """How many micro-batches' inputs and gradients have buffers of their own."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A cut and what its stages need."""

    boundaries: tuple[int, ...]
    peaks: tuple[int, ...]
    """Rehearsed, in bytes."""

    @property
    def spread(self) -> float:
        return max(self.peaks) / max(1, min(self.peaks))

    @property
    def unevenness(self) -> float:
        """By which cuts are compared: a larger stage is worth it where it makes the others more even."""
        return float(max(self.peaks) * self.spread**0.5)


def balanced(
    sheet: Sheet, costs: Costs, traffic: Traffic, rehearsed: Callable[[Sequence[int]], tuple[int, ...]]
) -> Balance:
    """The most even cut found. `rehearsed(boundaries)` tells the peak of every stage."""
    stages = len(traffic.in_flight)
    places = cutting_places(sheet)
    if len(places) < stages - 1:
        raise CannotCut(
            "its own forward",
            f"there are {len(places)} places to cut for {stages} stages that hand gradients on",
        )
    sums = _Sums(sheet, costs, traffic)
    missed = [0] * stages
    best: Balance | None = None
    seen: set[tuple[int, ...]] = set()
    for _ in range(ROUNDS):
        boundaries = _evenest(sums, places, stages, missed)
        if boundaries in seen:
            break
        seen.add(boundaries)
        peaks = rehearsed(boundaries)
        found = Balance(boundaries, peaks)
        if best is None or found.unevenness < best.unevenness:
            best = found
        if found.spread <= EVEN:
            break
        missed = [
            peak - sums.cost(stage, boundaries[stage], boundaries[stage + 1])
            for stage, peak in enumerate(peaks)
        ]
    assert best is not None
    return best


def cutting_places(sheet: Sheet) -> list[int]:
    """Positions at which the score can be cut; where there are many, those with the least to hand on."""
    places = [position for position in range(1, sheet.score.length) if sheet.can_cut(position)]
    if len(places) > MOST_PLACES:
        places = sorted(sorted(places, key=sheet.bytes_crossing)[:MOST_PLACES])
    return places


class _Sums:
    """What a stage between two positions costs, from sums over positions."""

    def __init__(self, sheet: Sheet, costs: Costs, traffic: Traffic) -> None:
        self.length = length = sheet.score.length
        self._kept, self._held, self._updating = ([0] * (length + 1) for _ in range(3))
        self._again: list[
            tuple[int, int, Weight]
        ] = []  # position, the position of the use before, and what is used again
        used: dict[int, int] = {}
        for position in range(length):
            fresh = [weight for weight in costs.weights[position] if weight.which not in used]
            for weight in costs.weights[position]:
                if weight.which in used:
                    self._again.append((position, used[weight.which], weight))
                used[weight.which] = position
            for sums, more in (
                (self._kept, costs.kept[position]),
                (self._held, sum(weight.held for weight in fresh)),
                (self._updating, sum(weight.updating for weight in fresh)),
            ):
                sums[position + 1] = sums[position] + more
        self._crossing = [sheet.bytes_crossing(position) for position in range(length)] + [0]
        self._traffic = traffic

    def cost(self, stage: int, begin: int, end: int) -> int:
        """The higher of two times: the most micro-batches in flight, and the optimizer at work."""
        again = [weight for position, before, weight in self._again if before < begin <= position < end]
        held = self._held[end] - self._held[begin] + sum(weight.held for weight in again)
        updating = self._updating[end] - self._updating[begin] + sum(weight.updating for weight in again)
        in_flight = (self._kept[end] - self._kept[begin]) * self._traffic.in_flight[stage]
        handed = (self._crossing[begin] + self._crossing[end]) * self._traffic.buffered
        return held + handed + max(in_flight, updating)


def _evenest(sums: _Sums, places: Sequence[int], stages: int, missed: Sequence[int]) -> tuple[int, ...]:
    """Boundaries whose stages are as even as can be; `missed`: what each stage costs beyond the sums.

    Stages are brought near an aim, and of several aims the one is taken that gives the most even stages: the smallest largest stage alone
    would leave others half empty wherever the next place to cut has more to hand on.
    """
    ends = [*places, sums.length]
    begins = [0, *places]
    price = {
        (stage, begin, end): sums.cost(stage, begin, end) + missed[stage]
        for stage in range(stages)
        for begin in (begins if stage else begins[:1])
        for end in (ends if stage < stages - 1 else ends[-1:])
        if begin < end
    }
    smallest = _least(price, ends, stages, lambda cost: float(max(0, cost)) ** POWER)
    largest = max(_costs(price, smallest))
    aims = [largest * percent / 100 for percent in range(70, 131, 5)]
    ways = [smallest, *(_least(price, ends, stages, lambda cost, aim=aim: (cost - aim) ** 2) for aim in aims)]  # type: ignore[misc]
    return min(ways, key=lambda way: Balance(way, _costs(price, way)).unevenness)


def _least(
    price: dict[tuple[int, int, int], int], ends: Sequence[int], stages: int, penalty: Callable[[int], float]
) -> tuple[int, ...]:
    """The boundaries whose stages' penalties have the least sum."""
    reached: dict[int, tuple[float, tuple[int, ...]]] = {
        0: (0.0, (0,))
    }  # a boundary: the least sum up to it, and how
    for stage in range(stages):
        further: dict[int, tuple[float, tuple[int, ...]]] = {}
        for end in ends if stage < stages - 1 else ends[-1:]:
            ways = [
                (before + penalty(price[stage, begin, end]), (*boundaries, end))
                for begin, (before, boundaries) in reached.items()
                if begin < end
            ]
            if ways:
                further[end] = min(ways)
        reached = further
    return reached[ends[-1]][1]


def _costs(price: dict[tuple[int, int, int], int], boundaries: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(
        price[stage, begin, end] for stage, (begin, end) in enumerate(itertools.pairwise(boundaries))
    )
