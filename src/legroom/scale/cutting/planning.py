"""Plans how a model is split across devices: records the forward graph, traces its costs, and balances the stages."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from legroom.scale.cutting.balance import BalancedCut, MicroBatchFlow, balance_stages
from legroom.scale.cutting.forward_graph import CannotSplitModel, ForwardGraph, record_forward
from legroom.scale.cutting.stage_memory import micro_batch_flow, model_inputs, position_costs, stage_step
from legroom.scale.cutting.stages import GraphPartitioner, StageProgram
from legroom.scale.prediction.step_trace import DeviceModel, predict_step
from legroom.scale.prediction.strategy_steps import split_step
from legroom.scale.strategies.split import placement_of_stages
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.ranks.rank_errors import PeerFailed
from legroom.train.ranks.waiting import waiting

T = TypeVar("T")


def plan_split(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: Any,
    devices: int,
    device_model: DeviceModel,
) -> tuple[dict[str, int], BalancedCut]:
    """Plan strategy `split`. Return the device index of each tensor, and the balanced split."""
    partitioner = GraphPartitioner(record_forward(model, *model_inputs(batch)))

    def predict_peaks(boundaries: Sequence[int]) -> tuple[int, ...]:
        placement = placement_of_stages(model, partitioner.programs(boundaries))
        step = split_step(model, optimizer, batch, devices, placement)
        return tuple(peaks.allocated for peaks in predict_step(device_model, devices, step).peaks)

    flow = MicroBatchFlow((1,) * devices, 1)
    costs = position_costs(model, optimizer, partitioner, batch, device_model)
    cut = balance_stages(partitioner, costs, flow, predict_peaks)
    return placement_of_stages(model, partitioner.programs(cut.boundaries)), cut


class LocalPlanning:
    def broadcast(self, function: Callable[[], T]) -> T:
        """Return the result of `function()` on the first rank."""
        return function()

    def per_stage(self, function: Callable[[int], T], stages: int) -> tuple[T, ...]:
        return tuple(map(function, range(stages)))


class DistributedPlanning(LocalPlanning):
    """Plans on several ranks. Each rank predicts the memory of its own stage."""

    def broadcast(self, function: Callable[[], T]) -> T:
        return _on_all_ranks(lambda: function() if dist.get_rank() == 0 else None)[0]  # type: ignore[return-value]

    def per_stage(self, function: Callable[[int], T], stages: int) -> tuple[T, ...]:
        return tuple(_on_all_ranks(lambda: function(dist.get_rank())))


def _on_all_ranks(function: Callable[[], T]) -> list[T]:
    """Return the results of `function()` on all ranks. If the function fails on one rank, all ranks raise an error,
    because a rank that continues would wait for the failed rank.
    """
    result: Any = None
    failure: Exception | None = None
    try:
        result = function()
    except Exception as error:
        failure = error
    shared = failure
    if failure is not None and not isinstance(failure, CannotSplitModel):
        shared = PeerFailed(
            f"Rank {dist.get_rank()} could not predict the step: {type(failure).__name__}: {failure}"
        )
    results: list[Any] = [None] * dist.get_world_size()
    with waiting("legroom.parallel()"):
        dist.all_gather_object(results, (shared, result))
    if failure is not None:
        raise failure
    for other, _ in results:
        if other is not None:
            raise other
    return [result for _, result in results]


@dataclass(frozen=True, slots=True)
class ModelCut:
    """The boundaries at which a model is split into stages. The boundaries apply to every forward graph of the model,
    for any batch size, in training and in evaluation mode.
    """

    boundaries: tuple[int, ...]
    signature: tuple[str, ...]
    is_layer: tuple[bool, ...]

    @property
    def stages(self) -> int:
        return len(self.boundaries) - 1

    def on(self, graph: ForwardGraph) -> tuple[int, ...]:
        """Return the stage boundaries in another forward graph of the same model. In both graphs, a boundary comes
        after the same layer and the same number of operations after that layer.
        """
        if tuple(graph.signature()) == self.signature:
            return self.boundaries
        is_layer = [node.is_module for node in graph.leaves()]
        if sum(is_layer) != sum(self.is_layer):
            raise CannotSplitModel(
                "its own forward",
                f"the number of layer calls in the forward pass changed from {sum(self.is_layer)} to {sum(is_layer)} after "
                "the model was split",
            )
        inner = [self._position(boundary, is_layer) for boundary in self.boundaries[1:-1]]
        return (0, *inner, graph.length)

    def _position(self, boundary: int, is_layer: Sequence[bool]) -> int:
        layers_before = sum(self.is_layer[:boundary])
        operations = sum(
            1 for _ in itertools.takewhile(lambda layer: not layer, reversed(self.is_layer[:boundary]))
        )
        positions = [position for position, layer in enumerate(is_layer) if layer]
        start = positions[layers_before - 1] + 1 if layers_before else 0
        stop = positions[layers_before] if layers_before < len(positions) else len(is_layer)
        return min(start + operations, stop)


def cut_at(graph: ForwardGraph, boundaries: Sequence[int]) -> ModelCut:
    return ModelCut(
        tuple(boundaries), tuple(graph.signature()), tuple(node.is_module for node in graph.leaves())
    )


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """The stages of a pipeline, and their predicted memory."""

    cut: ModelCut
    programs: tuple[StageProgram, ...]
    balance: BalancedCut
    micro_batches: int


def plan_pipeline(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: Any,
    stages: int,
    device_model: DeviceModel,
    *,
    schedule: str,
    micro_batches: int | None,
    planning: LocalPlanning | None = None,
) -> PipelinePlan:
    """Plan strategy `pipeline`. `batch` is a global batch, which is split into micro-batches.

    `planning` is a `DistributedPlanning` if several ranks plan together.
    """
    planning = planning or LocalPlanning()
    arguments = BatchArguments((batch,), {})
    count = min(arguments.batch_size, micro_batches or 4 * stages)
    micro_size = -(-arguments.batch_size // count)
    (micro,), _ = arguments.slice(0, micro_size)
    graph = record_forward(model, *model_inputs(micro))
    partitioner = GraphPartitioner(graph)
    flow = micro_batch_flow(schedule, stages, arguments.batch_size // micro_size)

    def predict_peaks(boundaries: Sequence[int]) -> tuple[int, ...]:
        programs = partitioner.programs(boundaries)

        def predict_peak(stage: int) -> int:
            step = stage_step(model, optimizer, graph, programs, stage, flow, micro)
            return predict_step(device_model, 1, step).peaks[0].allocated

        return planning.per_stage(predict_peak, stages)

    costs = planning.broadcast(lambda: position_costs(model, optimizer, partitioner, micro, device_model))
    cut = balance_stages(partitioner, costs, flow, predict_peaks)
    programs = tuple(partitioner.programs(cut.boundaries))
    return PipelinePlan(cut_at(graph, cut.boundaries), programs, cut, count)
