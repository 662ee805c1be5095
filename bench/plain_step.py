"""A training step as a loop without a guard takes it, for what Legroom is compared with.

Apart from the functions that are searched: those are loaded by their file and import nothing beside it.
"""

from collections.abc import Callable

import torch
from torch import nn

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[LossFunction, torch.Tensor, torch.Tensor], None]:
    def step(loss_fn: LossFunction, x: torch.Tensor, y: torch.Tensor) -> None:
        loss_fn(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
