"""Runs forward and backward passes over the micro-batches of one batch.

An out-of-memory error is returned as plain data, because the traceback of the exception would keep the tensors of the
attempt alive. Other errors are raised unchanged.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch

from legroom.diagnose.oom.recognize import ErrorClassification
from legroom.errors import UsageError
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.batches.weighting import spans
from legroom.train.guarding.recovery import classify_failure
from legroom.train.guarding.scaling import Scaling
from legroom.train.ranks.protocol import RankCoordinator

LossFunction = Callable[..., Any]
Contexts = Callable[[], Sequence[AbstractContextManager[Any]]]


@dataclass(slots=True)
class Passes:
    """The passes over one batch. `sizes` contains the number of samples in each micro-batch, and `weights` contains
    the loss weights.
    """

    loss_fn: LossFunction
    batch: BatchArguments
    sizes: Sequence[int]
    weights: Sequence[float]
    scaling: Scaling
    ranks: RankCoordinator
    contexts: Contexts
    between: Callable[[], None]
    """A function that is called before each micro-batch except the first."""
    around: Callable[[], AbstractContextManager[Any]]
    kind: Hashable = None
    min_samples: int = 1
    done: int = 0
    """The number of micro-batches that finished in this attempt."""
    loss: torch.Tensor | None = None
    phase: Literal["forward", "backward"] = "forward"
    retry_size: int | None = None
    """The micro-batch size that all ranks agreed on, if a failure on another rank made this attempt invalid."""

    def run(self) -> ErrorClassification | None:
        """Run the remaining micro-batches. Return the out-of-memory failure, or None if all micro-batches finished."""
        try:
            with self.around():
                while self.done < len(self.sizes):
                    if self.done:
                        self.between()
                    self._run_micro_batch(self.done)
                    self.done += 1
            return None
        except Exception as error:
            failure = classify_failure(error)
            if not failure.is_oom:
                self.retry_size = self.ranks.report_error(error)
                if self.retry_size is None:
                    raise
        return failure

    def _run_micro_batch(self, index: int) -> None:
        weight = self.weights[index]
        if not weight and self.ranks.keeps_finished_micro_batches:
            return  # no element counts, so the mean would be NaN
        start, stop = spans(self.sizes)[index]
        if start == stop:  # other ranks run more passes; the samples do not matter because their weight is 0
            start, stop = 0, self.min_samples
        arguments, named = self.batch.slice(start, stop)
        with self.ranks.micro_batch(index, len(self.sizes), self.kind):
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
    """Return the loss in the result of a training function. Raises UsageError if the loss has no gradient."""
    loss = checked_scalar(result)
    if not loss.requires_grad:
        raise UsageError(
            "The loss does not depend on any trainable parameter. The loss may have been detached or computed "
            "under torch.no_grad()."
        )
    return loss


def checked_scalar(result: Any) -> torch.Tensor:
    """Return the loss in the result of a training function: a tensor, `result.loss` or `result["loss"]`."""
    loss = result if isinstance(result, torch.Tensor) else getattr(result, "loss", None)
    if loss is None and isinstance(result, Mapping):
        loss = result.get("loss")
    if not isinstance(loss, torch.Tensor):
        raise UsageError(
            "The loss function must return a tensor with one element, or a dict or an object with the tensor as `loss`, "
            f"not {type(result).__name__}."
        )
    if loss.numel() != 1:
        raise UsageError(
            f"The loss has shape {tuple(loss.shape)}, but must have one element. Reduce the loss with "
            ".mean() or .sum()."
        )
    return loss.reshape(()) if loss.dim() else loss
