"""`legroom.find_batch` finds the largest batch size of a training step on the current GPU by running the step.

The first trial runs the step with a small batch, after a warm-up at half the size, and logs the allocation requests.
The requests at two sizes are extrapolated to any other size and replayed in the allocator model with the available
capacity (`extrapolation`). The second trial uses a size slightly below the prediction, and its log improves the
prediction. The third trial uses the predicted size. If memory grows regularly with the batch size, these three trials
are enough and none of them fails. If a size fails, or if the last log shows that a larger size fits, the search
continues.

After the search, the state is restored bit for bit: weights, gradients, optimizer state, schedulers, scalers and random
generators (`state_snapshot`). Every trial starts from the initial state and therefore includes the creation of
optimizer state.
"""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from legroom.arguments import check_count
from legroom.diagnose.oom.recognize import classify
from legroom.errors import LegroomError, UsageError
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.tracing.resize import batch_size_of, resized
from legroom.train.sizes.capacity import device_capacity, gpu_in_use, memory_fraction
from legroom.train.sizes.extrapolation import Extrapolation, LoggedTrial
from legroom.train.sizes.request_log import log_requests
from legroom.train.sizes.state_snapshot import StateSnapshot
from legroom.units import MiB, format_size, parse_size

MAX_BATCH_SIZE = 1 << 20
SECOND_FRACTION, FAR_FRACTION, FAR = 0.93, 0.85, 128
"""The second size to try, as a fraction of the size that the first two logs predict. `FAR_FRACTION` is used if the
predicted size is more than `FAR` times the first size. For 13 models on an H200, these long extrapolations were
between 13% too low and 4% too high.
"""
LAST_FRACTION = 0.97
"""If a prediction is not reliable, this fraction of the predicted size is tried first."""
NEAR = 0.8
"""A prediction is treated as reliable if a size of at least this fraction of the predicted size has been tried and
fits."""
GOOD_ENOUGH = 0.975
"""The search ends after the regular trials if a size that fits is at least this fraction of the largest possible size."""
REGULAR_TRIALS = 3
MAX_TRIALS = 6
"""The maximum number of trials. Additional trials are needed after failures, or if libraries selected different kernels
for the sizes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTrial:
    """A trial of one batch size."""

    batch_size: int
    fits: bool
    peak_allocated: int
    peak_reserved: int
    seconds: float
    """The runtime of all steps of the trial. The first step includes the creation of optimizer state."""
    retries: int
    """The number of times that the allocator freed its cache to serve a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatchSize:
    """The largest batch size, with the trials of the search."""

    batch_size: int
    """The largest batch size that fits."""
    trials: tuple[SizeTrial, ...]
    oom_count: int
    peak_reserved: int
    """The number of bytes that PyTorch reserved with the largest batch size."""
    capacity: int
    """The number of bytes that PyTorch can reserve."""
    seconds: float
    reason: str

    def __str__(self) -> str:
        return self.reason


def find_batch(
    step: Any,
    batch: Any,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    start: int = 4,
    multiple_of: int = 1,
    max_batch_size: int = MAX_BATCH_SIZE,
    steps: int = 3,
    leave_free: str | int | None = None,
    extra_state: tuple[Any, ...] = (),
) -> FoundBatchSize:
    """Find the largest batch size of `step` on the current GPU, real or virtual.

    `step` is a function that takes a batch and runs one complete training step, or a `legroom.Guard` with `loss_fn`.
    `batch` is one batch. To create batches of other sizes, samples of `batch` are repeated or dropped. `batch` can also
    be a function that takes a size and returns a batch, or a DataLoader, whose first batch is used. A tuple or list is
    passed as several arguments: `step(x, y)`.

    `start` is the first size to try. Choose a size that is certain to fit. `leave_free` is the memory to leave free,
    such as "1GiB". `extra_state` contains objects that the step changes but does not reference by name. Raises
    LegroomError if a batch of `multiple_of` samples does not fit.
    """
    for name, value in (
        ("start", start),
        ("multiple_of", multiple_of),
        ("max_batch_size", max_batch_size),
        ("steps", steps),
    ):
        check_count(name, value)
    if multiple_of > max_batch_size:
        raise UsageError(
            f"multiple_of={multiple_of} is not valid. Pass a number between 1 and max_batch_size "
            f"({max_batch_size})."
        )
    gpu_in_use()
    run = _as_step(step, loss_fn)
    snapshot = StateSnapshot(step, loss_fn, extra_state, data=batch)
    try:
        make_batch = _as_batch_function(batch)
        search = _Search(
            _Trials(run, make_batch, snapshot, steps, 0 if leave_free is None else parse_size(leave_free)),
            multiple_of=multiple_of,
            max_size=max_batch_size // multiple_of * multiple_of,
        )
        return search.run(start)
    finally:
        snapshot.restore()
        _free_cache()


