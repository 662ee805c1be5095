"""Does a row's loss depend on the other rows? Then a split changes the gradients, and a person must know.

Two signs. Batch normalisation in training mode normalises each row by the statistics of its batch. And a loss may compare
rows (in-batch negatives), or reduce over the batch in a way of its own: two rows together then have a loss that is neither
the mean nor the sum of theirs alone. That is tried once, on two rows, without gradients, when a batch is first split.
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
from legroom.train.guarding.batches.splitting import Batch
from legroom.train.guarding.batches.weighting import Reduction, Weight, count
from legroom.train.guarding.passes import checked_value
from legroom.train.guarding.recovery import read_failure

EXACTLY, ROUGHLY = 1e-4, 2e-2
"""How far losses may lie apart, relative to their size: in single precision, and in half."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What two rows said. `reduction` is None where neither fits, or where it could not be tried."""

    reduction: Reduction | None
    losses: tuple[float, float, float] | None = None
    """Of both rows together, and of each alone."""


def normalising_by_batch(model: nn.Module) -> list[str]:
    """The names of the layers that normalise by the batch's own statistics now."""
    return [
        name for name, module in model.named_modules() if isinstance(module, _BatchNorm) and module.training
    ]


def probe(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    batch: Batch,
    weight: Weight | None,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Verdict:
    """How the loss of two rows follows from theirs alone. The caller puts random state and buffers back."""
    if batch.rows < 2:
        return Verdict(None)
    losses = []
    try:
        with evaluating(model), torch.no_grad(), autocast():
            for start, stop in ((0, 2), (0, 1), (1, 2)):
                arguments, named = batch.piece(start, stop)
                losses.append(checked_value(loss_fn(*arguments, **named)))
        together, first, second = (float(loss) for loss in losses)
    except Exception as error:  # it may not like one row, or not have the memory: then nothing is known
        read_failure(error)
        return Verdict(None)
    said = (together, first, second)
    if not all(math.isfinite(value) for value in said):
        return Verdict(None)
    half = (
        any(loss.dtype in (torch.bfloat16, torch.float16) for loss in losses) or torch.is_autocast_enabled()
    )
    tolerance = ROUGHLY if half else EXACTLY
    if weight is not None:
        counts = count(weight, batch, 0, 1), count(weight, batch, 1, 2)
        if not sum(counts):
            return Verdict(None)
        expected = (first * counts[0] + second * counts[1]) / sum(counts)
        return Verdict("mean" if _near(together, expected, tolerance) else None, said)
    if _near(together, (first + second) / 2, tolerance):
        return Verdict("mean", said)
    if _near(together, first + second, tolerance):
        return Verdict("sum", said)
    return Verdict(None, said)


def _near(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other), 1e-6)


@contextlib.contextmanager
def evaluating(model: nn.Module, *, except_for: tuple[type[nn.Module], ...] = ()) -> Iterator[None]:
    """The model in evaluation mode (no dropout), but for modules of these types; afterwards as it was."""
    were = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in were:
            if not isinstance(module, except_for):
                module.training = False
        yield
    finally:
        for module, training in were:
            module.training = training


def normalisation_finding(names: list[str], split: str) -> Finding:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return Finding(
        code="LG611",
        message=f"The batch is split {split}, and batch normalisation ({shown}) now sees the micro-batch: "
        "gradients are not exactly the whole batch's.",
        fix="Say which way you want: Guard(..., coupling='per-chunk') keeps that, 'sync' also gives the running statistics "
        "of the whole batch, 'whole' never splits and moves activations to host memory instead.",
        evidence={"layers": names},
    )


def loss_finding(verdict: Verdict, split: str) -> Finding:
    assert verdict.losses is not None
    together, first, second = verdict.losses
    return Finding(
        code="LG612",
        message=f"The batch is split {split}, but the loss does not add up over rows: two rows have {together:.6g} together, "
        f"{first:.6g} and {second:.6g} alone. Gradients are not the whole batch's.",
        fix="If the loss is a mean over something else than rows, such as tokens, count it: Guard(..., weight=lambda x, y: "
        "(y != -100).sum()). If it compares rows with each other, use coupling='whole', which does not split.",
        evidence={"together": together, "alone": [first, second]},
    )
