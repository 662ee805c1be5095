"""The largest batch that fits: from traces at a few sizes, and one at the answer itself.

Memory grows nearly in a straight line with the batch, so two traces foretell the answer and a third verifies it; where
a model bends the line (attention, padding), the search goes on between the largest size that fits and the smallest
that does not. No size is answered that was not traced and replayed with the capacity in force.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from legroom.predict.fit import Peaks, replay, slack
from legroom.predict.trace import Trace

MOST = 1 << 20
"""No batch is larger than this."""
CLOSE = 0.001
"""Of the answer: a search between thousands ends when what is left open is less."""


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

    With more than `most_traces` needed, the largest size found to fit so far is the answer.
    """
    search = Search()
    needs: dict[int, Peaks] = {}
    low, high = 0, MOST + multiple_of  # the largest that fits, the smallest that does not

    def fits(size: int) -> None:
        nonlocal low, high
        trace = known if known is not None and size == start else trace_at(size)
        peaks = needs[size] = replay(trace)
        extra = slack(trace, peaks) if safe else 0
        search.traces[size] = trace
        search.tried[size] = replay(trace, capacity, extra=extra).failed_at is None
        if search.tried[size]:
            low = max(low, size)
        else:
            high = min(high, size)

    def candidates() -> Iterator[float]:
        """In the order in which they tell most. What is reserved is an upper bound of what is needed, since the cache
        can be given back, and what is allocated a lower one: the answer lies between the two lines."""
        yield start
        yield start * 2 if low else start / 2
        yield _foretold({size: peaks.reserved for size, peaks in needs.items()}, capacity)
        yield _foretold({size: peaks.allocated for size, peaks in needs.items()}, capacity)
        while True:
            yield (low + high) / 2 if high <= MOST else low * 2

    for candidate in candidates():
        if high - low <= max(multiple_of, low * CLOSE) or len(search.tried) >= most_traces:
            break
        size = max(multiple_of, min(MOST, int(candidate) // multiple_of * multiple_of))
        if size <= low:
            size = low + multiple_of
        if size >= high:
            size = high - multiple_of
        if size not in search.tried:
            fits(size)
    return search


def _foretold(needs: dict[int, int], capacity: int) -> float:
    """The size at which a straight line through the smallest and the largest measured size meets the capacity."""
    a, b = min(needs), max(needs)
    slope = (needs[b] - needs[a]) / (b - a) if b > a else 0.0
    if slope <= 0:
        return b * 2
    return b + (capacity - needs[b]) / slope
