"""Are the gradients of a split batch those of the whole? Tried on a batch, with everything put back afterwards."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from legroom.errors import UsageError
from legroom.train.guarding.batches.coupling import evaluating
from legroom.train.guarding.batches.splitting import Batch
from legroom.train.guarding.passes import LossFunction
from legroom.train.guarding.single_sample import does_not_fit

if TYPE_CHECKING:
    from legroom.train.guarding.guard import Guard

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}
HALF = 2e-2


@dataclass(frozen=True, slots=True)
class Verified:
    """What a comparison found. True if the gradients are the same up to rounding."""

    equal: bool
    worst: float
    """The largest difference of a parameter's gradients, relative to the largest gradient of that parameter."""
    parameter: str
    """Where that is."""
    loss_difference: float
    """Relative."""
    rows: int
    split: tuple[int, ...]

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        how = "the same up to rounding" if self.equal else "NOT the same"
        return (
            f"Gradients of {self.rows} rows, whole and split into {len(self.split)}, are {how}: "
            f"at most {self.worst:.1e} apart ({self.parameter}), the loss {self.loss_difference:.1e}."
        )


def verify(guard: "Guard", loss_fn: LossFunction, batch: Batch, micro_batch: int | None) -> Verified:
    """Compare the passes over the whole batch with passes over micro-batches of it.

    If the whole does not fit, fewer rows are compared. Dropout is off, since its masks differ; batch normalisation is not.
    """
    if batch.rows < 2:
        raise UsageError("a batch of one row cannot be split: verify with two rows or more")
    before = guard._transaction
    before.begin()
    try:
        with evaluating(guard.model, except_for=(_BatchNorm,)):
            rows = batch.rows
            while True:
                arguments, named = batch.piece(0, rows)
                part = Batch(arguments, named, batch.batch_dim, batch.whole)
                whole = guard._new_passes(loss_fn, part, rows)
                failure = whole.run()
                if failure is None:
                    break
                before.release()
                before.roll_back()
                if rows <= 2:
                    raise does_not_fit(
                        "A part of two rows", failure, whole.phase, guard.model, guard.optimizer, guard.device, guard._ladder.names,
                        guard._figures.allocated(),
                    )  # fmt: skip
                rows = max(2, rows // 2)
            expected = {
                name: parameter.grad.detach().cpu()
                for name, parameter in guard.model.named_parameters()
                if parameter.grad is not None
            }
            before.roll_back()
            micro = min(micro_batch or max(1, -(-rows // 3)), rows - 1)
            split = guard._new_passes(loss_fn, part, micro)
            failure = split.run()
            if failure is not None:
                raise UsageError(
                    f"micro-batches of {micro} rows do not fit: give verify a smaller micro_batch="
                )
            return _compared(guard, expected, whole.loss, split.loss, rows, tuple(split.sizes))
    finally:
        before.roll_back()
        before.commit()


def _compared(
    guard: "Guard",
    expected: dict[str, torch.Tensor],
    whole: torch.Tensor | None,
    split: torch.Tensor | None,
    rows: int,
    sizes: tuple[int, ...],
) -> Verified:
    worst, where = 0.0, ""
    tolerance = 0.0
    for name, parameter in guard.model.named_parameters():
        if name not in expected and parameter.grad is None:
            continue
        mine = torch.zeros_like(parameter).cpu() if parameter.grad is None else parameter.grad.detach().cpu()
        reference = expected.get(name, torch.zeros_like(mine))
        scale = float(reference.abs().max()) or 1.0
        difference = float((mine.double() - reference.double()).abs().max()) / scale
        tolerance = max(tolerance, TOLERANCES.get(parameter.dtype, HALF))
        if difference >= worst:
            worst, where = difference, name
    assert whole is not None
    assert split is not None
    losses = float(whole), float(split)
    apart = abs(losses[0] - losses[1]) / max(abs(losses[0]), 1e-12)
    if getattr(guard.precision, "name", "fp32") in ("bf16", "fp16") or guard.scaler is not None:
        tolerance = max(tolerance, HALF)
    return Verified(worst <= tolerance and apart <= tolerance, worst, where, apart, rows, sizes)
