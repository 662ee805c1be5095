"""Training steps that recover from out-of-memory errors.

    guard = legroom.Guard(model, optimizer)
    for x, y in loader:
        loss = guard.step(lambda x, y: criterion(model(x), y), x, y)

If memory runs out in the forward or backward pass, Guard restores the state from before the step (gradients, buffers,
random generators). Then Guard splits the batch into micro-batches that fit, and runs the passes again. The gradients
are the same as for the whole batch. If memory runs out in the optimizer, Guard completes that optimizer step. If
memory does not run out, the overhead is small: Guard copies no weights and adds no synchronization.

This file decides how to continue after a failure. The module `passes` runs the passes, `transaction` restores the
state, and `optimizer_step` steps the optimizer. The module `micro_batch_size` chooses the sizes, and `fallbacks`
saves memory if a single sample does not fit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn

from legroom.arguments import check_count, check_names, check_positive
from legroom.errors import UsageError
from legroom.findings import Finding
from legroom.log import log
from legroom.train.guarding.batches import coupling as couplings
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.batches.step_stats import StepStats
from legroom.train.guarding.batches.weighting import Reduction, Weight, count_weight, loss_weights
from legroom.train.guarding.evaluation import Evaluation
from legroom.train.guarding.fallbacks import (
    EXACT_FALLBACKS,
    DoesNotFit,
    FallbackName,
    Fallbacks,
    does_not_fit,
    optimizer_does_not_fit,
)
from legroom.train.guarding.optimizer_step import OptimizerStep
from legroom.train.guarding.passes import LossFunction, Passes, checked_loss
from legroom.train.guarding.recovery import classify_failure, use_expandable_segments
from legroom.train.guarding.scaling import make_scaling
from legroom.train.guarding.state.batch_statistics import whole_batch_statistics
from legroom.train.guarding.state.transaction import Transaction, retry_after_release
from legroom.train.guarding.verification import GradientComparison, verify_gradients
from legroom.train.ranks.protocol import RankCoordinator, SingleProcess
from legroom.train.sizes.micro_batch_size import MicroBatchSizer, even_split, micro_batch_sizes
from legroom.train.sizes.plan_cache import PlanCache
from legroom.units import format_size

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Coupling = Literal["warn", "ignore", "sync", "no-split"]


@dataclass(frozen=True, slots=True)
class StepSummary:
    """The micro-batches, attempts and fallbacks of the latest step."""

    split: tuple[int, ...]
    """The number of samples in each micro-batch."""
    attempts: int
    fallbacks: tuple[str, ...]
    """The fallbacks that are active because a single sample did not fit."""


class Guard:
    """Training steps of one model and one optimizer that recover from out-of-memory errors without changing the
    gradients.

    `precision` is "bf16", "fp16", "fp32", "auto" or a `legroom.precision(...)`. Alternatively, pass your own GradScaler
    as `scaler` and use autocast in your function. `max_micro_batch_size` is the maximum number of samples per pass.
    `batch_dim` is the batch dimension of the tensors. `unsplit` contains the positions or names of the arguments that
    are never split. `reduction` is the reduction of the loss over samples. By default, Guard determines the reduction
    at the first split. `weight` is a function that counts elements in a batch, for a loss that is a mean over elements
    other than samples, such as tokens. `clip_norm` is the norm to which gradients are clipped. `coupling` determines
    what Guard does if samples depend on each other. `fallbacks` lists the techniques to try if a single sample does not
    fit. With `cache_sizes`, the sizes that fit are stored for the next run. If `on_finding` is given, it is called with
    each warning, and the warning is not logged.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        precision: Any = None,
        scaler: Any = None,
        max_micro_batch_size: int | None = None,
        batch_dim: int = 0,
        unsplit: Iterable[int | str] = (),
        reduction: Reduction | Literal["auto"] = "auto",
        weight: Weight | None = None,
        clip_norm: float | None = None,
        coupling: Coupling = "warn",
        fallbacks: Sequence[FallbackName] = EXACT_FALLBACKS,
        cache_sizes: bool = True,
        sizer: MicroBatchSizer | None = None,
        ranks: RankCoordinator | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        _check(model, optimizer, reduction, coupling, clip_norm, weight)
        self.model, self.optimizer = model, optimizer
        self.device = _device(model)
        self.precision = make_scaling(precision, scaler, self.device)
        self.scaler = self.precision.scaler
        self.findings: list[Finding] = []
        """All warnings so far. Each warning is reported once."""
        self.last_step: StepSummary | None = None
        self.sizer = sizer or MicroBatchSizer(max_size=max_micro_batch_size)
        self._plan_cache = PlanCache(model, self.device, precision) if cache_sizes and sizer is None else None
        self._max_micro_batch_size = max_micro_batch_size
        self._batch_dim = check_count("batch_dim", batch_dim, minimum=0)
        self._unsplit = frozenset(check_names("unsplit", unsplit, "['mask']"))
        self._reduction: Reduction | None = None if reduction == "auto" else reduction
        self._weight, self._clip_norm, self._coupling = weight, clip_norm, coupling
        self._ranks: RankCoordinator = ranks or _ranks_for(model)
        self._transaction = Transaction(model, partial(_parameters, optimizer), self.device)
        self._optimizer_step = OptimizerStep(optimizer, self.device)
        self._fallbacks = Fallbacks(fallbacks, model, self.device)
        self._stats = StepStats(self.device)
        self._is_coupling_checked = False
        self._on_finding = on_finding
        self._evaluation = Evaluation(
            model, self.device, max_micro_batch_size, batch_dim, self._unsplit, self._ranks
        )

    # ------------------------------------------------------------ public methods

    def step(self, loss_fn: LossFunction, *batch: Any, **named: Any) -> torch.Tensor:
        """Run the forward pass, the backward pass and the optimizer step, set gradients to None, and return the
        detached loss of the batch.

        `loss_fn(*batch, **named)` returns the loss of the samples that it receives. Existing gradients (from `backward`)
        are included in the step.
        """
        loss = self.backward(loss_fn, *batch, **named)
        self.optimizer_step()
        return loss

    def backward(self, loss_fn: LossFunction, *batch: Any, **named: Any) -> torch.Tensor:
        """Run only the forward and backward pass, and add to the existing gradients. Call `optimizer_step()` to
        complete the step."""
        if not callable(loss_fn):
            raise UsageError(
                f"The first argument must be the loss function, not {type(loss_fn).__name__}. Pass the batch after the function."
            )
        arguments = BatchArguments(batch, named, self._batch_dim, self._unsplit)
        self._optimizer_step.reservation.reserve()
        self._transaction.begin()
        try:
            loss = self._run_batch(loss_fn, arguments)
        finally:
            self._transaction.commit()
        return loss

    def optimizer_step(self) -> None:
        """Unscale, clip, step the optimizer, set gradients to None and update the loss scale.

        This method recovers from out-of-memory errors in any of these operations.
        """
        clip = self._clip_norm

        def before() -> None:
            self.precision.unscale_(self.optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(list(_parameters(self.optimizer)), clip)

        scaled = self.scaler is not None
        try:
            self._optimizer_step.run(
                self.precision.step,
                before=before if scaled or clip is not None else None,
                after=self.precision.update if scaled else None,
            )
        except RuntimeError as error:
            if not classify_failure(error).is_oom:
                raise
        else:
            if not scaled:
                self.precision.update()
            return
        unfinished = optimizer_does_not_fit(self.optimizer, self.device)
        self._ranks.abort(str(unfinished))
        raise unfinished

    def join(self, batches: Iterable[T]) -> Iterator[T]:
        """Iterate over a loader whose length differs between ranks, as in `for x, y in guard.join(loader)`.

        A rank without further batches repeats its last batch with weight 0 until all ranks are done.
        """
        if self._reduction == "sum":
            raise UsageError(
                "join() requires a loss that is a mean. With reduction='sum', a repeated batch would be counted twice."
            )
        return self._ranks.join(batches)

    def evaluate(self, function: Callable[..., Any], *batch: Any, **named: Any) -> Any:
        """Call `function(*batch, **named)` without gradients, in micro-batches if needed, and on the CPU as a last
        resort.

        Results with a batch dimension are concatenated. Single integers are counts, which are summed. Other single
        numbers are averaged over the samples.
        """
        return self._evaluation.evaluate(function, batch, named)

    def batched(self, function: F) -> F:
        """Return a function that runs in micro-batches if memory is short. The gradient mode of the caller applies."""
        return cast(F, self._evaluation.decorated(function))

    def verify(
        self, loss_fn: LossFunction, *batch: Any, micro_batch_size: int | None = None, **named: Any
    ) -> GradientComparison:
        """Compare the gradients of a split batch with the gradients of the whole batch, without changing any state.
        Dropout is disabled during the comparison."""

        def too_large(passes: Passes, failure: Any) -> DoesNotFit:
            return self._does_not_fit("A batch of two samples", failure, passes.phase)

        return verify_gradients(
            self.model,
            self.precision,
            self._transaction,
            partial(self._new_passes, loss_fn),
            too_large,
            BatchArguments(batch, named, self._batch_dim, self._unsplit),
            micro_batch_size,
        )

    def step_without_recovery(self, loss_fn: LossFunction, *batch: Any, **named: Any) -> torch.Tensor:
        """Run one training step on the whole batch, without splitting it. Out-of-memory errors are raised to the
        caller."""
        with self.precision.autocast():
            loss = checked_loss(loss_fn(*batch, **named))
        self.precision.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.optimizer_step()
        return loss.detach()

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the micro-batch sizes, the active fallbacks, the loss's reduction and the loss scale."""
        return {
            "sizes": self.sizer.state_dict(),
            "fallbacks": list(self._fallbacks.names),
            "reduction": self._reduction,
            "precision": self.precision.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state from a checkpoint. A resumed run uses the same micro-batch sizes, so its rounding errors are
        the same as in an uninterrupted run.
        """
        if not {"sizes", "fallbacks", "reduction", "precision"} <= set(state):
            raise UsageError(
                "The argument is not the state of a Guard. Pass the result of Guard.state_dict()."
            )
        if state["sizes"].get("micro_batch_size") is not None:
            self.sizer = MicroBatchSizer(max_size=self._max_micro_batch_size, state=state["sizes"])
            if self._plan_cache is not None:
                self._plan_cache.is_unread = False  # the checkpoint is newer than the cache
        while len(self._fallbacks.active) < len(state["fallbacks"]) and self._fallbacks.activate_next():
            pass
        self._reduction = self._reduction or state["reduction"]
        self.precision.load_state_dict(state["precision"])

    # ------------------------------------------------------------ one batch

    def _run_batch(self, loss_fn: LossFunction, batch: BatchArguments) -> torch.Tensor:
        transaction = self._transaction
        if self._plan_cache is not None and self._plan_cache.is_unread:
            self._load_plan(batch)
        micro = self._first_size(batch.batch_size)
        attempts = 1
        self._stats.begin(self.sizer)
        passes = self._new_passes(loss_fn, batch, micro)
        while True:
            if len(passes.sizes) > 1 and not self._is_coupling_checked:
                self._check_coupling(loss_fn, batch, passes.sizes)
                passes = self._new_passes(loss_fn, batch, micro, passes)
            failure = passes.run()
            if failure is None and passes.retry_size is None:
                retry_size = self._ranks.agree(None, micro)
                if retry_size is None:
                    break
            else:
                transaction.release()
                if passes.retry_size is None:
                    self._ranks.complete_pending(failure)
                    largest = max(passes.sizes[passes.done :] or passes.sizes)
                    smaller = self._smaller(batch.batch_size, largest, failure, passes.phase)
                    retry_size = self._ranks.agree(failure, smaller)
                else:
                    retry_size = passes.retry_size
            attempts += 1
            partly_done = passes if failure is not None and self._can_keep_finished(passes) else None
            if partly_done is not None:
                transaction.rollback_to_savepoint()
            else:
                transaction.rollback()
            if retry_size == 0:
                retry_size = self._apply_fallback(batch.batch_size, failure, passes.phase)
            assert retry_size is not None
            self._log_split(batch.batch_size, retry_size, passes.phase, failure is not None)
            micro = retry_size
            passes = self._new_passes(loss_fn, batch, micro, partly_done)
        self.last_step = StepSummary(tuple(passes.sizes), attempts, self._fallbacks.names)
        self._stats.end(self.sizer, batch.batch_size, max(passes.sizes))
        if self._plan_cache is not None and not self._fallbacks.active:
            self._plan_cache.save(self.sizer)
        assert passes.loss is not None
        return passes.loss

    def _load_plan(self, batch: BatchArguments) -> None:
        assert self._plan_cache is not None
        stored = self._plan_cache.load((batch.arguments, batch.named), self._max_micro_batch_size)
        if stored is None:
            return
        self.sizer = stored
        size = stored.micro_batch(batch.batch_size)
        if size < batch.batch_size and self._coupling != "no-split":
            log.warning(
                "Splitting the batch of %d into micro-batches of at most %d, which fit in an earlier run. The results "
                "may differ from a run without a stored size because of rounding, dropout masks and batch statistics. To "
                "start with the whole batch, pass Guard(..., cache_sizes=False).",
                batch.batch_size,
                size,
            )

    def _new_passes(
        self, loss_fn: LossFunction, batch: BatchArguments, micro: int, partly_done: Passes | None = None
    ) -> Passes:
        finished = list(partly_done.sizes[: partly_done.done]) if partly_done is not None else []
        sizes = finished + self._split(batch.batch_size - sum(finished), micro)
        return Passes(
            loss_fn,
            batch,
            sizes,
            retry_after_release(lambda: self._weights(batch, sizes)),
            self.precision,
            self._ranks,
            self._fallbacks.contexts,
            self._between_micro_batches,
            self._around_micro_batches if len(sizes) > 1 else nullcontext,
            kind=self._fallbacks.names,
            done=len(finished),
            loss=partly_done.loss if partly_done is not None else None,
            min_samples=min(batch.batch_size, self._min_samples()),
        )

    def _split(self, batch_size: int, micro: int) -> list[int]:
        plan = self._ranks.plan(batch_size, min(micro, batch_size))
        if not isinstance(self._ranks, SingleProcess):
            own = min(plan.passes, max(1, batch_size // self._min_samples()))
            # If all ranks must run the same number of passes, the passes without samples have weight 0.
            return even_split(batch_size, own) + [0] * (plan.passes - own if plan.is_exact else 0)
        sizes = micro_batch_sizes(batch_size, plan.micro_batch_size)
        leaves_single_sample = sizes[-1] == 1 < batch_size and self._min_samples() > 1
        return even_split(batch_size, batch_size // 2) if leaves_single_sample else sizes

    def _min_samples(self) -> int:
        """Return the minimum number of samples in a micro-batch. The minimum is 2 for a model with batch
        normalization, because PyTorch cannot apply batch normalization to a single sample in training mode.
        """
        return 2 if self._max_micro_batch_size != 1 and couplings.batch_norm_layers(self.model) else 1

    def _weights(self, batch: BatchArguments, sizes: Sequence[int]) -> list[float]:
        if isinstance(self._ranks, SingleProcess) and len(sizes) == 1:
            return [1.0]
        reduction = self._reduction or "mean"
        total: float | None = None
        if self._weight is not None or reduction == "mean":
            total = (
                float(batch.batch_size)
                if self._weight is None
                else count_weight(self._weight, batch, 0, batch.batch_size)
            )
            total = self._ranks.total_weight(total, counts_samples=self._weight is None)
        return loss_weights(batch, sizes, reduction, self._weight, total)

    def _around_micro_batches(self) -> AbstractContextManager[Any]:
        return whole_batch_statistics(self.model) if self._coupling == "sync" else nullcontext()

    def _between_micro_batches(self) -> None:
        if self._ranks.keeps_finished_micro_batches and self._coupling != "sync":
            self._transaction.savepoint()

    def _can_keep_finished(self, passes: Passes) -> bool:
        """Return True if the gradients are still exactly the gradients of the finished micro-batches. If a backward
        pass was interrupted, it may have added to some of the gradients.
        """
        return (
            0 < passes.done < len(passes.sizes)
            and passes.phase == "forward"
            and self._coupling != "sync"
            and self._transaction.can_rollback_to_savepoint()
            # An odd remainder cannot be split into pairs, while the whole batch may be.
            and (
                self._min_samples() == 1
                or (passes.batch.batch_size - sum(passes.sizes[: passes.done])) % 2 == 0
            )
        )

    # ------------------------------------------------------------ sizes and fallbacks

    def _first_size(self, batch_size: int) -> int:
        if self._coupling == "no-split":
            return batch_size
        return self.sizer.micro_batch(batch_size)

    def _smaller(
        self, batch_size: int, micro: int, failure: Any, phase: Literal["forward", "backward"]
    ) -> int:
        if self.sizer.may_retry(micro, failure):
            log.warning(
                "Out of memory in the %s pass, although %s was free: memory is fragmented. Retrying with an empty "
                "cache%s.",
                phase,
                format_size(failure.limit - failure.allocated),
                " and expandable segments" if use_expandable_segments(self.device) else "",
            )
            return micro
        if self._coupling == "no-split":
            return 0
        smaller = self.sizer.failed(
            batch_size, micro, failure, phase=phase, allocated_before=self._stats.allocated()
        )
        smallest = even_split(batch_size, max(1, batch_size // self._min_samples()))[0]
        if micro <= smallest:
            return 0
        if smaller < smallest:
            self.sizer.set_size(smallest, "batch normalization requires more than one sample")
        return max(smaller, smallest)

    def _apply_fallback(self, batch_size: int, failure: Any, phase: str) -> int:
        subject = self._smallest_unit()
        if self._transaction.offload_earlier_gradients():
            log.warning(
                "%s did not fit. Moving the gradients of earlier batches to host memory for this step.",
                subject,
            )
            return batch_size if self._coupling == "no-split" else 1
        if self._optimizer_step.reservation.release():
            log.warning("%s did not fit. No longer reserving memory for the optimizer state.", subject)
            self.sizer.restart()
            return self._first_size(batch_size)
        fallback = self._fallbacks.activate_next()
        if fallback is None:
            error = self._does_not_fit(subject, failure, phase)
            self._ranks.abort(str(error))
            raise error
        log.warning("%s did not fit. Trying %s. %s", subject, fallback.name, fallback.cost)
        if self._coupling == "no-split":
            return batch_size
        self.sizer.restart()
        self.sizer.set_size(
            self._min_samples(), f"starting with the smallest size after activating {fallback.name}"
        )
        return 1

    def _smallest_unit(self) -> str:
        if self._coupling == "no-split":
            return "The whole batch (coupling='no-split')"
        if self._min_samples() == 1:
            return "A single sample"
        return "A micro-batch of two samples"

    def _does_not_fit(self, subject: str, failure: Any, phase: str) -> DoesNotFit:
        return does_not_fit(
            subject,
            failure,
            phase,
            self.model,
            self.optimizer,
            self.device,
            self._fallbacks.names,
            self._stats.allocated(),
        )

    def _log_split(self, batch_size: int, micro: int, phase: str, failed_here: bool) -> None:
        if micro >= batch_size:
            return
        cause = f"Out of memory in the {phase} pass" if failed_here else "Another rank ran out of memory"
        count = -(-batch_size // micro)
        size = f"{batch_size // count}" if batch_size % count == 0 else f"at most {-(-batch_size // count)}"
        reason = f" ({self.sizer.choice.reason})" if self.sizer.choice is not None else ""
        log.warning(
            "%s. Retrying the batch of %d as %d micro-batches of %s%s.",
            cause,
            batch_size,
            count,
            size,
            reason,
        )

    def _check_coupling(self, loss_fn: LossFunction, batch: BatchArguments, sizes: Sequence[int]) -> None:
        self._is_coupling_checked = True
        names = couplings.batch_norm_layers(self.model)
        if names and self._coupling == "warn":
            self._report(couplings.batch_norm_finding(names, len(sizes)))
        if not isinstance(self._ranks, SingleProcess):
            return  # a forward pass on one rank only would block the others
        probe = couplings.probe_reduction(self.model, loss_fn, batch, self._weight, self.precision.autocast)
        self._transaction.rollback()
        if self._reduction is None:
            self._reduction = probe.reduction
        if probe.losses is not None and probe.reduction != (self._reduction or "mean"):
            self._report(couplings.coupled_loss_finding(probe, len(sizes)))

    def _report(self, finding: Finding) -> None:
        self.findings.append(finding)
        if self._on_finding is not None:
            self._on_finding(finding)
        else:
            log.warning("%s %s %s", finding.code, finding.message, finding.fix)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _check(
    model: Any, optimizer: Any, reduction: str, coupling: str, clip_norm: float | None, weight: Any
) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"Guard expects the model (nn.Module) as its first argument, not {type(model).__name__}."
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            "Guard expects the optimizer (torch.optim.Optimizer) as its second argument, "
            f"not {type(optimizer).__name__}."
        )
    if reduction not in ("auto", "mean", "sum"):
        raise UsageError(
            f"reduction='{reduction}' is not valid. Use 'auto', 'mean' or 'sum'. For a mean over tokens, pass weight=."
        )
    if clip_norm is not None:
        check_positive("clip_norm", clip_norm)
    if weight is not None and not callable(weight):
        raise UsageError(
            f"weight= must be a function that counts the elements of a batch, not {type(weight).__name__}."
        )
    if coupling not in ("warn", "ignore", "sync", "no-split"):
        raise UsageError(f"coupling='{coupling}' is not valid. Use 'warn', 'ignore', 'sync' or 'no-split'.")


def _device(model: nn.Module) -> torch.device:
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise UsageError(
            f"The model's parameters are on {' and '.join(devices)}, but Guard requires a single device. "
            "Move the model to one device, or use one Guard per part."
        )
    if not devices:
        raise UsageError("The model has no parameters, so there is nothing to train.")
    return torch.device(devices[0])


def _ranks_for(model: nn.Module) -> RankCoordinator:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return SingleProcess()
    from legroom.train.ranks.coordinator import ranks_for

    return cast(RankCoordinator, ranks_for(model) or SingleProcess())
