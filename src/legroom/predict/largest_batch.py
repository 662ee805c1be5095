"""Traces a few batch sizes to find the largest one that fits, and confirms it with a trace at this size.

Two traces predict the trace at every other size (see `extrapolate`). The search finds the largest size whose predicted
trace fits, and traces it. If this trace matches the prediction, the search is finished. Otherwise, the search continues
with the new trace. Attention, padding, or a kernel that changes with the size can cause a difference. Every result has
been traced and replayed with the capacity of the GPU.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from legroom.memory.allocator.settings import LARGE_SEGMENT
from legroom.predict import uncertainty
from legroom.predict.extrapolate import extrapolation
from legroom.predict.fit import fits_with_margin, fits_without_workspaces, replay
from legroom.predict.requests import ReplayPeaks
from legroom.predict.tracing.script import CannotTrace, OutOfTime
from legroom.predict.tracing.trace import Trace

MAX_BATCH = 1 << 20
TOLERANCE = 0.001
"""The search ends when the remaining range is below this fraction of the result."""

LIKELY_MARGIN = 0.01
"""To find an upper bound, the search tries a size that exceeds the linear prediction by this fraction, because this
size probably does not fit.
"""
MAX_FACTOR = 64
"""The next size is at most this many times the largest size that fits."""


@dataclass(slots=True)
class BatchSearch:
    """The batch sizes that were tried, and the result."""

    tried: dict[int, bool] = field(default_factory=dict)
    traces: dict[int, Trace] = field(default_factory=dict)
    is_complete: bool = True
    """False if the deadline stopped the search, so larger sizes may also fit."""
    failures: dict[int, str] = field(default_factory=dict)
    """The batch sizes with which the script failed, and the reasons."""

    @property
    def largest(self) -> int | None:
        return max((size for size, fits in self.tried.items() if fits), default=None)

    @property
    def smallest_too_large(self) -> int | None:
        return min((size for size, fits in self.tried.items() if not fits), default=None)


def largest_batch(
    trace_at: Callable[[int], Trace],
    capacity: int,
    *,
    start: int,
    known: Trace | None = None,
    seen: Mapping[int, Trace] | None = None,
    multiple_of: int = 1,
    max_traces: int = 20,
    safe: bool = False,
    deadline: float | None = None,
) -> BatchSearch:
    """Search for the largest batch size that fits, starting at `start`. `known` is the trace at `start`, if it exists.
    With `safe`, a size must also fit with the safety margin.

    The workspaces of some kernels and the addresses of segments are uncertain. A size fits only if it fits in every
    possible case (see `uncertainty`). With `safe`, it fits only if its safe bound fits, and if it also fits without the
    workspaces of kernels. `seen` contains traces of other sizes, which the search reuses. The search stops after
    `max_traces` traces, when `time.monotonic()` reaches `deadline`, or if `trace_at` raises `OutOfTime`. The result is
    then the largest size that was found to fit.
    """
    searcher = _Searcher(trace_at, capacity, multiple_of, safe)
    try:
        for size, trace in (seen or {}).items():
            if size % multiple_of == 0:
                searcher.add(size, trace)
        if start in searcher.search.tried:
            pass
        elif known is not None and start % multiple_of == 0:
            searcher.add(start, known)
        else:
            searcher.try_size(start)
        searcher.try_size(start * 2 if searcher.low else start / 2)
        while searcher.is_open and searcher.traces < max_traces:
            if deadline is not None and time.monotonic() > deadline:
                searcher.search.is_complete = False
                break
            searcher.try_size(searcher.predicted_largest() or searcher.middle())
    except OutOfTime:
        searcher.search.is_complete = False
    return searcher.search


class _Searcher:
    def __init__(self, trace_at: Callable[[int], Trace], capacity: int, multiple_of: int, safe: bool) -> None:
        self.search = BatchSearch()
        self.low, self.high = 0, MAX_BATCH + multiple_of
        """The largest size known to fit, and the smallest size known not to fit."""
        self._trace_at, self._capacity, self._multiple_of, self._safe = trace_at, capacity, multiple_of, safe
        self._peaks: dict[int, ReplayPeaks] = {}
        self._predicted: dict[int, ReplayPeaks] = {}
        """The predicted peaks, by batch size. A size is added when the search predicts that it is the largest size that
        fits.
        """

    @property
    def is_open(self) -> bool:
        return (
            self.high - self.low > max(self._multiple_of, self.low * TOLERANCE) and not self._is_confirmed()
        )

    @property
    def traces(self) -> int:
        return len(self.search.tried) + len(self.search.failures)

    def try_size(self, wanted: float) -> None:
        """Trace the allowed size that is nearest to `wanted`, unless it was already traced."""
        step = self._multiple_of
        size = max(step, min(MAX_BATCH, int(wanted) // step * step))
        if size <= self.low:
            size = self.low + step
        if size >= self.high:
            size = self.high - step
        if size in self.search.tried or size < step:
            return
        try:
            trace = self._trace_at(size)
        except OutOfTime:
            raise
        except CannotTrace as failure:
            if len(self.search.tried) < 2:  # the script cannot be traced at any other size
                raise
            self._exclude(size, failure.error or str(failure))
        else:
            self.add(size, trace)

    def _exclude(self, size: int, reason: str) -> None:
        """Continue the search without a size with which the script fails. For example, a metric may need 5 samples."""
        self.search.failures[size] = reason
        if self.search.largest is None:
            self.low = size
        else:
            self.high = size

    def add(self, size: int, trace: Trace) -> None:
        self._peaks[size] = replay(trace)
        self.search.traces[size] = trace
        self.search.tried[size] = fits = self._fits(trace)
        if fits:
            self.low = max(self.low, size)
        else:
            self.high = min(self.high, size)

    def predicted_largest(self) -> int | None:
        """Return the largest size that fits, as predicted from the two nearest traces."""
        at = self._extrapolation()
        if at is None or not self.search.failures.keys().isdisjoint((self.low, self.high)):
            return None  # memory does not determine the result, so the search bisects
        step = self._multiple_of
        high = self.high
        if high > MAX_BATCH:  # no upper bound yet: start from a linear fit of the peaks
            high = min(MAX_BATCH, max(self.low + step, self._linear_estimate() * 2)) // step * step
            while high < MAX_BATCH and replay(at(high), self._capacity).failed_at is None:
                high = min(MAX_BATCH, high * 2)
        low = self._bisect(self.low, high, lambda size: replay(at(size), self._capacity).failed_at is None)
        if low > self.low and not self._fits(at(low)):  # the slower check of all uncertain cases
            low = self._bisect(self.low, low, lambda size: self._fits(at(size)))
        if (
            low <= self.low
        ):  # the current largest size is predicted to be the result, so check that the next size does not fit
            return self.low + step if self.low + step not in self._predicted else None
        if low in self._predicted:
            return None
        self._predicted[low] = replay(at(low))
        return low

    def _bisect(self, low: int, high: int, fits: Callable[[int], bool]) -> int:
        """Return the largest size for which `fits` returns True. `fits(low)` is True, and `fits(high)` is False."""
        step = self._multiple_of
        while high - low > max(step, low * TOLERANCE):
            middle = max(low + step, (low + high) // 2 // step * step)
            if middle >= high:
                break
            if fits(middle):
                low = middle
            else:
                high = middle
        return low

    def middle(self) -> float:
        if self.high <= MAX_BATCH:
            return (self.low + self.high) / 2
        # Slightly more than the likely result, which is a bound if it does not fit.
        likely = self._linear_estimate() + max(self._multiple_of, self.low * LIKELY_MARGIN)
        return min(max(self.low + self._multiple_of, likely), self.low * MAX_FACTOR)

    def _is_confirmed(self) -> bool:
        """Return whether the largest size that fits was predicted, and the predicted and the traced peak are almost
        equal.
        """
        predicted = self._predicted.get(self.low)
        if predicted is None or self.low not in self._peaks:
            return False
        traced = self._peaks[self.low]
        tolerance = self._bytes_per_sample() * max(self._multiple_of / 4, self.low * TOLERANCE)
        return (
            abs(traced.allocated - predicted.allocated) <= tolerance
            and abs(traced.reserved - predicted.reserved) <= tolerance + LARGE_SEGMENT
        )

    def _bytes_per_sample(self) -> float:
        small, large = min(self._peaks), max(self._peaks)
        return (self._peaks[large].allocated - self._peaks[small].allocated) / max(1, large - small)

    def _linear_estimate(self) -> int:
        """Return the size at which a line through the peaks of the smallest and the largest traced size reaches the
        capacity.
        """
        large, slope = max(self._peaks), self._bytes_per_sample()
        if slope <= 0:
            return large * 2
        return max(1, int(large + (self._capacity - self._peaks[large].allocated) / slope))

    def _extrapolation(self) -> Callable[[int], Trace] | None:
        middle = (self.low + min(self.high, MAX_BATCH)) / 2
        nearest = sorted(self.search.traces, key=lambda size: abs(size - middle))[:2]
        if len(nearest) < 2:
            return None
        small, large = sorted(nearest)
        return extrapolation(small, self.search.traces[small], large, self.search.traces[large])

    def _fits(self, trace: Trace) -> bool:
        if self._safe:
            return fits_with_margin(trace, self._capacity) and fits_without_workspaces(trace, self._capacity)
        return uncertainty.fits(trace, self._capacity)
