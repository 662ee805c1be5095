"""What each strategy would need on the fullest GPU, foreseen from a batch; without one, from the weights alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legroom.predict.requests import ReplayPeaks
from legroom.predict.tracing.copying import DeviceCopies, loss_of
from legroom.scale.cutting.planning import Plan
from legroom.scale.prediction.step_trace import Foreseen, Likeness, foreseen, undisturbed
from legroom.scale.prediction.strategy_steps import bucketed_step, idle_step, plain_step
from legroom.scale.shares import divided, shares_of_room
from legroom.scale.strategies.sharded import wrapping
from legroom.train.guarding.batches.splitting import BatchArguments

SAFE = 0.97
"""Of a GPU's room: what may be planned for."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """One strategy on the GPU it fills most."""

    strategy: str
    peak: int
    """Bytes; 0 if it was not looked at."""
    room: int
    why_not: str = ""

    @property
    def fits(self) -> bool:
        return 0 < self.peak <= self.room * SAFE


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be run, and on how many GPUs."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    batch: Any
    """Of the whole run, or None."""
    rooms: tuple[int, ...]
    """Bytes for PyTorch on each GPU."""
    like: Likeness

    def rows(self, shares: Sequence[float]) -> list[int]:
        """Of the batch, those of each GPU, one at least."""
        return [max(1, count) for count in divided(BatchArguments((self.batch,), {}).batch_size, shares)]

    def portion(self, rows: int) -> Any:
        (piece,), _ = BatchArguments((self.batch,), {}).slice(0, rows)
        return piece


def fair_shares(job: Job) -> list[float]:
    """Rows in the ratio of what each GPU has left when weights, gradients and optimizer state are there."""
    if job.batch is None or len(set(job.rooms)) == 1:
        return shares_of_room(job.rooms)
    some, one = BatchArguments((job.batch,), {}).batch_size, 1
    if some == one:
        return shares_of_room(job.rooms)
    many = ddp_peaks(job, some).reserved
    each_row = (many - ddp_peaks(job, one).reserved) / (some - one)
    fixed = many - each_row * some
    return shares_of_room([room - fixed for room in job.rooms])


def ddp(job: Job, shares: Sequence[float]) -> Forecast:
    if job.batch is None:
        told = foreseen(job.like, 1, idle_step(job.model, job.optimizer))
        return Forecast("ddp", told.peaks[0].reserved, min(job.rooms))
    needs = {rows: ddp_peaks(job, rows).reserved for rows in set(job.rows(shares))}
    fullest = max(zip(job.rows(shares), job.rooms, strict=True), key=lambda each: needs[each[0]] / each[1])
    return Forecast("ddp", needs[fullest[0]], fullest[1])


def fsdp(job: Job, shares: Sequence[float], *, offload: bool = False) -> Forecast:
    """What is kept is divided, at each time as much as there is then; beside it the module at work has its weights whole."""
    rows = max(job.rows(shares)) if job.batch is not None else 0
    (peak,) = plain(job, rows, divided_among=(0 if offload else len(job.rooms),)).if_divided
    return Forecast(
        "fsdp, offloaded" if offload else "fsdp", peak + wrapping(job.model).largest, min(job.rooms)
    )


def unused_parameters(job: Job) -> tuple[bool, bool]:
    """Whether a step leaves parameters without gradient, and whether which ones may change with the data."""
    found: list[bool] = []

    def step_and_look(onto: DeviceCopies) -> Callable[[], None]:
        placed, given = onto.copied((job.model, job.portion(1)))

        def step() -> None:
            loss_of(placed, given).backward()
            found.append(any(each.requires_grad and each.grad is None for each in placed.parameters()))

        return step

    def look() -> tuple[bool, bool]:
        told = foreseen(job.like, 1, step_and_look, steps=1)
        return found[0], told.looked_at_values

    return undisturbed(look)


def plain(job: Job, rows: int, *, divided_among: Sequence[int] = ()) -> Foreseen:
    """A step of one GPU by itself; without a batch, an optimizer's step alone."""
    step = (
        plain_step(job.model, job.optimizer, job.portion(rows))
        if rows
        else idle_step(job.model, job.optimizer)
    )
    return foreseen(job.like, 1, step, divided_among=divided_among)


def pipeline(plan: Plan, rooms: Sequence[int]) -> Forecast:
    return Forecast("pipeline", max(plan.balance.peaks), min(rooms))


def ddp_peaks(job: Job, rows: int) -> ReplayPeaks:
    """Of a rank that has so many rows."""
    return foreseen(
        job.like, 1, bucketed_step(job.model, job.optimizer, job.portion(rows), nccl=job.like.kernels)
    ).peaks[0]
