"""A training step without a guard, for the systems that Legroom is compared with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Step = Callable[[LossFunction, torch.Tensor, torch.Tensor], Any]


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(loss_fn: LossFunction, x: torch.Tensor, y: torch.Tensor) -> None:
        loss_fn(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
