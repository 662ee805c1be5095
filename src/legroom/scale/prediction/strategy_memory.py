"""Predicts the memory of each strategy on the GPU with the highest memory use. Without a batch, the prediction includes
only weights, gradients and optimizer state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legroom.predict.requests import ReplayPeaks
from legroom.predict.tracing.copying import DeviceCopies, loss_of
from legroom.scale.cutting.planning import PipelinePlan
from legroom.scale.prediction.step_trace import DeviceModel, StepPrediction, outside_virtual_gpu, predict_step
from legroom.scale.prediction.strategy_steps import (
    ddp_step,
    dp_step,
    optimizer_only_step,
    single_device_step,
)
from legroom.scale.shares import shares_by_memory, split_by_shares
from legroom.scale.strategies.sharded import wrapping
from legroom.train.guarding.batches.splitting import BatchArguments

SAFE_FRACTION = 0.97
COORDINATOR_ITERATIONS = 4


@dataclass(frozen=True, slots=True)
class StrategyPrediction:
    """The prediction for one strategy on the GPU with the highest memory use."""

    strategy: str
    peak: int
    capacity: int
    reason: str = ""
    """The reason why there is no prediction, or ""."""

    @property
    def fits(self) -> bool:
        return 0 < self.peak <= self.capacity * SAFE_FRACTION


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The inputs of a prediction: a model, its optimizer, a batch and the GPUs."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    batch: Any
    capacities: tuple[int, ...]
    """The bytes that PyTorch can use on each GPU."""
    device: DeviceModel

    def batch_sizes(self, shares: Sequence[float]) -> list[int]:
        batch_size = BatchArguments((self.batch,), {}).batch_size
        return [max(1, count) for count in split_by_shares(batch_size, shares)]

    def slice(self, batch_size: int) -> Any:
        (part,), _ = BatchArguments((self.batch,), {}).slice(0, batch_size)
        return part


def fair_shares(setup: TrainingSetup) -> list[float]:
    """Return batch shares in proportion to the memory that weights, gradients and optimizer state leave free."""
    if setup.batch is None or len(set(setup.capacities)) == 1:
        return shares_by_memory(setup.capacities)
    batch_size = BatchArguments((setup.batch,), {}).batch_size
    if batch_size == 1:
        return shares_by_memory(setup.capacities)
    peak = ddp_peaks(setup, batch_size).reserved
    per_sample = (peak - ddp_peaks(setup, 1).reserved) / (batch_size - 1)
    fixed = peak - per_sample * batch_size
    return shares_by_memory([capacity - fixed for capacity in setup.capacities])


def ddp(setup: TrainingSetup, shares: Sequence[float]) -> StrategyPrediction:
    if setup.batch is None:
        prediction = predict_step(setup.device, 1, optimizer_only_step(setup.model, setup.optimizer))
        return StrategyPrediction("ddp", prediction.peaks[0].reserved, min(setup.capacities))
    sizes = setup.batch_sizes(shares)
    peaks = {size: ddp_peaks(setup, size).reserved for size in set(sizes)}
    size, capacity = max(zip(sizes, setup.capacities, strict=True), key=lambda each: peaks[each[0]] / each[1])
    return StrategyPrediction("ddp", peaks[size], capacity)


def fsdp(setup: TrainingSetup, shares: Sequence[float], *, offload: bool = False) -> StrategyPrediction:
    """Predict the memory of FSDP2: the sharded model state, plus the weights of the largest gathered module."""
    batch_size = max(setup.batch_sizes(shares)) if setup.batch is not None else 0
    ranks = 0 if offload else len(setup.capacities)
    (peak,) = single_device(setup, batch_size, sharded_over=(ranks,)).sharded_peaks
    return StrategyPrediction(
        "fsdp, offloaded" if offload else "fsdp",
        peak + wrapping(setup.model).largest,
        min(setup.capacities),
    )


def unused_parameters(setup: TrainingSetup) -> tuple[bool, bool]:
    """Return whether a step leaves parameters without a gradient, and whether the set of these parameters may depend on
    the data.
    """
    has_unused: list[bool] = []

    def make_step(onto: DeviceCopies) -> Callable[[], None]:
        model, batch = onto.copied((setup.model, setup.slice(1)))

        def step() -> None:
            loss_of(model, batch).backward()
            has_unused.append(any(each.requires_grad and each.grad is None for each in model.parameters()))

        return step

    def trace() -> tuple[bool, bool]:
        prediction = predict_step(setup.device, 1, make_step, steps=1)
        return has_unused[0], prediction.reads_values

    return outside_virtual_gpu(trace)


def single_device(
    setup: TrainingSetup, batch_size: int, *, sharded_over: Sequence[int] = ()
) -> StepPrediction:
    """Predict a step on a single GPU. Without a batch, predict only an optimizer step."""
    step = (
        single_device_step(setup.model, setup.optimizer, setup.slice(batch_size))
        if batch_size
        else optimizer_only_step(setup.model, setup.optimizer)
    )
    return predict_step(setup.device, 1, step, sharded_over=sharded_over)


def pipeline(plan: PipelinePlan, capacities: Sequence[int]) -> StrategyPrediction:
    return StrategyPrediction("pipeline", max(plan.balance.peaks), min(capacities))


def ddp_peaks(setup: TrainingSetup, batch_size: int) -> ReplayPeaks:
    step = ddp_step(setup.model, setup.optimizer, setup.slice(batch_size), nccl=setup.device.kernels)
    return predict_step(setup.device, 1, step).peaks[0]


def coordinator_shares(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: Any,
    devices: int,
    device_model: DeviceModel,
) -> tuple[list[float], list[int]]:
    """Return the number of samples and the predicted peak of each DataParallel device, coordinator first.

    The coordinator gets as many samples as possible without using more memory than the average of the other devices. If
    the coordinator uses more memory than the average with every number of samples, it gets the number of samples with
    the lowest peak. Memory grows linearly with the samples, so the search interpolates between the smallest and the
    largest share.
    """
    batch_size = BatchArguments((batch,), {}).batch_size
    tried: dict[int, tuple[list[int], float]] = {}

    def excess(coordinator: int) -> float:
        """Return by how many bytes the coordinator's peak exceeds the average peak of the other devices."""
        if coordinator not in tried:
            shares = _dp_shares(batch_size, coordinator, devices)
            prediction = predict_step(
                device_model, devices, dp_step(model, optimizer, batch, devices, shares)
            )
            peaks = [peak.allocated for peak in prediction.peaks]
            tried[coordinator] = (peaks, peaks[0] - sum(peaks[1:]) / (devices - 1))
        return tried[coordinator][1]

    low, high = 0, batch_size // devices
    if excess(high) > 0 and excess(low) < 0:
        for _ in range(COORDINATOR_ITERATIONS):
            zero = low + (high - low) * -excess(low) / (excess(high) - excess(low))
            middle = min(max(round(zero), low + 1), high - 1)
            if high - low <= 1:
                break
            low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    suitable = [samples for samples, (_, more) in tried.items() if more <= 0]
    chosen = max(suitable) if suitable else min(tried, key=lambda samples: (max(tried[samples][0]), -samples))
    return _dp_shares(batch_size, chosen, devices), tried[chosen][0]


def _dp_shares(batch_size: int, coordinator: int, devices: int) -> list[float]:
    return [coordinator, *[(batch_size - coordinator) / (devices - 1)] * (devices - 1)]
