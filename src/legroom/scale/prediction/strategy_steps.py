"""A step under each strategy, as it is traced to foresee its memory: what the engine holds besides the model is there too."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from legroom.predict.tracing.copying import DeviceCopies, loss_of
from legroom.scale.prediction.step_trace import MakeStep
from legroom.scale.strategies.data_parallel import UnevenDataParallel
from legroom.scale.strategies.split import SplitModel
from legroom.units import MiB

BUCKET = 25 * MiB
"""How much DDP sends at once."""

Optimizer = torch.optim.Optimizer | None


def plain_step(model: nn.Module, optimizer: Optimizer, batch: Any) -> MakeStep:
    """One device, nothing around the model."""
    return lambda onto: _step(*_placed(onto, model, optimizer, batch))


def idle_step(model: nn.Module, optimizer: Optimizer) -> MakeStep:
    """No batch: gradients are there, and the optimizer takes its step."""

    def make(onto: DeviceCopies) -> Callable[[], None]:
        placed, steps, _ = _placed(onto, model, optimizer, None)

        def step() -> None:
            for parameter in placed.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
            steps.step()
            steps.zero_grad()

        return step

    return make


def bucketed_step(model: nn.Module, optimizer: Optimizer, batch: Any, *, nccl: bool) -> MakeStep:
    """DDP: gradients live in buckets from the start of the run on, each being a view into one.

    After the first step DDP makes its buckets anew, in the order in which gradients came. `nccl`: the old ones live on until something is
    sent again, which is after the second step's forward pass: on an H200 a second set was held at that peak, and none by a
    run that never made buckets anew.
    """

    def make(onto: DeviceCopies) -> Callable[[], None]:
        placed, steps, given = _placed(onto, model, optimizer, batch)
        trained = [parameter for parameter in placed.parameters() if parameter.requires_grad]
        views = _views(trained)
        old: list[dict[int, torch.Tensor]] = []

        def into_bucket(parameter: torch.Tensor) -> None:
            old.clear()
            view = views[id(parameter)]
            if parameter.grad is not view:
                parameter.grad = view

        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(into_bucket)  # type: ignore[no-untyped-call]
        plain = _step(placed, steps, given)
        taken = 0

        def step() -> None:
            nonlocal views, taken
            if taken == 1:
                if nccl:
                    old.append(views)
                views = _views(trained)
            taken += 1
            plain()

        return step

    return make


def replicated_step(
    model: nn.Module, optimizer: Optimizer, batch: Any, devices: int, shares: Sequence[float]
) -> MakeStep:
    """DataParallel over several devices of one process."""

    def make(onto: DeviceCopies) -> Callable[[], None]:
        placed, steps, given = _placed(onto, model, optimizer, batch)
        wrapped = UnevenDataParallel(
            placed, [torch.device("cuda", index) for index in range(devices)], list(shares)
        )
        return _step(wrapped, steps, given)

    return make


def split_step(
    model: nn.Module, optimizer: Optimizer, batch: Any, devices: int, homes: dict[str, int]
) -> MakeStep:
    """One process, layers on several devices."""

    def make(onto: DeviceCopies) -> Callable[[], None]:
        placed, placed_optimizer, given = onto.copied((model, optimizer, batch))
        wrapped = SplitModel(placed, [torch.device("cuda", index) for index in range(devices)], homes)
        return _step(wrapped, optimizer_for(placed, placed_optimizer), given)

    return make


def optimizer_for(model: nn.Module, given: Optimizer) -> torch.optim.Optimizer:
    """The run's own; without one, what most people take."""
    if given is not None:
        return given
    return torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)


def _placed(
    onto: DeviceCopies, model: nn.Module, optimizer: Optimizer, batch: Any
) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    placed, placed_optimizer, given = onto.copied((model, optimizer, batch))
    return placed, optimizer_for(placed, placed_optimizer), given


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Callable[[], None]:
    def step() -> None:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _views(parameters: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """A place in a bucket for every gradient, the last layers' first, as DDP fills them."""
    found: dict[int, torch.Tensor] = {}
    waiting: list[torch.Tensor] = []

    def fill() -> None:
        sizes = [parameter.numel() for parameter in waiting]
        if sizes:
            bucket = torch.empty(sum(sizes), dtype=waiting[0].dtype, device="cuda")
            for parameter, piece in zip(waiting, torch.split(bucket, sizes), strict=True):
                found[id(parameter)] = piece.view(parameter.shape)
            waiting.clear()

    for parameter in reversed(parameters):
        if waiting and waiting[0].dtype != parameter.dtype:
            fill()
        waiting.append(parameter)
        if sum(each.numel() * each.element_size() for each in waiting) >= BUCKET:
            fill()
    fill()
    return found
