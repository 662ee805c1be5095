"""The largest batch that fits: from traces at a few sizes, and one at the answer itself.

Two traces foretell every other (see `foretold`), the foretold ones say which size is the largest that fits, and that one is
traced. If its trace is what was foretold, it is the answer; if not (attention, padding, a kernel that changes with the
size), the search goes on with what it showed. No size is answered that was not traced and replayed with the capacity
in force.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from legroom.predict import uncertainty
from legroom.predict.extrapolate import foretelling
from legroom.predict.fit import Peaks, replay, slack
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB

MOST = 1 << 20
"""No batch is larger than this."""
CLOSE = 0.001
"""Of the answer: a search between thousands ends when what is left open is less."""

A_SEGMENT = 20 * MiB
"""What the allocator takes at once: reserved memory is never nearer than this."""


@dataclass(slots=True)
class Search:
    """What was tried, and what came of it."""

    tried: dict[int, bool] = field(default_factory=dict)
    """Batch size → whether it fits."""
    traces: dict[int, Trace] = field(default_factory=dict)

    @property
    def largest(self) -> int | None:
        return max((size for size, fits in self.tried.items() if fits), default=None)


def largest_batch(
    trace_at: Callable[[int], Trace],
    capacity: int,
    *,
    start: int,
    known: Trace | None = None,
    multiple_of: int = 1,
    most_traces: int = 20,
    safe: bool = False,
) -> Search:
    """Search from `start`. `known`: its trace, if there is one. `safe`: the safe bound must fit too.

    A size fits if it does so however what is uncertain in its trace turns out (see `doubt`): the sizes that some kernels
    take, and where the driver puts segments. Where a trace is certain, so is the answer, and nothing is given away.

    With more than `most_traces` needed, the largest size found to fit so far is the answer.
    """
    looking = _Looking(trace_at, capacity, multiple_of, safe)
    if known is not None and start % multiple_of == 0:
        looking.take(start, known)
    else:
        looking.try_size(start)
    looking.try_size(start * 2 if looking.low else start / 2)
    while looking.is_open and len(looking.search.tried) < most_traces:
        looking.try_size(looking.foretold() or looking.halfway())
    return looking.search


class _Looking:
    """One search: what is known so far, and where to look next."""

    def __init__(self, trace_at: Callable[[int], Trace], capacity: int, multiple_of: int, safe: bool) -> None:
        self.search = Search()
        self.low, self.high = 0, MOST + multiple_of
        """The largest size that fits, the smallest that does not."""
        self._trace_at, self._capacity, self._multiple_of, self._safe = trace_at, capacity, multiple_of, safe
        self._peaks: dict[int, Peaks] = {}
        self._foretold: dict[int, Peaks] = {}
        """Sizes that were foretold before they were traced, and the peaks that they were to have."""

    @property
    def is_open(self) -> bool:
        return self.high - self.low > max(self._multiple_of, self.low * CLOSE) and not self._is_confirmed()

    def try_size(self, wanted: float) -> None:
        """Trace the multiple nearest to `wanted` that is still open."""
        step = self._multiple_of
        size = max(step, min(MOST, int(wanted) // step * step))
        if size <= self.low:
            size = self.low + step
        if size >= self.high:
            size = self.high - step
        if size not in self.search.tried and size >= step:
            self.take(size, self._trace_at(size))

    def take(self, size: int, trace: Trace) -> None:
        self._peaks[size] = replay(trace)
        self.search.traces[size] = trace
        self.search.tried[size] = fits = self._fits(trace)
        if fits:
            self.low = max(self.low, size)
        else:
            self.high = min(self.high, size)

    def foretold(self) -> int | None:
        """The largest size that fits by what the two nearest traces foretell."""
        at = self._from_nearest()
        if at is None:
            return None
        step = self._multiple_of
        high = self.high
        if high > MOST:  # unknown yet: the line of the peaks is near enough to begin with
            high = min(MOST, max(self.low + step, self._by_peaks() * 2)) // step * step
            while high < MOST and replay(at(high), self._capacity).failed_at is None:
                high = min(MOST, high * 2)
        low = self._between(self.low, high, lambda size: replay(at(size), self._capacity).failed_at is None)
        if low > self.low and not self._fits(at(low)):  # the same with all doubts, which take longer to try
            low = self._between(self.low, low, lambda size: self._fits(at(size)))
        if low <= self.low:  # what fits already is foretold to be the largest: does the next one not?
            return self.low + step if self.low + step not in self._foretold else None
        if low in self._foretold:
            return None
        self._foretold[low] = replay(at(low))
        return low

    def _between(self, low: int, high: int, fits: Callable[[int], bool]) -> int:
        """The largest size that fits, given that `low` does and `high` does not."""
        step = self._multiple_of
        while high - low > max(step, low * CLOSE):
            middle = max(low + step, (low + high) // 2 // step * step)
            if middle >= high:
                break
            if fits(middle):
                low = middle
            else:
                high = middle
        return low

    def halfway(self) -> float:
        """Where to look when nothing is foretold."""
        return (self.low + self.high) / 2 if self.high <= MOST else self.low * 2

    def _is_confirmed(self) -> bool:
        """Whether the largest that fits was foretold as such and turned out as foretold, to a fraction of one more row."""
        foretold = self._foretold.get(self.low)
        if foretold is None:
            return False
        true, near = self._peaks[self.low], self._slope() * max(self._multiple_of / 4, self.low * CLOSE)
        return (
            abs(true.allocated - foretold.allocated) <= near
            and abs(true.reserved - foretold.reserved) <= near + A_SEGMENT
        )

    def _slope(self) -> float:
        """Bytes of peak per row, over all sizes traced."""
        small, large = min(self._peaks), max(self._peaks)
        return (self._peaks[large].allocated - self._peaks[small].allocated) / max(1, large - small)

    def _by_peaks(self) -> int:
        """The size at which a straight line through the peaks of the smallest and the largest size meets the capacity."""
        large, slope = max(self._peaks), self._slope()
        if slope <= 0:
            return large * 2
        return max(1, int(large + (self._capacity - self._peaks[large].allocated) / slope))

    def _from_nearest(self) -> Callable[[int], Trace] | None:
        """What foretells a size between `low` and `high`: the two sizes nearest to there."""
        middle = (self.low + min(self.high, MOST)) / 2
        nearest = sorted(self.search.traces, key=lambda size: abs(size - middle))[:2]
        if len(nearest) < 2:
            return None
        small, large = sorted(nearest)
        return foretelling(small, self.search.traces[small], large, self.search.traces[large])

    def _fits(self, trace: Trace) -> bool:
        if self._safe:
            return replay(trace, self._capacity, extra=slack(trace, replay(trace))).failed_at is None
        return uncertainty.fits(trace, self._capacity)
