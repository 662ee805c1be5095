"""Running statistics of batch normalisation as one batch would have given them, though it was split.

Each micro-batch is still normalised by its own mean and variance; what is put together is what the layers remember for
evaluation: the mean and variance over all rows, entered once with the layer's momentum, and one batch counted.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(slots=True)
class _Seen:
    """Sums over the micro-batches so far, in double precision."""

    before: list[torch.Tensor]
    momentum: float | None
    batches: int
    samples: int = 0
    sums: torch.Tensor | None = field(default=None)
    squares: torch.Tensor | None = field(default=None)


@contextlib.contextmanager
def whole_batch_statistics(model: nn.Module) -> Iterator[None]:
    """Within the block, micro-batches of one batch are seen; at its end, the layers have the whole batch's statistics."""
    layers = [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    ]
    seen = {layer: _begin(layer) for layer in layers}

    def look(layer: Any, inputs: Any, _output: Any) -> None:
        if layer.momentum:  # not when a checkpoint computes it again
            _add(seen[layer], layer, inputs[0])

    handles = [layer.register_forward_hook(look) for layer in layers]
    for layer in layers:
        layer.momentum = 1.0  # the layer's running statistics become this micro-batch's
    try:
        yield
        for layer in layers:
            _finish(seen[layer], layer)
    finally:
        for handle in handles:
            handle.remove()
        for layer in layers:
            layer.momentum = seen[layer].momentum


def _begin(layer: Any) -> _Seen:
    before = [layer.running_mean.clone(), layer.running_var.clone()]
    counted = 0 if layer.num_batches_tracked is None else int(layer.num_batches_tracked)
    return _Seen(before, layer.momentum, counted)


@torch.no_grad()
def _add(seen: _Seen, layer: Any, values: torch.Tensor) -> None:
    samples = values.numel() // values.shape[1]
    mean, variance = layer.running_mean.double(), layer.running_var.double()
    sums = mean * samples
    squares = variance * (samples - 1) + mean.square() * samples
    seen.samples += samples
    seen.sums = sums if seen.sums is None else seen.sums + sums
    seen.squares = squares if seen.squares is None else seen.squares + squares


@torch.no_grad()
def _finish(seen: _Seen, layer: Any) -> None:
    if seen.sums is None or seen.squares is None:
        return
    mean = seen.sums / seen.samples
    variance = (seen.squares - mean.square() * seen.samples) / max(seen.samples - 1, 1)
    momentum = 1.0 / (seen.batches + 1) if seen.momentum is None else seen.momentum
    for running, before, now in zip(
        (layer.running_mean, layer.running_var), seen.before, (mean, variance), strict=True
    ):
        running.copy_(before.double() * (1 - momentum) + now * momentum)
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.fill_(seen.batches + 1)
