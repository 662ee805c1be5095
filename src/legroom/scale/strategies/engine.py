"""What a strategy makes of a model: an engine that does the passes of one step, whatever lies behind it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from legroom.scale.loss_weights import Weighing
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.passes import LossFunction, checked_loss
from legroom.train.guarding.scaling import Scaling


class Engine(Protocol):
    """A model and its optimizer, placed and wrapped."""

    name: str
    model: nn.Module
    """What a loss function calls."""
    module: nn.Module
    """The same without its wrapper: the names of its parameters are the original ones."""
    optimizer: torch.optim.Optimizer | None
    shares: list[float]
    """Of rows, one per rank where ranks have rows of their own; else one alone: all ranks see every batch whole."""
    batch_device: torch.device | None
    """Where batches go; None: they stay on the host."""
    is_sharded: bool
    """Whether a rank holds only a part of the weights."""

    def backward(
        self, loss_fn: LossFunction, batch: BatchArguments, weighing: Weighing, scaling: Scaling
    ) -> torch.Tensor:
        """Forward and backward; the loss, detached: its mean over ranks is the whole batch's."""

    def evaluate(self, function: Callable[..., Any], batch: BatchArguments) -> Any:
        """`function` of the batch without gradients, on every rank."""

    def norm(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        """Of all gradients, over all ranks."""


class Direct:
    """An engine whose model is called as any other: the loss function runs whole, its loss is weighed, and that is all."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        shares: Sequence[float] = (1.0,),
        batch_device: torch.device | None,
        is_sharded: bool = False,
    ) -> None:
        self.name, self.model, self.module, self.optimizer = name, model, module, optimizer
        self.shares, self.batch_device, self.is_sharded = list(shares), batch_device, is_sharded

    def backward(
        self, loss_fn: LossFunction, batch: BatchArguments, weighing: Weighing, scaling: Scaling
    ) -> torch.Tensor:
        told = weighing.begin(batch)
        with scaling.autocast():
            loss = checked_loss(loss_fn(*batch.arguments, **batch.named))
        weight = told()
        weighed = loss if weight == 1.0 else loss * weight
        scaling.scale(weighed).backward()  # type: ignore[no-untyped-call]
        return weighed.detach()

    def evaluate(self, function: Callable[..., Any], batch: BatchArguments) -> Any:
        with torch.no_grad():
            return function(*batch.arguments, **batch.named)

    def norm(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole
