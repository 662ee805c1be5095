"""What each piece of a batch weighs, so that the pieces' losses and gradients add up to the whole batch's.

A mean over rows: rows of the piece over rows of the batch. A sum: 1. A mean over something else, tokens that are not padding,
say: `weight(*batch)` counts it, and a piece weighs its count over the whole batch's.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch

from legroom.errors import UsageError
from legroom.train.guarding.batches.splitting import Batch

Reduction = Literal["mean", "sum"]
Weight = Callable[..., Any]


def weights(
    batch: Batch,
    sizes: Sequence[int],
    reduction: Reduction,
    weight: Weight | None,
    total: float | None = None,
) -> list[float]:
    """One factor per piece of `sizes` rows. `total`: what the weights are shares of, where other ranks have a part."""
    if weight is not None:
        counts = [count(weight, batch, start, stop) for start, stop in spans(sizes)]
        total = sum(counts) if total is None else total
        return [each / total if total else 1.0 for each in counts]
    if reduction == "sum":
        return [1.0] * len(sizes)
    return [size / (batch.rows if total is None else total) for size in sizes]


def count(weight: Weight, batch: Batch, start: int, stop: int) -> float:
    """What `weight` says of these rows."""
    arguments, named = batch.piece(start, stop)
    with torch.no_grad():
        counted = weight(*arguments, **named)
    if isinstance(counted, torch.Tensor):
        if counted.numel() != 1:
            raise UsageError(
                f"weight= gave a tensor of shape {tuple(counted.shape)}: it must give one number, such as the count of tokens"
            )
        counted = counted.item()
    try:
        return float(counted)
    except (TypeError, ValueError):
        raise UsageError(
            f"weight= gave a {type(counted).__name__}: it must give one number, such as the count of tokens"
        ) from None


def spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(start, stop) of pieces of `sizes` rows, one after the other."""
    return list(pairwise(accumulate(sizes, initial=0)))
