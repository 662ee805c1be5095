"""Compares the gradients of a split batch with the gradients of the whole batch. The state is restored afterwards."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from legroom.diagnose.oom.recognize import ErrorClassification
from legroom.errors import UsageError
from legroom.train.guarding.batches.coupling import eval_mode
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.passes import Passes
from legroom.train.guarding.scaling import Scaling
from legroom.train.guarding.state.transaction import Transaction

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}
HALF_PRECISION_TOLERANCE = 2e-2


@dataclass(frozen=True, slots=True)
class GradientComparison:
    """The result of `Guard.verify`. The result is truthy if the gradients are equal up to rounding."""

    equal: bool
    max_difference: float
    """The largest difference between a parameter's gradients, relative to the largest gradient of that parameter."""
    parameter: str
    loss_difference: float
    batch_size: int
    split: tuple[int, ...]

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        result = "equal up to rounding" if self.equal else "NOT equal"
        return (
            f"The gradients of the whole batch ({self.batch_size} samples) and of {len(self.split)} "
            f"micro-batches are {result}. The largest relative difference is {self.max_difference:.1e} "
            f"({self.parameter}). The losses differ by {self.loss_difference:.1e}."
        )


def verify_gradients(
    model: nn.Module,
    precision: Scaling,
    transaction: Transaction,
    new_passes: Callable[[BatchArguments, int], Passes],
    does_not_fit: Callable[[Passes, ErrorClassification], Exception],
    batch: BatchArguments,
    micro_batch_size: int | None,
) -> GradientComparison:
    """Compare the gradients of the whole batch with the gradients of its micro-batches.

    If the whole batch does not fit, a smaller batch is compared. Dropout is disabled, because its masks differ between
    the whole batch and the micro-batches. Batch normalization stays in training mode.
    """
    if batch.batch_size < 2:
        raise UsageError("A batch of one sample cannot be split. Pass a batch of two or more samples.")
    transaction.begin()
    try:
        with eval_mode(model, except_for=(_BatchNorm,)):
            batch_size = batch.batch_size
            while True:
                arguments, named = batch.slice(0, batch_size)
                part = BatchArguments(arguments, named, batch.batch_dim, batch.unsplit)
                whole = new_passes(part, batch_size)
                failure = whole.run()
                if failure is None:
                    break
                transaction.release()
                transaction.rollback()
                if batch_size <= 2:
                    raise does_not_fit(whole, failure)
                batch_size = max(2, batch_size // 2)
            expected = {
                name: parameter.grad.detach().cpu()
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }
            transaction.rollback()
            micro = min(micro_batch_size or max(1, -(-batch_size // 3)), batch_size - 1)
            split = new_passes(part, micro)
            if split.run() is not None:
                raise UsageError(
                    f"A micro-batch size of {micro} does not fit. Pass a smaller micro_batch_size to verify()."
                )
            return _compare(model, precision, expected, whole, split)
    finally:
        transaction.rollback()
        transaction.commit()


def _compare(
    model: nn.Module, precision: Scaling, expected: dict[str, torch.Tensor], whole: Passes, split: Passes
) -> GradientComparison:
    max_difference, where = 0.0, ""
    tolerance = 0.0
    for name, parameter in model.named_parameters():
        if name not in expected and parameter.grad is None:
            continue
        actual = (
            torch.zeros_like(parameter).cpu() if parameter.grad is None else parameter.grad.detach().cpu()
        )
        reference = expected.get(name, torch.zeros_like(actual))
        scale = float(reference.abs().max()) or 1.0
        difference = float((actual.double() - reference.double()).abs().max()) / scale
        tolerance = max(tolerance, TOLERANCES.get(parameter.dtype, HALF_PRECISION_TOLERANCE))
        if difference >= max_difference:
            max_difference, where = difference, name
    assert whole.loss is not None
    assert split.loss is not None
    losses = float(whole.loss), float(split.loss)
    loss_difference = abs(losses[0] - losses[1]) / max(abs(losses[0]), 1e-12)
    if getattr(precision, "name", "fp32") in ("bf16", "fp16") or precision.scaler is not None:
        tolerance = max(tolerance, HALF_PRECISION_TOLERANCE)
    equal = max_difference <= tolerance and loss_difference <= tolerance
    return GradientComparison(
        equal, max_difference, where, loss_difference, sum(whole.sizes), tuple(split.sizes)
    )
