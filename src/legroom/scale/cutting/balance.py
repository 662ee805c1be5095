"""Splits a model so that the memory of all stages is balanced: parameters, gradients, optimizer state, activations and
buffers.

One trace of a whole training step provides the memory cost of each position in the graph. The first split is computed
from the sums of these costs over each stage. A trace of each stage then predicts its peak (see `stage_memory`). The
differences between the predicted peaks and the sums correct the costs for the next split. These steps are repeated
until the predicted peaks are even or the split does not change.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from legroom.scale.cutting.forward_graph import CannotSplitModel
from legroom.scale.cutting.stages import GraphPartitioner

MAX_CUT_POSITIONS = 160
"""The maximum number of graph positions that are considered for a split. If the graph has more positions, only the
positions at which the fewest bytes must be sent are considered.
"""
EVEN_RATIO = 1.05
"""If the largest stage is at most this many times as large as the smallest stage, no further split is tried."""
MAX_ITERATIONS = 8
PENALTY_POWER = 6


@dataclass(frozen=True, slots=True)
class PositionCosts:
    """The memory costs in bytes at each position in the graph."""

    saved: list[int]
    """The number of bytes that each position saves for the backward pass of one micro-batch."""
    weights: list[list["WeightCost"]]
    """The parameters and buffers that each position reads."""


class WeightCost(NamedTuple):
    key: int
    total: int
    """The memory of the tensor, its gradient and its optimizer state."""
    temporary: int
    """The additional memory that the optimizer step needs for this tensor."""


@dataclass(frozen=True, slots=True)
class MicroBatchFlow:
    """The numbers of micro-batches that a pipeline keeps in memory at the same time."""

    in_flight: tuple[int, ...]
    """For each stage, the maximum number of micro-batches that wait for their backward pass."""
    buffered: int
    """The number of micro-batches that have their own buffers for inputs and gradients."""


@dataclass(frozen=True, slots=True)
class BalancedCut:
    """A split of a model into stages, and the predicted peaks of the stages."""

    boundaries: tuple[int, ...]
    peaks: tuple[int, ...]

    @property
    def spread(self) -> float:
        return max(self.peaks) / max(1, min(self.peaks))

    @property
    def unevenness(self) -> float:
        """A measure of how uneven the stages are. A split with a larger maximum can still be better if its stages are
        more even.
        """
        return float(max(self.peaks) * self.spread**0.5)


def balance_stages(
    partitioner: GraphPartitioner,
    costs: PositionCosts,
    flow: MicroBatchFlow,
    predict_peaks: Callable[[Sequence[int]], tuple[int, ...]],
) -> BalancedCut:
    """Return the stage boundaries with the most even predicted peaks. `predict_peaks(boundaries)` returns the peak of
    every stage.
    """
    stages = len(flow.in_flight)
    positions = cut_positions(partitioner)
    if len(positions) < stages - 1:
        raise CannotSplitModel(
            "its own forward",
            f"the model has too few split positions where gradients can pass: {len(positions)} (a model with "
            f"{stages} stages requires {stages - 1})",
        )
    sums = _CostSums(partitioner, costs, flow)
    differences = [0] * stages
    best: BalancedCut | None = None
    seen: set[tuple[int, ...]] = set()
    for _ in range(MAX_ITERATIONS):
        boundaries = _most_even(sums, positions, stages, differences)
        if boundaries in seen:
            break
        seen.add(boundaries)
        cut = BalancedCut(boundaries, predict_peaks(boundaries))
        if best is None or cut.unevenness < best.unevenness:
            best = cut
        if cut.spread <= EVEN_RATIO:
            break
        differences = [
            peak - sums.cost(stage, boundaries[stage], boundaries[stage + 1])
            for stage, peak in enumerate(cut.peaks)
        ]
    assert best is not None
    return best


def cut_positions(partitioner: GraphPartitioner) -> list[int]:
    """Return the positions at which the graph can be split. If there are more than `MAX_CUT_POSITIONS` positions, only
    the positions at which the fewest bytes must be sent are returned.
    """
    positions = [position for position in range(1, partitioner.graph.length) if partitioner.can_cut(position)]
    if len(positions) > MAX_CUT_POSITIONS:
        positions = sorted(sorted(positions, key=partitioner.bytes_crossing)[:MAX_CUT_POSITIONS])
    return positions


class _CostSums:
    """Computes the memory cost of all graph positions between two stage boundaries, from cumulative sums."""

    def __init__(self, partitioner: GraphPartitioner, costs: PositionCosts, flow: MicroBatchFlow) -> None:
        self.length = length = partitioner.graph.length
        self._saved, self._total, self._temporary = ([0] * (length + 1) for _ in range(3))
        self._repeated: list[
            tuple[int, int, WeightCost]
        ] = []  # position, position of the previous use, tensor
        last_use: dict[int, int] = {}
        for position in range(length):
            first_used = [weight for weight in costs.weights[position] if weight.key not in last_use]
            for weight in costs.weights[position]:
                if weight.key in last_use:
                    self._repeated.append((position, last_use[weight.key], weight))
                last_use[weight.key] = position
            for sums, cost in (
                (self._saved, costs.saved[position]),
                (self._total, sum(weight.total for weight in first_used)),
                (self._temporary, sum(weight.temporary for weight in first_used)),
            ):
                sums[position + 1] = sums[position] + cost
        self._crossing = [partitioner.bytes_crossing(position) for position in range(length)] + [0]
        self._flow = flow

    def cost(self, stage: int, begin: int, end: int) -> int:
        """Return the higher of two peaks: the peak with the most micro-batches in flight, and the peak of the
        optimizer step."""
        repeated = [
            weight for position, previous, weight in self._repeated if previous < begin <= position < end
        ]
        total = self._total[end] - self._total[begin] + sum(weight.total for weight in repeated)
        temporary = (
            self._temporary[end] - self._temporary[begin] + sum(weight.temporary for weight in repeated)
        )
        in_flight = (self._saved[end] - self._saved[begin]) * self._flow.in_flight[stage]
        buffers = (self._crossing[begin] + self._crossing[end]) * self._flow.buffered
        return total + buffers + max(in_flight, temporary)


def _most_even(
    sums: _CostSums, positions: Sequence[int], stages: int, differences: Sequence[int]
) -> tuple[int, ...]:
    """Return the stage boundaries with the most even memory costs. `differences` contains the predicted cost of each
    stage minus the cost computed from `sums`.

    Several target sizes are tried. If only the largest stage were minimized, other stages could stay half empty.
    """
    ends = [*positions, sums.length]
    begins = [0, *positions]
    costs = {
        (stage, begin, end): sums.cost(stage, begin, end) + differences[stage]
        for stage in range(stages)
        for begin in (begins if stage else begins[:1])
        for end in (ends if stage < stages - 1 else ends[-1:])
        if begin < end
    }
    smallest = _minimize(costs, ends, stages, lambda cost: float(max(0, cost)) ** PENALTY_POWER)
    largest = max(_stage_costs(costs, smallest))
    targets = [largest * percent / 100 for percent in range(70, 131, 5)]
    candidates = [
        smallest,
        *(
            _minimize(costs, ends, stages, lambda cost, target=target: (cost - target) ** 2)  # type: ignore[misc]
            for target in targets
        ),
    ]
    return min(candidates, key=lambda cut: BalancedCut(cut, _stage_costs(costs, cut)).unevenness)


def _minimize(
    costs: dict[tuple[int, int, int], int], ends: Sequence[int], stages: int, penalty: Callable[[int], float]
) -> tuple[int, ...]:
    reached: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}  # smallest sum up to each boundary
    for stage in range(stages):
        extended: dict[int, tuple[float, tuple[int, ...]]] = {}
        for end in ends if stage < stages - 1 else ends[-1:]:
            candidates = [
                (before + penalty(costs[stage, begin, end]), (*boundaries, end))
                for begin, (before, boundaries) in reached.items()
                if begin < end
            ]
            if candidates:
                extended[end] = min(candidates)
        reached = extended
    return reached[ends[-1]][1]


def _stage_costs(costs: dict[tuple[int, int, int], int], boundaries: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(
        costs[stage, begin, end] for stage, (begin, end) in enumerate(itertools.pairwise(boundaries))
    )
