"""Chooses the micro-batch size. A failure leads to a smaller size, and successful steps lead to larger sizes. The
reason for every choice is stored for the report.

A `MicroBatchSizer` only makes decisions. The inputs of a `MicroBatchSizer` are the sizes that fit or failed, and the
times of steps. A `MicroBatchSizer` reads no clock and draws no random numbers, so ranks with the same inputs choose the
same sizes.

The sizer follows these rules:

- After a failure, the next size is smaller, down to 1. If size 1 fails too, the next size is 0.
- After the second and every further failure of a step, the next size is at most half the size that failed. A batch of n
  samples therefore needs at most log2(n) + 3 attempts, including the attempt with size 1.
- If enough memory was free, but fragmented, the same size is tried again once, with an empty cache.
- A size that failed is tried again after a number of successful steps, because other processes may have freed memory.
  This number quadruples with every failed attempt, so that the size does not oscillate.
- The fastest size that fits is used, because a larger size is not always faster. If the allocator has to free its cache
  in most steps, the next smaller size is tried.
- Micro-batches have nearly equal sizes, because a last micro-batch of one sample takes nearly as long as a full
  micro-batch.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from legroom.diagnose.oom.sizes import ReportedSizes
from legroom.errors import UsageError
from legroom.units import format_size

Phase = Literal["forward", "backward", "optimizer"]

MIN_WAIT = 6
MAX_WAIT = 4096
"""The maximum number of successful steps before a larger size is tried again, even after many failed attempts."""
MIN_TIMED_STEPS = 5
SLOWER = 0.98
"""A size is treated as slower than another size if its speed is below this fraction of the speed of the other size."""
MARGIN = 0.97
"""The maximum fraction of the available memory that a predicted size may need. The remaining memory is a margin for
fragmentation."""
UNKNOWN_PROGRESS = 0.3
"""The assumed progress of a forward pass that failed at an unknown position. The value is low, because another failure
costs more time than a few steps with micro-batches that are too small. The peaks of steps with small micro-batches show
whether a larger size fits.
"""
MAX_HISTORY = 200
"""The maximum number of stored choices and sizes. Without a limit, a run of millions of steps would use more and more
memory.
"""


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """A micro-batch size and the reason for it."""

    size: int
    """The maximum number of samples in a micro-batch. The actual micro-batches may be smaller, because their sizes are
    nearly equal.
    """
    reason: str


@dataclass(slots=True)
class _SizeStats:
    """The measurements for one micro-batch size that fits."""

    peak: int | None = None
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=15))
    freed_cache: deque[bool] = field(default_factory=lambda: deque(maxlen=8))

    @property
    def speed(self) -> float | None:
        return median(self.speeds) if len(self.speeds) >= MIN_TIMED_STEPS else None


@dataclass(frozen=True, slots=True)
class _SizeChange:
    """A new size that is being tested."""

    old: int
    new: int


def micro_batch_sizes(batch_size: int, max_size: int) -> list[int]:
    """Return the sizes of as few micro-batches as possible. The sizes are nearly equal, and larger sizes come first.

    >>> micro_batch_sizes(100, 34), micro_batch_sizes(9, 4)
    ([34, 33, 33], [3, 3, 3])
    """
    if batch_size < 1 or max_size < 1:
        raise UsageError(
            f"A batch of {batch_size} cannot be split into micro-batches of {max_size}. Both sizes must be greater than 0."
        )
    return even_split(batch_size, -(-batch_size // max_size))


def even_split(batch_size: int, parts: int) -> list[int]:
    """Return the sizes of `parts` nearly equal parts of a batch, larger sizes first.

    >>> even_split(7, 3)
    [3, 2, 2]
    """
    size, larger = divmod(batch_size, parts)
    return [size + 1] * larger + [size] * (parts - larger)


class MicroBatchSizer:
    """Chooses the micro-batch size from the results of earlier steps. `max_size` is the upper limit of the micro-batch
    size. `state` is the `state_dict()` of an earlier run."""

    def __init__(self, *, max_size: int | None = None, state: Mapping[str, Any] | None = None) -> None:
        if max_size is not None and (not isinstance(max_size, int) or max_size < 1):
            raise UsageError(
                f"{max_size!r} is not a valid micro-batch size. Pass 1 or more, or omit the size."
            )
        self._max_size = max_size
        self._limit: int | None = max_size
        """The size that is expected to fit, or None if no size has failed."""
        self._failed_at: int | None = None
        """The smallest size that has failed, or None. The value is reset to None as soon as a step of at least this
        size fits.
        """
        self._stats: dict[int, _SizeStats] = {}
        self._slower: set[int] = set()
        self._compared_with_smaller: set[int] = set()
        """Sizes at which the allocator often frees its cache. For these sizes, the next smaller size was already tried."""
        self._change: _SizeChange | None = None
        self._successes = 0
        self._failures = 0
        self._retried: set[int] = set()
        self._wait = MIN_WAIT
        self._allocated_before: int | None = None
        self._capacity: int | None = None
        self.choices: list[SizeChoice] = []
        if max_size is not None:
            self._choose(max_size, f"the maximum micro-batch size is {max_size}")
        if state:
            self._load(state)

    # ------------------------------------------------------------ outputs

    @property
    def choice(self) -> SizeChoice | None:
        return self.choices[-1] if self.choices else None

    @property
    def settled(self) -> bool:
        """True if no size is being tested and the next step does not start a test."""
        return self._change is None and self._successes < self._wait

    def micro_batch(self, batch_size: int) -> int:
        """Return the micro-batch size for a batch of this size. After enough successful steps, the method tries a
        larger size.
        """
        if batch_size < 1:
            raise UsageError("The batch is empty.")
        if self._limit is not None and batch_size > self._limit and self._change is None:
            if self._successes >= self._wait:
                self._grow(batch_size)
            else:
                self._try_smaller_if_cache_freed(batch_size)
        return self._even_size(batch_size)

    # ------------------------------------------------------------ inputs

    def may_retry(self, micro: int, failure: ReportedSizes | None) -> bool:
        """Return True if memory was fragmented and the same size should be tried again with an empty cache.

        The result is True at most once for each size, and only for the first failure of a step.
        """
        if failure is None or not failure.is_fragmented or self._failures or micro in self._retried:
            return False
        self._failures += 1
        self._retried.add(micro)
        return True

    def failed(
        self,
        batch_size: int,
        micro: int,
        failure: ReportedSizes | None = None,
        *,
        phase: Phase = "forward",
        allocated_before: int | None = None,
        progress: float | None = None,
    ) -> int:
        """Record that a step with micro-batches of `micro` ran out of memory. Return the next size, or 0 if no size is
        left.

        `failure` contains the sizes in the error message. `allocated_before` is the number of allocated bytes at the
        start of the step. `progress` is the finished fraction of the forward pass, if known.
        """
        change, self._change = self._change, None
        self._successes = 0
        self._failures += 1
        self._failed_at = micro if self._failed_at is None else min(micro, self._failed_at)
        self._stats = {size: stats for size, stats in self._stats.items() if size < micro}
        if allocated_before is not None:
            self._allocated_before = allocated_before
        if micro <= 1:
            self._limit = 1
            self._choose(1, "a single sample does not fit")
            return 0
        if change is not None and change.old < micro:
            self._wait = min(self._wait * 4, MAX_WAIT)
            self._limit = change.old
            self._choose(
                change.old,
                f"micro-batches of {micro} did not fit, so micro-batches of {change.old} are used again; the "
                f"next attempt follows after {self._wait} step{'s' if self._wait > 1 else ''}",
            )
        else:
            self._limit, reason = self._after_failure(micro, failure, phase, progress)
            if self._failures > 1 and self._limit > micro // 2:
                self._limit, reason = micro // 2, f"half the size, because {self._failures} attempts failed"
            self._choose(self._limit, reason)
        return self._even_size(batch_size)

    def succeeded(
        self,
        batch_size: int,
        micro: int,
        *,
        seconds: float | None = None,
        peak: int | None = None,
        allocated_before: int | None = None,
        retries: int = 0,
        capacity: int | None = None,
    ) -> None:
        """Record that a step with micro-batches of `micro` fit.

        `peak` and `allocated_before` are the allocated bytes at the peak and at the start of the step. `retries` is the
        number of times that the allocator freed its cache to serve a request. `capacity` is the number of bytes that
        PyTorch can reserve on the device.
        """
        self._failures = 0
        if capacity is not None:
            self._capacity = capacity
        if allocated_before is not None:
            self._allocated_before = allocated_before
        if micro not in self._stats and len(self._stats) >= MAX_HISTORY:
            del self._stats[min(self._stats)]
        stats = self._stats.setdefault(micro, _SizeStats())
        if peak is not None:
            stats.peak = peak if stats.peak is None else max(peak, stats.peak)
        stats.freed_cache.append(retries > 0)
        if self._failed_at is not None and micro >= self._failed_at:
            self._failed_at = None  # it fits now
        if self._limit is None or micro == self._even_size(batch_size):
            self._successes += 1
        if seconds is not None:
            self.timed(batch_size, micro, seconds)
        elif (
            self._change is not None
            and micro == self._change.new
            and self._successes >= MIN_TIMED_STEPS
            and not stats.speeds
        ):
            self._accept_change()  # time is not measured, so fitting is the only criterion

    def timed(self, batch_size: int, micro: int, seconds: float) -> None:
        """Record the time of a step. On a GPU, the time is measured with CUDA events and is known only in a later
        step."""
        if seconds <= 0 or micro not in self._stats:
            return
        self._stats[micro].speeds.append(batch_size / seconds)
        if self._change is not None:
            self._compare_speeds(self._change)

    def restart(self) -> None:
        """Discard the failures and measurements of all sizes. Call this method after a change that reduces the memory
        use of all later steps."""
        self._limit = self._max_size
        self._change = None
        self._successes = 0
        self._failed_at = None
        self._stats.clear()
        self._slower.clear()
        self._compared_with_smaller.clear()
        self._wait = MIN_WAIT

    def set_size(self, size: int, reason: str) -> None:
        self._change = None
        self._successes = 0
        self._limit = size
        self._choose(size, reason)

    # ------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the sizes as plain data, for the next run. A size that is being tested is not included."""
        size = self._limit if self._change is None else self._change.old
        largest = max(self._stats, default=None)
        return {"version": 1, "micro_batch_size": size, "largest": largest, "failed": self._failed_at}

    def _load(self, state: Mapping[str, Any]) -> None:
        size, failed = state.get("micro_batch_size"), state.get("failed")
        if state.get("version") != 1 or not isinstance(size, int) or isinstance(size, bool) or size < 1:
            return
        if self._max_size is not None and size >= self._max_size:
            return
        self._limit = size
        if isinstance(failed, int) and failed > size:
            self._failed_at = failed
        self._wait = MIN_WAIT * 4
        self._choose(size, "this size fit in an earlier run with this model on this GPU")

    # ------------------------------------------------------------ after a failure

    def _after_failure(
        self, micro: int, failure: ReportedSizes | None, phase: Phase, progress: float | None
    ) -> tuple[int, str]:
        predicted = self._predicted_max_size()
        if predicted is not None and 1 <= predicted < micro:
            return predicted, "predicted to fit from measured peaks"
        if phase == "optimizer":
            return max(
                1, micro // 2
            ), "the optimizer step did not fit, and smaller micro-batches leave more memory for the step"
        if failure is not None and failure.is_fragmented:
            return max(1, micro // 2), "half the size, because memory is fragmented"
        available, needed = self._memory_of_step(failure)
        if available is None or needed is None:
            return max(
                1, micro // 2
            ), "half the size, because the error does not show how much memory was missing"
        fraction = 1.0 if phase == "backward" else min(1.0, max(0.05, progress or UNKNOWN_PROGRESS))
        size = int(micro * MARGIN * available * fraction / needed)
        position = f" {fraction:.0%} into the forward pass" if progress and phase == "forward" else ""
        return min(micro - 1, max(1, size)), (
            f"needed more than {format_size(needed)}{position}; {format_size(available)} available"
        )

    def _memory_of_step(self, failure: ReportedSizes | None) -> tuple[int | None, int | None]:
        """Return the memory available to the step, and the memory that the failed step needed. Weights and other memory
        allocated before the step are excluded from both values.
        """
        if failure is None or failure.requested is None or failure.allocated is None or failure.limit is None:
            return None, None
        before = min(self._allocated_before or 0, failure.allocated)
        available, needed = failure.limit - before, failure.allocated + failure.requested - before
        return (available, needed) if available > 0 and needed > 0 else (None, None)

    # ------------------------------------------------------------ growing

    def _grow(self, batch_size: int) -> None:
        """Try the next larger size, or a much larger size if measured peaks predict that it fits."""
        assert self._limit is not None
        now = self._even_size(batch_size)
        count = -(-batch_size // now)
        largest = min(batch_size, self._max_size or batch_size)
        sizes = [
            size for size in {-(-batch_size // fewer) for fewer in range(1, count)} if now < size <= largest
        ]
        predicted = self._predicted_max_size()
        allowed = sorted(
            size for size in sizes if size not in self._slower and (predicted is None or size <= predicted)
        )
        if not allowed:
            self._successes = 0
            return
        below = [size for size in allowed if self._failed_at is None or size < self._failed_at]
        if predicted is not None and below:
            size, reason = below[-1], "predicted to fit from measured peaks"
        elif below:
            halfway = 2 * now if self._failed_at is None else (now + self._failed_at) // 2
            near = [size for size in below if size <= halfway] or below[:1]
            size, reason = near[-1], f"trying a larger size after {self._successes} successful steps"
        else:
            size = allowed[0]
            reason = (
                f"trying again {self._successes} steps after {self._failed_at} failed, because memory may be "
                "free again"
            )
        self._begin_change(now, size, reason)

    def _predicted_max_size(self) -> int | None:
        """Predict the largest size that fits, from measured peaks and the capacity. Return None if the peaks or the
        capacity are unknown.

        The peaks of two sizes are extrapolated linearly. With a single size, the result is a safe bound, because memory
        is assumed to grow at most linearly with the size.
        """
        peaks = {size: stats.peak for size, stats in self._stats.items() if stats.peak is not None}
        if not peaks or self._capacity is None:
            return None
        small, large = min(peaks), max(peaks)
        start = min(self._allocated_before or 0, self._capacity)
        available = start + (self._capacity - start) * MARGIN
        slope = (peaks[large] - start) / large
        if small < large and peaks[large] > peaks[small]:
            slope = (peaks[large] - peaks[small]) / (large - small)
        if slope <= 0:
            return None
        return max(0, int(large + (available - peaks[large]) / slope))

    # ------------------------------------------------------------ speed

    def _try_smaller_if_cache_freed(self, batch_size: int) -> None:
        now = self._even_size(batch_size)
        stats = self._stats.get(now)
        if stats is None or now <= 1 or now in self._compared_with_smaller:
            return
        freed = stats.freed_cache
        if len(freed) == freed.maxlen and sum(freed) * 2 >= len(freed):
            self._compared_with_smaller.add(now)
            if stats.speed is not None:
                smaller = -(-batch_size // (-(-batch_size // now) + 1))
                self._begin_change(
                    now,
                    smaller,
                    f"with micro-batches of {now}, the allocator frees its cache in most steps, so a "
                    "smaller size may be faster",
                )

    def _compare_speeds(self, change: _SizeChange) -> None:
        new_stats, old_stats = self._stats.get(change.new), self._stats.get(change.old)
        if new_stats is None or new_stats.speed is None:
            return
        old_speed = old_stats.speed if old_stats is not None else None
        if old_speed is None:
            self._accept_change()
            return
        is_smaller = change.new < change.old
        if new_stats.speed < old_speed * (1.0 if is_smaller else SLOWER):
            self._change = None
            self._successes = 0
            self._limit = change.old
            self._slower.add(change.new)
            self._choose(
                change.old,
                f"{old_speed:.3g} samples/s with micro-batches of {change.old}, "
                f"{new_stats.speed:.3g} samples/s with {change.new}",
            )
            return
        if is_smaller:
            self._slower.add(change.old)
        self._accept_change()

    def _begin_change(self, old: int, new: int, reason: str) -> None:
        self._change = _SizeChange(old, new)
        self._limit = new
        self._successes = 0
        self._choose(new, reason)

    def _accept_change(self) -> None:
        self._change = None
        self._wait = max(MIN_WAIT, self._wait // 2)

    # ------------------------------------------------------------

    def _even_size(self, batch_size: int) -> int:
        return micro_batch_sizes(batch_size, min(batch_size, self._limit or batch_size))[0]

    def _choose(self, size: int, reason: str) -> None:
        self.choices.append(SizeChoice(size, reason))
        del self.choices[:-MAX_HISTORY]