class _Search:
    def __init__(self, trials: "_Trials", *, multiple_of: int, max_size: int) -> None:
        self.trials = trials
        self.multiple_of = multiple_of
        self.max_size = max_size
        self.fits = 0
        self.fails = max_size + 1

    def run(self, start: int) -> FoundBatchSize:
        start_time = time.perf_counter()
        self.trials.warm_up(self._rounded(start // 2))
        size: int | None = self._rounded(start)
        while size is not None and self.trials.count < MAX_TRIALS:
            if self.trials.run(size):
                self.fits = max(self.fits, size)
            else:
                self.fails = min(self.fails, size)
                if size <= self.multiple_of:
                    raise LegroomError(self._nothing_fits(size))
            size = self._next()
        return self._result(time.perf_counter() - start_time)

    def _next(self) -> int | None:
        failed = self.fails <= self.max_size
        if not self.fits:
            return self._rounded(self.fails // 4)
        if self.fails - self.fits <= self.multiple_of or self.fits >= self.max_size:
            return None
        logged = self.trials.logged
        if len(self.trials.fitting) < 2:
            return self._within(self._second_size())
        capacity = self.trials.capacity()
        if len(logged) < 2:
            predicted, certain, is_far = self._predict_from_peaks(capacity), False, False
        else:
            extrapolation = Extrapolation(logged[-2], logged[-1], self.trials.settings)
            certain = extrapolation.matched
            is_far = logged[-1].size > FAR * logged[-2].size
            slack = 0 if extrapolation.is_exact(capacity) else max(2 * MiB, capacity // 500)
            if failed:  # the prediction was wrong: leave a margin
                slack = capacity // 20 if logged[-1].size < 0.9 * self.fails else capacity // 50
            predicted = extrapolation.largest(
                capacity,
                known_to_fit=self.fits,
                max_size=self.fails - 1,
                slack=slack,
                optional_workspaces=not failed and self.trials.count < REGULAR_TRIALS,
            )
        if predicted <= self.fits:
            return None
        bound = self.fails - 1 if failed else predicted
        if self.trials.count >= REGULAR_TRIALS and self.fits >= GOOD_ENOUGH * bound:
            return None
        if failed and self.trials.count >= REGULAR_TRIALS:
            return self._within(min(predicted, (self.fits + self.fails) // 2))
        reliable = not is_far and (certain or self.fits >= NEAR * predicted)
        return self._within(predicted if reliable else int(predicted * LAST_FRACTION))

    def _second_size(self) -> int:
        """Return a size that fits according to the logs of the warm-up and the first trial, or a safe size after a
        failure."""
        small, logged, capacity = self.trials.warm_up_log, self.trials.logged, self.trials.capacity()
        safe = self._safe_size()
        if self.fails <= self.max_size or small is None or not logged or small.size >= logged[0].size:
            return safe
        extrapolation = Extrapolation(small, logged[0], self.trials.settings)
        predicted = extrapolation.largest(capacity, known_to_fit=self.fits, max_size=self.max_size)
        fraction = FAR_FRACTION if predicted > FAR * self.fits else SECOND_FRACTION
        return max(safe, int(fraction * predicted))

    def _safe_size(self) -> int:
        """Return a size that fits even if all memory of the first trial grows with the batch size."""
        trial, before = self.trials.fitting[-1], self.trials.allocated_before
        used = max(1, trial.peak_reserved - before)
        return int(0.9 * trial.batch_size * (self.trials.capacity() - before) / used)

    def _predict_from_peaks(self, capacity: int) -> int:
        """Return the size at which the line through the two largest peaks reaches the capacity, minus a margin for
        fragmentation.
        """
        small, large = sorted(self.trials.fitting, key=lambda trial: trial.batch_size)[-2:]
        slope = (large.peak_reserved - small.peak_reserved) / (large.batch_size - small.batch_size)
        if slope <= 0:
            return self.fits * 2
        return int(large.batch_size + (0.98 * capacity - large.peak_reserved) / slope)

    def _within(self, size: int) -> int | None:
        """Limit `size` to the range between the largest size that fit and the smallest size that failed. Return None if
        the range is empty.
        """
        size = self._rounded(min(size, self.fails - 1))
        if size <= self.fits:
            size = self.fits + self.multiple_of
        return size if self.fits < size < self.fails else None

    def _rounded(self, size: int) -> int:
        return max(self.multiple_of, min(self.max_size, size) // self.multiple_of * self.multiple_of)

    def _result(self, seconds: float) -> FoundBatchSize:
        done = self.trials.done
        best = max(self.trials.fitting, key=lambda trial: trial.batch_size)
        capacity = self.trials.capacity()
        oom_count = sum(not trial.fits for trial in done)
        tested = (
            "No other size was tested."
            if len(done) == 1
            else f"Sizes tested: {len(done)} ({oom_count or 'none'} ran out of memory)."
        )
        reason = f"A batch size of {best.batch_size} uses {format_size(best.peak_reserved)} of {format_size(capacity)}. {tested}"
        if best.batch_size >= self.max_size:
            reason += f" The maximum allowed size is {self.max_size}."
        elif self.fails <= self.max_size:
            reason += f" A batch size of {self.fails} did not fit."
        if best.retries:
            times = "once" if best.retries == 1 else f"{best.retries} times"
            reason += f" The allocator freed its cache {times}, so a slightly smaller size may be faster."
        return FoundBatchSize(
            batch_size=best.batch_size,
            trials=tuple(done),
            oom_count=oom_count,
            peak_reserved=best.peak_reserved,
            capacity=capacity,
            seconds=seconds,
            reason=reason,
        )

    def _nothing_fits(self, size: int) -> str:
        samples = "A single sample" if size == 1 else f"A batch of {size}"
        return (
            f"{samples} does not fit into {format_size(self.trials.capacity())}. Run `legroom run` to see "
            "the memory use by line and variable, and `legroom estimate` to list options that save memory."
        )


class _Trials:
    """Runs steps with different batch sizes, each from the same state, and stores the measurements."""

    def __init__(
        self,
        step: Callable[[Any], object],
        make_batch: Callable[[int], Any],
        snapshot: StateSnapshot,
        steps: int,
        leave_free: int,
    ) -> None:
        self._step, self._make_batch, self._snapshot = step, make_batch, snapshot
        self._steps, self._leave_free = steps, leave_free
        self._device = gpu_in_use()
        self.settings = (
            AllocatorSettings.from_environment(os.environ, torch.__version__)
            if VirtualGPU._active is None
            else VirtualGPU._active.devices[self._device.index or 0].allocator.settings
        )
        self.done: list[SizeTrial] = []
        self.logged: list[LoggedTrial] = []
        self.allocated_before = 0
        self.warm_up_log: LoggedTrial | None = None

    @property
    def fitting(self) -> list[SizeTrial]:
        return [trial for trial in self.done if trial.fits]

    @property
    def count(self) -> int:
        return len(self.done)

    def capacity(self) -> int:
        return device_capacity(self._device) - self._leave_free

    def warm_up(self, size: int) -> None:
        """Run a step so that libraries are loaded and workspaces are allocated. Then run the step again and log its
        requests.
        """
        with _limit_memory(self._device, self._leave_free):
            fits = self._fits(size, 1)
        if fits:
            _, self.warm_up_log = self._measure(size)

    def run(self, size: int) -> bool:
        trial, log = self._measure(size)
        self.done.append(trial)
        if log is not None:
            self.logged.append(log)
            self.logged.sort(key=lambda logged: logged.size)
        return trial.fits

    def _measure(self, size: int) -> tuple[SizeTrial, LoggedTrial | None]:
        """Run the step with a batch of this size from the initial state. The log is None if the size does not fit."""
        self._snapshot.restore()
        _free_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self.allocated_before = torch.cuda.memory_allocated(self._device)
        retries = _retries(self._device)
        start_time = time.perf_counter()
        with log_requests(self._device) as log, _limit_memory(self._device, self._leave_free):
            fits = self._fits(size, self._steps)
        trial = SizeTrial(
            batch_size=size,
            fits=fits,
            peak_allocated=torch.cuda.max_memory_allocated(self._device),
            peak_reserved=torch.cuda.max_memory_reserved(self._device),
            seconds=time.perf_counter() - start_time,
            retries=_retries(self._device) - retries,
        )
        self._snapshot.restore()
        _free_cache()
        if not fits or log.requests is None:
            return trial, None
        return trial, LoggedTrial(size, log.segments, log.requests, trial.peak_allocated, trial.peak_reserved)

    def _fits(self, size: int, steps: int) -> bool:
        """Run the steps. Return False if memory runs out, and True otherwise. If memory runs out, the exception and
        its frames are freed before this method returns.
        """
        try:
            for _ in range(steps):
                self._step(self._make_batch(size))
            torch.cuda.synchronize(self._device)
        except Exception as error:
            if not classify(error).is_oom:
                raise
            return False
        return True


def _as_step(step: Any, loss_fn: Callable[..., torch.Tensor] | None) -> Callable[[Any], object]:
    guard_step = getattr(step, "step_without_recovery", None)
    if guard_step is None and (loss_fn is not None or not callable(step)):
        raise UsageError(
            "Pass a function that takes a batch and runs one training step, or a Guard with loss_fn=."
        )
    if guard_step is not None and loss_fn is None:
        raise UsageError(
            "With a Guard, also pass the loss function: legroom.find_batch(guard, batch, loss_fn=...)."
        )

    def run(batch: Any) -> object:
        return _call(step, (), batch) if guard_step is None else _call(guard_step, (loss_fn,), batch)

    return run


def _call(function: Callable[..., Any], first: tuple[Any, ...], batch: Any) -> Any:
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        return function(*first, *batch)
    return function(*first, batch)


def _as_batch_function(batch: Any) -> Callable[[int], Any]:
    if isinstance(batch, DataLoader):
        batch = next(iter(batch))
    elif callable(batch) and not isinstance(batch, torch.Tensor | Mapping):
        make_batch: Callable[[int], Any] = batch
        return make_batch
    elif isinstance(batch, Iterator):
        raise UsageError(
            "batch= is an iterator, which find_batch would exhaust. Pass a batch, a DataLoader, or a "
            "function that takes a size and returns a batch."
        )
    if not batch_size_of(batch):
        raise UsageError(
            "The batch size cannot be changed, because no tensor in the batch has a batch dimension. Pass a batch of tensors whose first dimension is the batch size, or a function that takes a size and returns a batch."
        )
    return lambda size: resized(batch, size)


@contextlib.contextmanager
def _limit_memory(device: torch.device, leave_free: int) -> Iterator[None]:
    if not leave_free:
        yield
        return
    total = torch.cuda.mem_get_info(device)[1]
    before = memory_fraction(device)
    allowed = device_capacity(device) - leave_free
    if allowed <= 0:
        raise UsageError(
            f"leave_free={format_size(leave_free)} leaves no memory for training. Only {format_size(allowed + leave_free)} is available."
        )
    torch.cuda.set_per_process_memory_fraction(allowed / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


def _retries(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))


def _free_cache() -> None:
    gc.collect()
    torch.cuda.empty_cache()
