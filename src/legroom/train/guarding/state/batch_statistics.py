"""Updates the running statistics of batch normalization as if the batch had not been split.

Each micro-batch is still normalized with its own mean and variance. The running statistics, which are used in
evaluation, are updated once per batch with the mean and variance of all samples.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(slots=True)
class _Sums:
    """Sums over all inputs of a normalization layer in one batch, in double precision."""

    running_before: list[torch.Tensor]
    momentum: float | None
    batches: int
    samples: int = 0
    sums: torch.Tensor | None = field(default=None)
    squares: torch.Tensor | None = field(default=None)


@contextlib.contextmanager
def whole_batch_statistics(model: nn.Module) -> Iterator[None]:
    """Run the micro-batches of one batch inside this block. At the end of the block, the running statistics of batch
    normalization are updated for the whole batch.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    ]
    sums = {layer: _begin(layer) for layer in layers}

    def add(layer: Any, inputs: Any, _output: Any) -> None:
        if layer.momentum:  # 0 during the recomputation of activation checkpointing
            _add(sums[layer], layer, inputs[0])

    handles = [layer.register_forward_hook(add) for layer in layers]
    for layer in layers:
        layer.momentum = 1.0  # the running statistics become those of the micro-batch
    try:
        yield
        for layer in layers:
            _finish(sums[layer], layer)
    finally:
        for handle in handles:
            handle.remove()
        for layer in layers:
            layer.momentum = sums[layer].momentum


def _begin(layer: Any) -> _Sums:
    running = [layer.running_mean.clone(), layer.running_var.clone()]
    batches = 0 if layer.num_batches_tracked is None else int(layer.num_batches_tracked)
    return _Sums(running, layer.momentum, batches)


@torch.no_grad()
def _add(total: _Sums, layer: Any, values: torch.Tensor) -> None:
    samples = values.numel() // values.shape[1]
    mean, variance = layer.running_mean.double(), layer.running_var.double()
    sums = mean * samples
    squares = variance * (samples - 1) + mean.square() * samples
    total.samples += samples
    total.sums = sums if total.sums is None else total.sums + sums
    total.squares = squares if total.squares is None else total.squares + squares


@torch.no_grad()
def _finish(total: _Sums, layer: Any) -> None:
    if total.sums is None or total.squares is None:
        return
    mean = total.sums / total.samples
    variance = (total.squares - mean.square() * total.samples) / max(total.samples - 1, 1)
    momentum = 1.0 / (total.batches + 1) if total.momentum is None else total.momentum
    for running, before, now in zip(
        (layer.running_mean, layer.running_var), total.running_before, (mean, variance), strict=True
    ):
        running.copy_(before.double() * (1 - momentum) + now * momentum)
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.fill_(total.batches + 1)
