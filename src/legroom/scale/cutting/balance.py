"""The cut that leaves all stages equally full: parameters, gradients, optimizer state, activations in flight, buffers in between.

What each position of the score costs is read off one trace of a whole step. Sums of that make a first cut; each of its stages is then
rehearsed (see `rehearsal`), and what the sums had missed is added to them, until rehearsed peaks are even or the cut no longer moves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from legroom.scale.cutting.parts import Sheet
from legroom.scale.cutting.score import CannotCut

MOST_PLACES = 240
"""Where a cut is looked for: those with the least to hand on, if there are more."""
EVEN = 1.05
"""Largest over smallest stage: no further cut is tried."""
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes, by position of the score."""

    kept: list[int]
    """Made there for the backward pass of one micro-batch."""
    weights: list[list[tuple[int, int]]]
    """Tensors of the model that are read there: which one, and its bytes with gradient and optimizer state."""


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
        if best is None or max(found.peaks) < max(best.peaks):
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
        length = sheet.score.length
        self._kept = [0] * (length + 1)
        self._weights = [0] * (length + 1)
        self._again: list[tuple[int, int, int]] = []  # position, the position of the use before, bytes
        used: dict[int, int] = {}
        for position in range(length):
            fresh = 0
            for tensor, size in costs.weights[position]:
                if tensor not in used:
                    fresh += size
                else:
                    self._again.append((position, used[tensor], size))
                used[tensor] = position
            self._kept[position + 1] = self._kept[position] + costs.kept[position]
            self._weights[position + 1] = self._weights[position] + fresh
        self._crossing = [sheet.bytes_crossing(position) for position in range(length)] + [0]
        self._traffic = traffic

    def cost(self, stage: int, begin: int, end: int) -> int:
        weights = self._weights[end] - self._weights[begin]
        weights += sum(size for position, before, size in self._again if before < begin <= position < end)
        kept = self._kept[end] - self._kept[begin]
        handed = self._crossing[begin] + self._crossing[end]
        return weights + kept * self._traffic.in_flight[stage] + handed * self._traffic.buffered


def _evenest(sums: _Sums, places: Sequence[int], stages: int, missed: Sequence[int]) -> tuple[int, ...]:
    """Boundaries whose largest stage is smallest; `missed`: what each stage costs beyond the sums."""
    ends = [*places, len(sums._kept) - 1]
    # reached[end]: (largest stage so far, boundaries), for one stage more each round
    reached: dict[int, tuple[int, tuple[int, ...]]] = {
        end: (sums.cost(0, 0, end) + missed[0], (0, end)) for end in ends
    }
    for stage in range(1, stages):
        further: dict[int, tuple[int, tuple[int, ...]]] = {}
        for end in ends if stage < stages - 1 else ends[-1:]:
            for begin, (largest, boundaries) in reached.items():
                if begin < end and (end not in further or largest < further[end][0]):
                    now = max(largest, sums.cost(stage, begin, end) + missed[stage])
                    if end not in further or now < further[end][0]:
                        further[end] = (now, (*boundaries, end))
        reached = further
    return reached[ends[-1]][1]
