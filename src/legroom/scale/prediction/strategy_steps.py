"""Builds a step for each strategy. The step is traced to predict the memory of the strategy. The step includes the
memory that the engine allocates in addition to the model.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from legroom.predict.tracing.copying import DeviceCopies, loss_of
from legroom.scale.prediction.step_trace import MakeStep
from legroom.scale.strategies.data_parallel import UnevenDataParallel
from legroom.scale.strategies.split import SplitModel
from legroom.units import MiB

BUCKET_BYTES = 25 * MiB

Optimizer = torch.optim.Optimizer | None


def single_device_step(model: nn.Module, optimizer: Optimizer, batch: Any) -> MakeStep:
    return lambda onto: _step(*_copied(onto, model, optimizer, batch))


def optimizer_only_step(model: nn.Module, optimizer: Optimizer) -> MakeStep:
    """Return a step that creates gradients and runs the optimizer, without a forward or backward pass."""

    def make(onto: DeviceCopies) -> Callable[[], None]:
        copied, copied_optimizer, _ = _copied(onto, model, optimizer, None)

        def step() -> None:
            for parameter in copied.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
            copied_optimizer.step()
            copied_optimizer.zero_grad()

        return step

    return make


def ddp_step(model: nn.Module, optimizer: Optimizer, batch: Any, *, nccl: bool) -> MakeStep:
    """Return a DDP step. Gradients are views of buckets, which exist from the start of the run.

    After the first step, DDP rebuilds its buckets in the order of the gradients. With `nccl`, the old buckets stay
    alive until the next collective, which follows the forward pass of the second step. Measurements on an H200 confirm
    that the peak of the second step includes both sets of buckets. If DDP does not rebuild the buckets, the peak
    includes only one set.
    """

    def make(onto: DeviceCopies) -> Callable[[], None]:
        copied, copied_optimizer, copied_batch = _copied(onto, model, optimizer, batch)
        trainable = [parameter for parameter in copied.parameters() if parameter.requires_grad]
        views = _bucket_views(trainable)
        old: list[dict[int, torch.Tensor]] = []

        def into_bucket(parameter: torch.Tensor) -> None:
            old.clear()
            view = views[id(parameter)]
            if parameter.grad is not view:
                parameter.grad = view

        for parameter in trainable:
            parameter.register_post_accumulate_grad_hook(into_bucket)  # type: ignore[no-untyped-call]
        single_step = _step(copied, copied_optimizer, copied_batch)
        steps = 0

        def step() -> None:
            nonlocal views, steps
            if steps == 1:
                if nccl:
                    old.append(views)
                views = _bucket_views(trainable)
            steps += 1
            single_step()

        return step

    return make


def dp_step(
    model: nn.Module, optimizer: Optimizer, batch: Any, devices: int, shares: Sequence[float]
) -> MakeStep:
    def make(onto: DeviceCopies) -> Callable[[], None]:
        copied, copied_optimizer, copied_batch = _copied(onto, model, optimizer, batch)
        wrapped = UnevenDataParallel(
            copied, [torch.device("cuda", index) for index in range(devices)], list(shares)
        )
        return _step(wrapped, copied_optimizer, copied_batch)

    return make


def split_step(
    model: nn.Module, optimizer: Optimizer, batch: Any, devices: int, placement: dict[str, int]
) -> MakeStep:
    """Return a step with the layers on several devices in one process."""

    def make(onto: DeviceCopies) -> Callable[[], None]:
        copied, copied_optimizer, copied_batch = onto.copied((model, optimizer, batch))
        wrapped = SplitModel(copied, [torch.device("cuda", index) for index in range(devices)], placement)
        return _step(wrapped, optimizer_for(copied, copied_optimizer), copied_batch)

    return make


def optimizer_for(model: nn.Module, given: Optimizer) -> torch.optim.Optimizer:
    if given is not None:
        return given
    return torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)


def _copied(
    onto: DeviceCopies, model: nn.Module, optimizer: Optimizer, batch: Any
) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    copied, copied_optimizer, copied_batch = onto.copied((model, optimizer, batch))
    return copied, optimizer_for(copied, copied_optimizer), copied_batch


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Callable[[], None]:
    def step() -> None:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _bucket_views(parameters: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the gradient of each parameter as a view of a bucket, last layers first, as in DDP."""
    views: dict[int, torch.Tensor] = {}
    pending: list[torch.Tensor] = []

    def fill() -> None:
        sizes = [parameter.numel() for parameter in pending]
        if sizes:
            bucket = torch.empty(sum(sizes), dtype=pending[0].dtype, device="cuda")
            for parameter, part in zip(pending, torch.split(bucket, sizes), strict=True):
                views[id(parameter)] = part.view(parameter.shape)
            pending.clear()

    for parameter in reversed(parameters):
        if pending and pending[0].dtype != parameter.dtype:
            fill()
        pending.append(parameter)
        if sum(each.numel() * each.element_size() for each in pending) >= BUCKET_BYTES:
            fill()
    fill()
    return views
