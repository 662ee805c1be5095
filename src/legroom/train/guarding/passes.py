"""Forward and backward over the micro-batches of one batch, and where memory ran out if it did.

An error about memory comes back as plain data, when the exception and all it held are gone: recovery cannot begin
while a traceback keeps the attempt's tensors. Any other error passes untouched.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch

from legroom.diagnose.oom.recognize import ErrorClassification
from legroom.errors import UsageError
from legroom.train.guarding.batches.splitting import Batch
from legroom.train.guarding.batches.weighting import spans
from legroom.train.guarding.recovery import read_failure
from legroom.train.guarding.scaling import Scaling
from legroom.train.ranks.coordination import AgreedRanks

LossFunction = Callable[..., Any]
Contexts = Callable[[], Sequence[AbstractContextManager[Any]]]


@dataclass(slots=True)
class Passes:
    """The passes over one batch, cut into pieces of `sizes` rows that weigh `weights`."""

    loss_fn: LossFunction
    batch: Batch
    sizes: Sequence[int]
    weights: Sequence[float]
    scaling: Scaling
    ranks: AgreedRanks
    contexts: Contexts
    """What the forward pass runs in: the ladder's rungs."""
    between: Callable[[], None]
    """Called before each piece but the first."""
    around: Callable[[], AbstractContextManager[Any]]
    """What all pieces run in together."""
    kind: Hashable = None
    fewest: int = 1
    """Rows that a piece must have."""
    done: int = 0
    """Pieces that are finished."""
    loss: torch.Tensor | None = None
    """The finished pieces' part of the whole batch's loss."""
    phase: Literal["forward", "backward"] = "forward"
    void: int | None = None
    """Another rank's failure made this attempt void: the size that was agreed."""

    def run(self) -> ErrorClassification | None:
        """The remaining pieces; what failed, or None when all are done."""
        try:
            with self.around():
                while self.done < len(self.sizes):
                    if self.done:
                        self.between()
                    self._piece(self.done)
                    self.done += 1
            return None
        except Exception as error:
            failure = read_failure(error)
            if not failure.is_oom:
                self.void = self.ranks.raised(error)
                if self.void is None:
                    raise
        return failure

    def _piece(self, index: int) -> None:
        weight = self.weights[index]
        if not weight and self.ranks.keeps_finished_chunks:
            return  # nothing in it counts: the mean over nothing would be no number
        start, stop = spans(self.sizes)[index]
        if start == stop:  # other ranks have more pieces: any rows do, since they weigh nothing
            start, stop = 0, self.fewest
        arguments, named = self.batch.piece(start, stop)
        with self.ranks.chunk(index, len(self.sizes), self.kind):
            self.phase = "forward"
            with ExitStack() as stack:
                for context in (*self.contexts(), self.scaling.autocast()):
                    stack.enter_context(context)
                loss = checked_loss(self.loss_fn(*arguments, **named))
            self.phase = "backward"
            self.scaling.scale(loss if weight == 1.0 else loss * weight).backward()  # type: ignore[no-untyped-call]
        part = loss.detach() if weight == 1.0 else loss.detach() * weight
        self.loss = part if self.loss is None else self.loss + part


def checked_loss(result: Any) -> torch.Tensor:
    """The loss that a training function gave, with its graph."""
    loss = checked_value(result)
    if not loss.requires_grad:
        raise UsageError(
            "the loss does not depend on any parameter that is trained: it was detached, or computed without gradients"
        )
    return loss


def checked_value(result: Any) -> torch.Tensor:
    """A scalar, or something with a `.loss` that is one."""
    loss = result if isinstance(result, torch.Tensor) else getattr(result, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise UsageError(
            f"the function gave a {type(result).__name__}: it must return the loss, a tensor with one number"
        )
    if loss.numel() != 1:
        raise UsageError(
            f"the loss has shape {tuple(loss.shape)}: it must be one number. Reduce it, with .mean() or .sum()"
        )
    return loss.reshape(()) if loss.dim() else loss
