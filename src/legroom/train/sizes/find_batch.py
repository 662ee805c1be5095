"""`legroom.find_batch`: the largest batch that a training step can take on this GPU, each answer having been run.

Two small sizes are run with the allocator's requests logged. From these the step at any size is foretold, request by
request, and replayed with the capacity in force (`extrapolation`); a size just below what is foretold is run, the log
of that run foretells the rest, and the last size is run too. So memory that grows evenly triggers no failure at all,
and at most four sizes are run. Where a size fails all the same, the search closes in from what ran.

Afterwards everything is as before, bit for bit: weights, gradients, optimizer state, schedulers, scalers, random
numbers (`preserving`). Every trial begins from there too, so optimizer state that the first step makes is counted.
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

from legroom.diagnose.oom.recognize import classify
from legroom.errors import LegroomError, UsageError
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.tracing.resize import batch_size_of, resized
from legroom.train.sizes.capacity import device_capacity, gpu_in_use, memory_fraction
from legroom.train.sizes.extrapolation import Extrapolation, Logged
from legroom.train.sizes.request_log import recorded
from legroom.train.sizes.state_snapshot import Preserved
from legroom.units import MiB, format_size, parse_size

MOST = 1 << 20
"""No batch is larger than this."""
FURTHEST = 16
"""Times the first size: no further is the second, since one size says little of how memory grows."""
BELOW_FORETOLD = 0.98
"""Of the foretold size: where its first run is, so that an error of a percent or so costs no failure."""
BELOW_GUESSED = 0.95
"""The same, where the two logs did not match."""
BELOW_LAST = 0.985
"""The same, of the last size run where all goes as a rule."""
NEAR_ENOUGH = 0.97
"""Of the foretold size: what is this near after a few trials is the answer."""
FEW_TRIALS = 4
MOST_TRIALS = 6
"""The further ones are for closing in after a failure, or where kernels changed on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One size that was run."""

    size: int
    fits: bool
    peak_allocated: int
    peak_reserved: int
    seconds: float
    """Of the steps; the first of them includes making the optimizer's state."""
    retries: int
    """How often the allocator had to give back its cache to serve a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The largest batch, and how it was found."""

    size: int
    """Rows; this size was run."""
    trials: tuple[Trial, ...]
    ooms: int
    """How many of the trials ran out of memory."""
    peak: int
    """Bytes that PyTorch reserved at this size ..."""
    capacity: int
    """... of those it could have."""
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
    most: int = MOST,
    steps: int = 3,
    leave: str | int | None = None,
    also: tuple[Any, ...] = (),
) -> Found:
    """The largest batch that `step` can take on the GPU at hand, real or virtual.

    `step`: a function that takes a batch and does one whole training step, or a `legroom.Guard` with `loss_fn`.
    `batch`: a batch, whose rows are repeated or left out; a function of a size that makes one; or a DataLoader, of which
    one batch is taken. A batch that is a tuple or list is given as several arguments, as `step(x, y)`.

    `start`: the first size run; it should surely fit. `leave`: memory to leave free, such as "1GiB". `also`: what the
    step changes and cannot be reached from it by name. Raises LegroomError where not even `multiple_of` rows fit.
    """
    if not 1 <= multiple_of <= most:
        raise UsageError(
            f"a multiple of {multiple_of} that is at most {most} cannot be: give multiple_of between 1 and most"
        )
    if steps < 1 or start < 1:
        raise UsageError("start and steps must be 1 or more")
    gpu_in_use()
    run = _as_step(step, loss_fn)
    kept = Preserved(step, loss_fn, also, data=batch)
    try:
        make_batch = _as_maker(batch)
        search = _Search(
            _Trials(run, make_batch, kept, steps, 0 if leave is None else parse_size(leave)),
            multiple_of=multiple_of,
            most=most // multiple_of * multiple_of,
        )
        return search.run(start)
    finally:
        kept.restore()
        _give_back()


