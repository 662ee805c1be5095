"""From a model and a batch to a cut: the score, its costs, and the balance of its stages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from legroom.scale.cutting.balance import Balance, Traffic, balanced
from legroom.scale.cutting.cut_points import Cut, cut_at
from legroom.scale.cutting.forward_graph import record
from legroom.scale.cutting.stage_memory import costs, inputs_of, stage_step, traffic
from legroom.scale.cutting.stages import Part, Sheet
from legroom.scale.prediction.step_trace import Likeness, foreseen
from legroom.scale.prediction.strategy_steps import split_step
from legroom.scale.strategies.split import homes_of_parts
from legroom.train.guarding.batches.splitting import BatchArguments

T = TypeVar("T")


def plan_split(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, batch: Any, devices: int, like: Likeness
) -> tuple[dict[str, int], Balance]:
    """Which of the devices each tensor of the model goes to, and what each device needs: the same cut, one batch at a time."""
    score = record(model, *inputs_of(batch))
    sheet = Sheet(score)

    def rehearsed(boundaries: Sequence[int]) -> tuple[int, ...]:
        homes = homes_of_parts(model, sheet.parts(boundaries))
        told = foreseen(like, devices, split_step(model, optimizer, batch, devices, homes))
        return tuple(peaks.allocated for peaks in told.peaks)

    flow = Traffic((1,) * devices, 1)
    found = balanced(sheet, costs(model, optimizer, sheet, batch, like), flow, rehearsed)
    return homes_of_parts(model, sheet.parts(found.boundaries)), found


class Among:
    """Who plans: here one process, which does everything."""

    def agreed(self, function: Callable[[], T]) -> T:
        """What all take for the result of `function()`."""
        return function()

    def each(self, function: Callable[[int], T], stages: int) -> tuple[T, ...]:
        """`function(stage)` for every stage."""
        return tuple(map(function, range(stages)))


class AmongRanks(Among):
    """One rank per stage: the first one's word counts, and each looks after its own stage."""

    def agreed(self, function: Callable[[], T]) -> T:
        told: list[Any] = [function() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
        return told[0]  # type: ignore[no-any-return]

    def each(self, function: Callable[[int], T], stages: int) -> tuple[T, ...]:
        told: list[Any] = [None] * stages
        dist.all_gather_object(told, function(dist.get_rank()))
        return tuple(told)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a model is cut for a pipeline, and what each stage needs."""

    cut: Cut
    parts: tuple[Part, ...]
    balance: Balance
    micro_batches: int


def plan_pipeline(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: Any,
    stages: int,
    like: Likeness,
    *,
    schedule: str,
    micro_batches: int | None,
    among: Among | None = None,
) -> Plan:
    """`batch`: one of the whole run; it is cut into micro-batches here as it will be in a step.

    `among`: ranks that plan together, each rehearsing its own stage.
    """
    rows = BatchArguments((batch,), {}).batch_size
    count = min(rows, micro_batches or 4 * stages)
    (micro,), _ = BatchArguments((batch,), {}).slice(0, -(-rows // count))
    score = record(model, *inputs_of(micro))
    sheet = Sheet(score)
    flow = traffic(schedule, stages, rows // -(-rows // count))

    def rehearsed(boundaries: Sequence[int]) -> tuple[int, ...]:
        parts = sheet.parts(boundaries)

        def peak(stage: int) -> int:
            step = stage_step(model, optimizer, score, parts, stage, flow, micro)
            return foreseen(like, 1, step).peaks[0].allocated

        return together.each(peak, stages)

    together = among or Among()
    told = together.agreed(lambda: costs(model, optimizer, sheet, micro, like))
    found = balanced(sheet, told, flow, rehearsed)
    return Plan(cut_at(score, found.boundaries), tuple(sheet.parts(found.boundaries)), found, count)
