"""Detects whether samples of a batch depend on each other. If samples depend on each other, a split changes the
gradients, and the user gets a warning.

Batch normalization in training mode normalizes each sample with the statistics of its batch. A loss may also compare
samples (in-batch negatives), or its reduction may be neither a mean nor a sum. Guard tests the loss once, at the first
split, with two samples and without gradients. If the loss of both samples is neither the mean nor the sum of their
individual losses, the samples depend on each other.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from legroom.findings import Finding
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.batches.weighting import Reduction, Weight, count_weight
from legroom.train.guarding.passes import checked_scalar
from legroom.train.guarding.recovery import classify_failure

SINGLE_PRECISION_TOLERANCE, HALF_PRECISION_TOLERANCE = 1e-4, 2e-2
"""The maximum relative difference between two losses that are treated as equal."""


@dataclass(frozen=True, slots=True)
class ReductionProbe:
    """The reduction of the loss, as determined from two samples. The reduction is None if the loss is neither a mean
    nor a sum, or if the test was not possible."""

    reduction: Reduction | None
    losses: tuple[float, float, float] | None = None
    """The loss of both samples together, the loss of the first sample, and the loss of the second sample."""


def batch_norm_layers(model: nn.Module) -> list[str]:
    return [
        name for name, module in model.named_modules() if isinstance(module, _BatchNorm) and module.training
    ]


def probe_reduction(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    batch: BatchArguments,
    weight: Weight | None,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]],
) -> ReductionProbe:
    """Determine the reduction of the loss from two samples. The caller must restore random generators and buffers."""
    if batch.batch_size < 2:
        return ReductionProbe(None)
    losses = []
    try:
        with eval_mode(model), torch.no_grad(), autocast():
            for start, stop in ((0, 2), (0, 1), (1, 2)):
                arguments, named = batch.slice(start, stop)
                losses.append(checked_scalar(loss_fn(*arguments, **named)))
        together, first, second = (float(loss) for loss in losses)
    except Exception as error:  # the function may reject a single sample, or run out of memory
        classify_failure(error)
        return ReductionProbe(None)
    measured = (together, first, second)
    if not all(math.isfinite(value) for value in measured):
        return ReductionProbe(None)
    half = (
        any(loss.dtype in (torch.bfloat16, torch.float16) for loss in losses) or torch.is_autocast_enabled()
    )
    tolerance = HALF_PRECISION_TOLERANCE if half else SINGLE_PRECISION_TOLERANCE
    if weight is not None:
        counts = count_weight(weight, batch, 0, 1), count_weight(weight, batch, 1, 2)
        if not sum(counts):
            return ReductionProbe(None)
        expected = (first * counts[0] + second * counts[1]) / sum(counts)
        return ReductionProbe("mean" if _is_close(together, expected, tolerance) else None, measured)
    if _is_close(together, (first + second) / 2, tolerance):
        return ReductionProbe("mean", measured)
    if _is_close(together, first + second, tolerance):
        return ReductionProbe("sum", measured)
    return ReductionProbe(None, measured)


def _is_close(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other), 1e-6)


@contextlib.contextmanager
def eval_mode(model: nn.Module, *, except_for: tuple[type[nn.Module], ...] = ()) -> Iterator[None]:
    """Inside the block, all modules are in evaluation mode (no dropout), except modules of the given types."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            if not isinstance(module, except_for):
                module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def batch_norm_finding(names: list[str], micro_batches: int) -> Finding:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return Finding(
        code="LG611",
        message=f"The batch is split into {micro_batches} micro-batches, and batch normalization ({shown}) uses the statistics of "
        "each micro-batch. The gradients therefore differ slightly from the gradients of the whole batch.",
        fix="Choose the behavior with Guard(..., coupling=...): 'ignore' disables this warning, 'sync' "
        "updates the running statistics as for the whole batch, 'no-split' never splits the batch and "
        "moves activations to host memory instead.",
        evidence={"layers": names},
    )


def coupled_loss_finding(probe: ReductionProbe, micro_batches: int) -> Finding:
    assert probe.losses is not None
    together, first, second = probe.losses
    return Finding(
        code="LG612",
        message=f"The batch is split into {micro_batches} micro-batches, but the loss is neither a mean nor "
        f"a sum over samples. The loss of two samples is {together:.6g}, but the losses of the individual "
        f"samples are {first:.6g} and {second:.6g}. The gradients therefore differ from the gradients of the "
        "whole batch.",
        fix="If the loss is a mean over other elements, such as tokens, pass a function that counts these "
        "elements: Guard(..., "
        "weight=lambda x, y: (y != -100).sum()). If the loss compares samples with each other, pass "
        "coupling='no-split'.",
        evidence={"together": together, "alone": [first, second]},
    )