class _Search:
    """Which size to run next."""

    def __init__(self, trials: "_Trials", *, multiple_of: int, most: int) -> None:
        self.trials = trials
        self.multiple_of = multiple_of
        self.most = most
        self.fits = 0
        """The largest size that ran ..."""
        self.fails = most + 1
        """... and the smallest that did not."""

    def run(self, start: int) -> Found:
        began = time.perf_counter()
        self.trials.warm_up(self._rounded(start))
        size: int | None = self._rounded(start)
        while size is not None and self.trials.count < MOST_TRIALS:
            if self.trials.run(size):
                self.fits = max(self.fits, size)
            else:
                self.fails = min(self.fails, size)
                if size <= self.multiple_of:
                    raise LegroomError(self._nothing_fits(size))
            size = self._next()
        return self._found(time.perf_counter() - began)

    def _next(self) -> int | None:
        """The size to run next, or None when the answer is near enough."""
        failed = self.fails <= self.most
        if not self.fits:
            return self._rounded(self.fails // 4)
        if self.fails - self.fits <= self.multiple_of or self.fits >= self.most:
            return None
        logged = self.trials.logged
        if len(self.trials.ran) < 2:
            safe = self._safely()
            return self._within(min(safe, self.fits * FURTHEST))
        capacity = self.trials.capacity()
        if len(logged) < 2:
            foretold, exact = self._by_peaks(capacity), False
        else:
            line = Extrapolation(logged[-2], logged[-1], self.trials.settings)
            exact = line.matched
            slack = 0 if line.is_exact(capacity) else max(2 * MiB, capacity // 500)
            if failed:  # something was not foretold: leave room for it
                slack = capacity // 20 if logged[-1].size < 0.9 * self.fails else capacity // 50
            foretold = line.largest(capacity, least=self.fits, most=self.fails - 1, slack=slack)
        if foretold <= self.fits:
            return None
        bound = self.fails - 1 if failed else foretold
        if self.trials.count >= FEW_TRIALS and self.fits >= NEAR_ENOUGH * bound:
            return None
        if failed and self.trials.count >= FEW_TRIALS:
            return self._within(min(foretold, (self.fits + self.fails) // 2))
        if self.trials.count >= FEW_TRIALS - 1:
            return self._within(
                foretold if exact or self.fits >= 0.9 * foretold else int(foretold * BELOW_LAST)
            )
        return self._within(int(foretold * (BELOW_FORETOLD if exact else BELOW_GUESSED)))

    def _safely(self) -> int:
        """How far one trial allows to go: what it took beyond what was there before may all grow with the rows."""
        trial, before = self.trials.ran[-1], self.trials.allocated_before
        taken = max(1, trial.peak_reserved - before)
        return int(0.9 * trial.size * (self.trials.capacity() - before) / taken)

    def _by_peaks(self, capacity: int) -> int:
        """Where the line through the peaks of two sizes meets the capacity, less what the allocator loses to gaps."""
        small, large = sorted(self.trials.ran, key=lambda trial: trial.size)[-2:]
        slope = (large.peak_reserved - small.peak_reserved) / (large.size - small.size)
        if slope <= 0:
            return self.fits * 2
        return int(large.size + (0.98 * capacity - large.peak_reserved) / slope)

    def _within(self, size: int) -> int | None:
        """A size between what ran and what failed, or None when there is none left."""
        size = self._rounded(min(size, self.fails - 1))
        if size <= self.fits:
            size = self.fits + self.multiple_of
        return size if self.fits < size < self.fails else None

    def _rounded(self, size: int) -> int:
        return max(self.multiple_of, min(self.most, size) // self.multiple_of * self.multiple_of)

    def _found(self, seconds: float) -> Found:
        done = self.trials.done
        best = max((trial for trial in done if trial.fits), key=lambda trial: trial.size)
        capacity = self.trials.capacity()
        ooms = sum(not trial.fits for trial in done)
        reason = (
            f"{best.size} rows ran in {format_size(best.peak_reserved)} of {format_size(capacity)}; "
            f"{len(done)} sizes were run, {ooms or 'none'} of them out of memory"
        )
        if best.size >= self.most:
            reason += "; no more were allowed"
        elif self.fails <= self.most:
            reason += f"; {self.fails} rows did not fit"
        if best.retries:
            reason += (
                f"; the allocator gave back its cache {best.retries} times, so a little less may be faster"
            )
        return Found(
            size=best.size, trials=tuple(done), ooms=ooms, peak=best.peak_reserved, capacity=capacity,
            seconds=seconds, reason=reason + ".",
        )  # fmt: skip

    def _nothing_fits(self, size: int) -> str:
        rows = "a single row" if size == 1 else f"a batch of {size}"
        return (
            f"not even {rows} fits into {format_size(self.trials.capacity())}: see what holds the memory with `legroom run`, "
            "and what would save some with `legroom estimate`"
        )


class _Trials:
    """Runs sizes, each from the same beginning, and keeps what they showed."""

    def __init__(
        self,
        step: Callable[[Any], object],
        make_batch: Callable[[int], Any],
        kept: Preserved,
        steps: int,
        leave: int,
    ) -> None:
        self._step, self._make_batch, self._kept, self._steps, self._leave = (
            step,
            make_batch,
            kept,
            steps,
            leave,
        )
        self._device = gpu_in_use()
        self.settings = (
            AllocatorSettings.from_environment(os.environ, torch.__version__)
            if VirtualGPU._active is None
            else VirtualGPU._active.devices[self._device.index or 0].allocator.settings
        )
        self.done: list[Trial] = []
        self.logged: list[Logged] = []
        """Of those that ran, by size."""
        self.allocated_before = 0

    @property
    def ran(self) -> list[Trial]:
        return [trial for trial in self.done if trial.fits]

    @property
    def count(self) -> int:
        return len(self.done)

    def capacity(self) -> int:
        return device_capacity(self._device) - self._leave

    def warm_up(self, size: int) -> None:
        """One step: libraries load, and take the workspaces that they keep."""
        with _limited(self._device, self._leave):
            self._survives(size, 1)

    def run(self, size: int) -> bool:
        self._kept.restore()
        _give_back()
        torch.cuda.reset_peak_memory_stats(self._device)
        self.allocated_before = torch.cuda.memory_allocated(self._device)
        retries = _retries(self._device)
        began = time.perf_counter()
        with recorded(self._device) as log, _limited(self._device, self._leave):
            fits = self._survives(size, self._steps)
        trial = Trial(
            size=size,
            fits=fits,
            peak_allocated=torch.cuda.max_memory_allocated(self._device),
            peak_reserved=torch.cuda.max_memory_reserved(self._device),
            seconds=time.perf_counter() - began,
            retries=_retries(self._device) - retries,
        )
        self.done.append(trial)
        if fits and log.requests is not None:
            self.logged.append(
                Logged(size, log.held, log.requests, trial.peak_allocated, trial.peak_reserved)
            )
            self.logged.sort(key=lambda logged: logged.size)
        self._kept.restore()
        _give_back()
        return fits

    def _survives(self, size: int, steps: int) -> bool:
        """Whether so many steps run. The failure is dead when this returns, and with it what its frames held."""
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
    whole = getattr(step, "attempt_whole", None)
    if whole is None and (loss_fn is not None or not callable(step)):
        raise UsageError(
            "give a function that takes a batch and does one training step, or a Guard with loss_fn"
        )
    if whole is not None and loss_fn is None:
        raise UsageError("a Guard needs the loss function too: legroom.find_batch(guard, batch, loss_fn=...)")

    def run(batch: Any) -> object:
        return _called(step, (), batch) if whole is None else _called(whole, (loss_fn,), batch)

    return run


def _called(function: Callable[..., Any], first: tuple[Any, ...], batch: Any) -> Any:
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        return function(*first, *batch)
    return function(*first, batch)


def _as_maker(batch: Any) -> Callable[[int], Any]:
    if isinstance(batch, DataLoader):
        batch = next(iter(batch))
    elif callable(batch) and not isinstance(batch, torch.Tensor | Mapping):
        maker: Callable[[int], Any] = batch
        return maker
    elif isinstance(batch, Iterator):
        raise UsageError(
            "an iterator would be used up: give a batch, a DataLoader, or a function that makes a batch of a size"
        )
    if not batch_size_of(batch):
        raise UsageError(
            "no batch size to vary: give a batch whose tensors have it as first dimension, or a function of a size"
        )
    return lambda size: resized(batch, size)


@contextlib.contextmanager
def _limited(device: torch.device, leave: int) -> Iterator[None]:
    """`leave` bytes less for this process, so that a size that runs leaves them free."""
    if not leave:
        yield
        return
    total = torch.cuda.mem_get_info(device)[1]
    before = memory_fraction(device)
    allowed = device_capacity(device) - leave
    if allowed <= 0:
        raise UsageError(f"{format_size(leave)} cannot be left free: there is less than that to have")
    torch.cuda.set_per_process_memory_fraction(allowed / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


def _retries(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))


def _give_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()
