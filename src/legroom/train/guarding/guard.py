"""A training step as a transaction: it is done as a whole, or it has not happened.

    guard = legroom.Guard(model, optimizer)
    for x, y in loader:
        loss = guard.step(lambda x, y: criterion(model(x), y), x, y)

When memory runs out in the forward or backward pass, everything is put back as it was before the step (gradients, buffers, random
generators), the batch is cut into micro-batches that fit, and the passes are made again: the gradients are the whole
batch's. When it runs out in the optimizer, that step is carried through. A step without trouble costs next to nothing:
no weights are copied, nothing is waited for.

This file decides what is tried next. What a pass is, is in `passes`; what is put back, in `transaction`; the optimizer,
in `updating`; sizes, in `sizing`; what is left when one row does not fit, in `ladder`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn

from legroom.errors import UsageError
from legroom.findings import Finding
from legroom.log import log
from legroom.train.guarding.batches import coupling as couplings
from legroom.train.guarding.batches.splitting import Batch
from legroom.train.guarding.batches.step_figures import StepFigures
from legroom.train.guarding.batches.weighting import Reduction, Weight, count, weights
from legroom.train.guarding.evaluation import Evaluation
from legroom.train.guarding.optimizer_step import Updating
from legroom.train.guarding.passes import LossFunction, Passes, checked_loss
from legroom.train.guarding.recovery import read_failure
from legroom.train.guarding.scaling import scaling
from legroom.train.guarding.single_sample import (
    EXACT,
    DoesNotFit,
    Ladder,
    RungName,
    does_not_fit,
    optimizer_does_not_fit,
)
from legroom.train.guarding.state.batch_statistics import whole_batch_statistics
from legroom.train.guarding.state.transaction import Transaction, with_room
from legroom.train.guarding.verification import Verified, verify
from legroom.train.ranks.coordination import AgreedRanks, Alone
from legroom.train.sizes.micro_batch_size import Sizer, chunk_sizes, even
from legroom.train.sizes.plan_cache import PlanMemory

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Coupling = Literal["warn", "per-chunk", "sync", "whole"]


@dataclass(frozen=True, slots=True)
class Done:
    """How the latest batch was done."""

    split: tuple[int, ...]
    """Rows of each micro-batch."""
    attempts: int
    """1 when nothing failed."""
    rungs: tuple[str, ...]
    """What was in use because one row did not fit."""


class Guard:
    """Training steps of one model and one optimizer that survive a full GPU, with the same gradients.

    `precision`: "bf16", "fp16", "fp32", "auto" or a `legroom.precision(...)`; or `scaler`: a GradScaler of your own, with
    autocast in your function. `max_micro_batch`: never more rows at once. `batch_dim`: where the rows are. `whole`: arguments, by
    position or name, that are never cut. `reduction`: what the loss is over its rows, found out at the first split by
    default; `weight`: for a mean over something else, counts it in a batch. `clip_norm`: clip gradients to this norm.
    `coupling`: what to do when rows depend on each other. `ladder`: what may be tried when one row does not fit.
    `remember`: keep the sizes that fitted for the next run. `on_finding`: called with what a person should know, instead of logging it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        precision: Any = None,
        scaler: Any = None,
        max_micro_batch: int | None = None,
        batch_dim: int = 0,
        whole: Iterable[int | str] = (),
        reduction: Reduction | Literal["auto"] = "auto",
        weight: Weight | None = None,
        clip_norm: float | None = None,
        coupling: Coupling = "warn",
        ladder: Sequence[RungName] = EXACT,
        remember: bool = True,
        sizer: Sizer | None = None,
        ranks: AgreedRanks | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        _check(model, optimizer, reduction, coupling, clip_norm)
        self.model, self.optimizer = model, optimizer
        self.device = _device(model)
        self.precision = scaling(precision, scaler, self.device)
        self.scaler = self.precision.scaler
        self.findings: list[Finding] = []
        """What a person should know, each said once."""
        self.last: Done | None = None
        self.sizer = sizer or Sizer(most=max_micro_batch)
        self._memory = PlanMemory(model, self.device, precision) if remember and sizer is None else None
        self._max_micro_batch = max_micro_batch
        self._batch_dim, self._whole = batch_dim, frozenset(whole)
        self._reduction: Reduction | None = None if reduction == "auto" else reduction
        self._weight, self._clip_norm, self._coupling = weight, clip_norm, coupling
        self._ranks: AgreedRanks = ranks or _ranks_for(model)
        self._transaction = Transaction(model, partial(_parameters, optimizer), self.device)
        self._updating = Updating(optimizer, self.device)
        self._ladder = Ladder(ladder, model, self.device)
        self._figures = StepFigures(self.device)
        self._is_looked_at = False
        self._on_finding = on_finding
        self._evaluation = Evaluation(
            model, self.device, max_micro_batch, batch_dim, self._whole, self._ranks
        )

    # ------------------------------------------------------------ what people call

    def step(self, loss_fn: LossFunction, *batch: Any, **named: Any) -> torch.Tensor:
        """Forward, backward, optimizer step, gradients to None; the whole batch's loss, detached.

        `loss_fn(*batch, **named)` gives the loss of whatever rows it gets. Gradients that are there already (from
        `backward`) count in.
        """
        loss = self.backward(loss_fn, *batch, **named)
        self.update()
        return loss

    def backward(self, loss_fn: LossFunction, *batch: Any, **named: Any) -> torch.Tensor:
        """Forward and backward alone: gradients are added to those that are there. `update()` ends a step."""
        if not callable(loss_fn):
            raise UsageError(
                f"the first argument is a {type(loss_fn).__name__}: give the function that computes the loss first, then the batch"
            )
        whole = Batch(batch, named, self._batch_dim, self._whole)
        self._updating.reserved.take()
        self._transaction.begin()
        try:
            loss = self._all_passes(loss_fn, whole)
        finally:
            self._transaction.commit()
        return loss

    def update(self) -> None:
        """Unscale, clip, optimizer step, gradients to None, the loss scale's update; memory may run out in any of it."""
        clip = self._clip_norm

        def before() -> None:
            self.precision.unscale_(self.optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(list(_parameters(self.optimizer)), clip)

        scaled = self.scaler is not None
        try:
            self._updating.run(
                self.precision.step,
                before=before if scaled or clip is not None else None,
                after=self.precision.update if scaled else None,
            )
        except RuntimeError as error:
            if not read_failure(error).is_oom:
                raise
        else:
            if not scaled:
                self.precision.update()
            return
        unfinished = optimizer_does_not_fit(self.optimizer, self.device)
        self._ranks.gave_up(str(unfinished))
        raise unfinished

    def together(self, batches: Iterable[T]) -> Iterator[T]:
        """A loader's batches, where ranks have different numbers of them: `for x, y in guard.together(loader)`.

        A rank that has no more goes along with its last batch, which then weighs nothing, until all are done.
        """
        if self._reduction == "sum":
            raise UsageError(
                "together() needs a loss that is a mean: with reduction='sum' a repeated batch would count again"
            )
        return self._ranks.together(batches)

    def evaluate(self, function: Callable[..., Any], *batch: Any, **named: Any) -> Any:
        """`function(*batch, **named)` without gradients, in pieces if it must be, at last on the host.

        Results with rows are concatenated, single numbers become the mean over rows.
        """
        return self._evaluation.evaluate(function, batch, named)

    def batched(self, function: F) -> F:
        """A decorator: calls run in pieces when memory is short, with gradients or without, as the caller has it."""
        return cast(F, self._evaluation.decorated(function))

    def verify(
        self, loss_fn: LossFunction, *batch: Any, micro_batch: int | None = None, **named: Any
    ) -> Verified:
        """Are the gradients of a split batch those of the whole? Changes nothing. Dropout is off meanwhile."""
        whole = Batch(batch, named, self._batch_dim, self._whole)
        return verify(self, loss_fn, whole, micro_batch)

    def attempt_whole(self, loss_fn: LossFunction, *batch: Any, **named: Any) -> torch.Tensor:
        """One plain step, whole batch, nothing put back: memory that runs out is the caller's to see."""
        with self.precision.autocast():
            loss = checked_loss(loss_fn(*batch, **named))
        self.precision.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.update()
        return loss.detach()

    # ------------------------------------------------------------ what lasts

    def state_dict(self) -> dict[str, Any]:
        """The plan: sizes that fitted, what is in use because one row did not, how the loss adds up, the loss scale."""
        return {
            "sizes": self.sizer.remember(),
            "rungs": list(self._ladder.names),
            "reduction": self._reduction,
            "precision": self.precision.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a plan from a checkpoint: the same splits, so the same rounding."""
        if not {"sizes", "rungs", "reduction", "precision"} <= set(state):
            raise UsageError("this is no state of a Guard: give load_state_dict what state_dict() gave")
        if state["sizes"].get("rows") is not None:
            self.sizer = Sizer(most=self._max_micro_batch, remembered=state["sizes"])
            if self._memory is not None:
                self._memory.is_new = False  # the checkpoint knows more than the last run's notes
        while len(self._ladder.rungs) < len(state["rungs"]) and self._ladder.climb() is not None:
            pass
        self._reduction = self._reduction or state["reduction"]
        self.precision.load_state_dict(state["precision"])

    # ------------------------------------------------------------ one batch

    def _all_passes(self, loss_fn: LossFunction, batch: Batch) -> torch.Tensor:
        before = self._transaction
        if self._memory is not None and self._memory.is_new:
            self.sizer = (
                self._memory.recalled((batch.arguments, batch.named), self._max_micro_batch) or self.sizer
            )
        micro = self._first_size(batch.rows)
        attempts = 1
        self._figures.begin(self.sizer, batch.rows)
        passes = self._new_passes(loss_fn, batch, micro)
        while True:
            if len(passes.sizes) > 1 and not self._is_looked_at:
                self._look_at(loss_fn, batch, passes.sizes)
                passes = self._new_passes(loss_fn, batch, micro, passes)
            failure = passes.run()
            if failure is None and passes.void is None:
                void = self._ranks.settle(None, micro)
                if void is None:
                    break
            else:
                before.release()
                if passes.void is None:
                    self._ranks.failed(failure)
                    smaller = self._smaller(
                        batch.rows, max(passes.sizes[passes.done :] or passes.sizes), failure, passes.phase
                    )
                    void = self._ranks.settle(failure, smaller)
                else:
                    void = passes.void
            attempts += 1
            kept = passes if failure is not None and self._keeps(passes) else None
            if kept is not None:
                before.back_to_mark()
            else:
                before.roll_back()
            if void == 0:
                void = self._climb(batch.rows, failure, passes.phase)
            assert void is not None
            self._say_split(batch.rows, void, passes.phase, failure is not None)
            micro = void
            passes = self._new_passes(loss_fn, batch, micro, kept)
        self.last = Done(tuple(passes.sizes), attempts, self._ladder.names)
        self._figures.end(self.sizer, batch.rows, max(passes.sizes))
        if self._memory is not None and not self._ladder.rungs:
            self._memory.keep(self.sizer)
        assert passes.loss is not None
        return passes.loss

    def _new_passes(
        self, loss_fn: LossFunction, batch: Batch, micro: int, kept: Passes | None = None
    ) -> Passes:
        finished = list(kept.sizes[: kept.done]) if kept is not None else []
        rows = batch.rows - sum(finished)
        sizes = finished + self._cut(rows, micro)
        return Passes(
            loss_fn, batch, sizes, with_room(lambda: self._weights(batch, sizes)), self.precision, self._ranks, self._ladder.contexts,
            self._between, self._around if len(sizes) > 1 else nullcontext, kind=self._ladder.names, done=len(finished), loss=kept.loss if kept is not None else None,
            fewest=min(batch.rows, self._fewest_rows()),
        )  # fmt: skip

    def _cut(self, rows: int, micro: int) -> list[int]:
        plan = self._ranks.plan(rows, min(micro, rows))
        if not isinstance(self._ranks, Alone):
            own = min(plan.chunks, max(1, rows // self._fewest_rows()))
            # Where every rank must make as many passes, those for which this one has no rows weigh nothing.
            return even(rows, own) + [0] * (plan.chunks - own if plan.is_exact else 0)
        sizes = chunk_sizes(rows, plan.micro)
        return even(rows, rows // 2) if sizes[-1] == 1 < rows and self._fewest_rows() > 1 else sizes

    def _fewest_rows(self) -> int:
        """Rows that a piece must have: batch normalisation has no statistics of one, and torch refuses it."""
        return 2 if self._max_micro_batch != 1 and couplings.normalising_by_batch(self.model) else 1

    def _weights(self, batch: Batch, sizes: Sequence[int]) -> list[float]:
        alone = isinstance(self._ranks, Alone)
        if alone and len(sizes) == 1:
            return [1.0]
        reduction = self._reduction or "mean"
        total: float | None = None
        if self._weight is not None or reduction == "mean":
            total = float(batch.rows) if self._weight is None else count(self._weight, batch, 0, batch.rows)
            total = self._ranks.weights(total, by_rows=self._weight is None)
        return weights(batch, sizes, reduction, self._weight, total)

    def _around(self) -> AbstractContextManager[Any]:
        return whole_batch_statistics(self.model) if self._coupling == "sync" else nullcontext()

    def _between(self) -> None:
        if self._ranks.keeps_finished_chunks and self._coupling != "sync":
            self._transaction.mark()

    def _keeps(self, passes: Passes) -> bool:
        """Whether the finished pieces' gradients are still exactly that: a backward pass cut short has added to them."""
        return (
            0 < passes.done < len(passes.sizes)
            and passes.phase == "forward"
            and self._coupling != "sync"
            and self._transaction.can_go_back_to_mark()
            # An odd rest cannot be cut into pairs, while the whole batch may be.
            and (self._fewest_rows() == 1 or (passes.batch.rows - sum(passes.sizes[: passes.done])) % 2 == 0)
        )

    # ------------------------------------------------------------ sizes and rungs

    def _first_size(self, rows: int) -> int:
        if self._coupling == "whole":
            return rows
        return self.sizer.micro_batch(rows)

    def _smaller(self, rows: int, micro: int, failure: Any, phase: Literal["forward", "backward"]) -> int:
        if self._coupling == "whole":
            return 0
        smaller = self.sizer.failed(rows, micro, failure, phase=phase, before=self._figures.allocated())
        smallest = even(rows, max(1, rows // self._fewest_rows()))[0]
        if micro <= smallest:
            return 0
        if smaller < smallest:
            self.sizer.agree(smallest, "batch normalisation needs more than one row")
        return max(smaller, smallest)

    def _climb(self, rows: int, failure: Any, phase: str) -> int:
        """The next rung, and how many rows to try there; the error that ends it all where there is none."""
        fewest = self._fewest_rows()
        what = "The batch" if self._coupling == "whole" else "One row" if fewest == 1 else "The fewest rows"
        if self._transaction.earlier_to_host():
            log.warning("%s did not fit: gradients of earlier batches wait in host memory for now.", what)
            return rows if self._coupling == "whole" else 1
        if self._updating.reserved.give():
            log.warning("%s did not fit: no room is kept any more for the optimizer's state.", what)
            self.sizer = Sizer(most=self._max_micro_batch)  # sizes that failed beside it may fit now
            return self._first_size(rows)
        rung = self._ladder.climb()
        if rung is None:
            raise self._does_not_fit(failure, phase)
        log.warning("%s did not fit: trying %s (%s).", what, rung.name, rung.price)
        if self._coupling == "whole":
            return rows
        self.sizer = Sizer(most=self._max_micro_batch)
        self.sizer.agree(fewest, f"few rows at a time at first, with {rung.name}")
        return 1

    def _does_not_fit(self, failure: Any, phase: str) -> DoesNotFit:
        whole = self._coupling == "whole"
        error = does_not_fit(
            "The batch, which is not to be split," if whole
            else "One row of the batch" if self._fewest_rows() == 1
            else "A piece of the fewest rows that batch normalisation can take",
            failure, phase, self.model, self.optimizer, self.device, self._ladder.names, self._figures.allocated(),
        )  # fmt: skip
        self._ranks.gave_up(str(error))
        return error

    def _say_split(self, rows: int, micro: int, phase: str, failed_here: bool) -> None:
        if micro >= rows:
            return
        why = f"Out of memory in the {phase} pass" if failed_here else "Another rank ran out of memory"
        reason = self.sizer.choice.reason if self.sizer.choice is not None else ""
        log.warning(
            "%s: the batch of %d rows goes on in micro-batches of %d. %s", why, rows, micro, _sentence(reason)
        )

    def _look_at(self, loss_fn: LossFunction, batch: Batch, sizes: Sequence[int]) -> None:
        """A batch is split for the first time: do its rows depend on each other, and how does the loss add up?"""
        self._is_looked_at = True
        split = f"into {len(sizes)} micro-batches"
        names = couplings.normalising_by_batch(self.model)
        if names and self._coupling == "warn":
            self._tell(couplings.normalisation_finding(names, split))
        if not isinstance(self._ranks, Alone):
            return  # a forward pass of one rank alone would leave the others waiting
        verdict = couplings.probe(self.model, loss_fn, batch, self._weight, self.precision.autocast)
        self._transaction.roll_back()
        if self._reduction is None:
            self._reduction = verdict.reduction
        if verdict.losses is not None and verdict.reduction != (self._reduction or "mean"):
            self._tell(couplings.loss_finding(verdict, split))

    def _tell(self, finding: Finding) -> None:
        self.findings.append(finding)
        if self._on_finding is not None:
            self._on_finding(finding)
        else:
            log.warning("%s %s %s", finding.code, finding.message, finding.fix)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _sentence(reason: str) -> str:
    return reason[:1].upper() + reason[1:] + "." if reason else ""


def _check(model: Any, optimizer: Any, reduction: str, coupling: str, clip_norm: float | None) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"Guard needs the model first, an nn.Module; it got a {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"Guard needs the optimizer second, a torch.optim.Optimizer; it got a {type(optimizer).__name__}"
        )
    if reduction not in ("auto", "mean", "sum"):
        raise UsageError(
            f"reduction= is 'auto', 'mean' or 'sum', not '{reduction}'; for a mean over tokens give weight="
        )
    if clip_norm is not None and not clip_norm > 0:
        raise UsageError(
            f"clip_norm={clip_norm} would leave no gradient as it is: give a norm above zero, or leave it out"
        )
    if coupling not in ("warn", "per-chunk", "sync", "whole"):
        raise UsageError(f"coupling= is 'warn', 'per-chunk', 'sync' or 'whole', not '{coupling}'")


def _device(model: nn.Module) -> torch.device:
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise UsageError(
            f"the model's parameters are on {' and '.join(devices)}: Guard works where one device holds them all. "
            "Move the model to one device, or guard the parts apart"
        )
    if not devices:
        raise UsageError("the model has no parameters: there is nothing to train")
    return torch.device(devices[0])


def _ranks_for(model: nn.Module) -> AgreedRanks:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return Alone()
    from legroom.train.ranks.agree import ranks_for

    return cast(AgreedRanks, ranks_for(model) or Alone())
