"""Computes the loss weight of each micro-batch. With these weights, the losses and gradients of the micro-batches add
up to those of the whole batch.

For a mean over samples, the weight is the micro-batch size divided by the batch size. For a sum, the weight is 1. For
a mean over other elements, such as non-padding tokens, `weight(*batch)` counts these elements. The weight of a
micro-batch is then its count divided by the count of the whole batch.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch

from legroom.errors import UsageError
from legroom.train.guarding.batches.splitting import BatchArguments

Reduction = Literal["mean", "sum"]
Weight = Callable[..., Any]


def loss_weights(
    batch: BatchArguments,
    sizes: Sequence[int],
    reduction: Reduction,
    weight: Weight | None,
    total: float | None = None,
) -> list[float]:
    """Return the loss weight of each micro-batch. `sizes` contains the number of samples in each micro-batch. `total`
    is the number of samples or elements across all ranks, or None to count only this rank.
    """
    if weight is not None:
        counts = [count_weight(weight, batch, start, stop) for start, stop in spans(sizes)]
        total = sum(counts) if total is None else total
        return [each / total if total else 1.0 for each in counts]
    if reduction == "sum":
        return [1.0] * len(sizes)
    return [size / (batch.batch_size if total is None else total) for size in sizes]


def count_weight(weight: Weight, batch: BatchArguments, start: int, stop: int) -> float:
    arguments, named = batch.slice(start, stop)
    with torch.no_grad():
        result = weight(*arguments, **named)
    if isinstance(result, torch.Tensor):
        if result.numel() != 1:
            raise UsageError(
                "The function passed as weight= must return one number, such as the number of tokens, not a tensor of "
                f"shape {tuple(result.shape)}."
            )
        result = result.item()
    try:
        return float(result)
    except (TypeError, ValueError):
        raise UsageError(
            "The function passed as weight= must return one number, such as the number of tokens, not "
            f"{type(result).__name__}."
        ) from None


def spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(sizes, initial=0)))
