"""The interface of the engines that run the passes of a step, and the engines for a single device and for DDP."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from legroom.errors import UsageError
from legroom.scale.loss_weights import LossWeighting
from legroom.scale.world import RankDevices
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.passes import LossFunction, checked_loss
from legroom.train.guarding.scaling import Scaling


class StrategyEngine(Protocol):
    name: str
    model: nn.Module
    """The model to call in loss functions."""
    module: nn.Module
    """The model without its wrapper, with the original parameter names."""
    optimizer: torch.optim.Optimizer | None
    shares: list[float]
    """The batch share of each rank, or a single share if all ranks have the whole batch."""
    batch_device: torch.device | None
    """The device of batches, or None to keep batches on the CPU."""
    is_sharded: bool
    """Whether a rank has only a part of the weights."""

    def backward(
        self, loss_fn: LossFunction, batch: BatchArguments, weighting: LossWeighting, scaling: Scaling
    ) -> torch.Tensor:
        """Run the forward and backward pass, and return the detached loss. The mean of the loss over ranks is the loss
        of the global batch."""

    def evaluate(self, function: Callable[..., Any], batch: BatchArguments) -> Any:
        """Call `function` on the batch with gradients disabled. All ranks must call this method."""

    def norm(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        """Return the total norm of the gradients across all ranks."""


class WrappedModelEngine:
    """An engine whose wrapped model is called directly in the loss function. The engine changes only the weight of the
    loss.
    """

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
        self, loss_fn: LossFunction, batch: BatchArguments, weighting: LossWeighting, scaling: Scaling
    ) -> torch.Tensor:
        wait_for_weight = weighting.begin(batch)
        with scaling.autocast(), _unused_parameters_explained():
            loss = checked_loss(loss_fn(*batch.arguments, **batch.named))
        weight = wait_for_weight()
        weighted = loss if weight == 1.0 else loss * weight
        scaling.scale(weighted).backward()  # type: ignore[no-untyped-call]
        return weighted.detach()

    def evaluate(self, function: Callable[..., Any], batch: BatchArguments) -> Any:
        with torch.no_grad():
            return function(*batch.arguments, **batch.named)

    def norm(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        total: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return total


@contextmanager
def _unused_parameters_explained() -> Iterator[None]:
    """Replace DDP's error about unused parameters with a message that explains the fix. DDP raises the error one step
    after the step in which the parameters were unused.
    """
    try:
        yield
    except RuntimeError as error:
        if "Expected to have finished reduction in the prior iteration" not in str(error):
            raise
        raise UsageError(
            "The previous step left parameters without a gradient, and DDP waits for all gradients. Pass one batch to "
            "legroom.parallel(..., batch=(x, y)), so that Legroom detects these parameters. Otherwise, pass "
            "find_unused_parameters=True, or freeze them with requires_grad_(False)."
        ) from error


def single_device_engine(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, devices: RankDevices
) -> WrappedModelEngine:
    model.to(devices.device)
    return WrappedModelEngine("single", model, model, optimizer, batch_device=devices.device)


def ddp_engine(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    devices: RankDevices,
    *,
    shares: list[float],
    has_unused: bool = False,
    may_change: bool = False,
    static_graph: bool | None = None,
    find_unused_parameters: bool | None = None,
) -> WrappedModelEngine:
    """Return the DDP engine. Gradients are views of DDP's buckets, so there is only one copy of the gradients.

    `has_unused` means that a step leaves some parameters without a gradient. DDP must know these parameters, because it
    would otherwise wait for their gradients indefinitely. `may_change` means that these parameters may differ between
    steps, so DDP must search for them in each step. A trace of one step determines both options.
    """
    model.to(devices.device)
    if find_unused_parameters is not None:
        has_unused, may_change = find_unused_parameters, True
    static = (has_unused and not may_change) if static_graph is None else static_graph
    wrapped = DistributedDataParallel(
        model,
        device_ids=[devices.device] if devices.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=static,
        find_unused_parameters=has_unused and not static,
    )
    return WrappedModelEngine("ddp", wrapped, model, optimizer, shares=shares, batch_device=devices.device)
