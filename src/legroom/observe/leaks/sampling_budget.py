"""Decides which iterations are sampled, and when the heap is scanned for rare growth.

Sampling an iteration means reading the counters after it. The measured time of each sample is doubled to include work
that cannot be measured (hooks, and marking the roots of backward passes). The next iteration is sampled as soon as the
total time of all samples is within the budget. If iterations take 20 ms or more, every iteration is sampled. If
iterations take 5 ms, about every fourth iteration is sampled. If memory may be growing, the next iteration is always
sampled, and later samples are delayed to stay within the budget.

The first iterations are always sampled, because the result must not depend on the speed of the machine. Later, the
distance between two samples is at most `MAX_DISTANCE` iterations, or a small fraction of all iterations if that is
more.

Rare growth (once per epoch, in every tenth step, with each evaluation) is not visible in a few consecutive iterations.
One additional series of scans therefore lasts for the whole run, with scans that are far apart. A scan runs after an
iteration in which a counter reached a new maximum. A scan also runs from time to time to find growth that the counters
do not show. A scan that finds nothing new delays the next scan. The first scans are not limited, and later scans use
at most a small fraction of the run time. While memory grows, scheduled scans are not limited, because their number is
proportional to the logarithm of the number of iterations.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from legroom.observe.leaks.window import ScanWindow

if TYPE_CHECKING:
    from legroom.observe.leaks.search.suspects import Suspect

UNTIMED_FACTOR = 2.0
"""The total cost of sampling an iteration, divided by the cost that can be measured. The value comes from
`bench.overhead.watch`.
"""
FREE_ITERATIONS = 256
MAX_DISTANCE = 16
MAX_DISTANCE_FRACTION = 1 / 64
FIRST_RARE_SCAN = 5
"""Before this iteration, a new maximum of a counter does not start a scan. After each scheduled scan, the next scan is
due when the number of iterations has grown by 50%. From iteration `STEADY_FROM` on, it is due when the number of
iterations has grown by 25%.
"""
STEADY_FROM = 22
"""Steady growth is recorded from this iteration on. Growth is steady only if it is visible in several scans in the last
two thirds of the run.
"""
FREE_SCANS = 16
MAX_DELAY_EXPONENT = 6


class SamplingBudget:
    """Decides which iterations are sampled. Call `is_due` after every iteration, and `spend` after a sampled
    iteration.
    """

    def __init__(self, fraction: float, *, free: int = FREE_ITERATIONS) -> None:
        """Samples may use at most `fraction` of the run time. The first `free` iterations are always sampled."""
        self.fraction = fraction
        self.expects_sample = True
        """True if the iteration that starts now will probably be sampled. If so, its backward passes are marked."""
        self._next = 0.0
        self._debt = 0.0
        self._last = 0.0
        self._free = free
        self._iterations = self._sampled = 0

    def is_due(self, now: float) -> bool:
        self._iterations += 1
        if self._free:
            self._free -= 1
            return True
        due = now >= self._next or self._is_overdue(self._iterations)
        if due:
            self._sampled = self._iterations
        else:
            self._expect(now)
        return due

    def spend(self, now: float, seconds: float, *, again: bool) -> None:
        """Add the cost of a sampled iteration. With `again`, the next iteration is sampled regardless of the cost."""
        if self._free:
            return
        self._debt += UNTIMED_FACTOR * seconds
        if again:
            self._next = 0.0
        else:
            self._next = now + self._debt / self.fraction
            self._debt = 0.0
        self._expect(now)

    def _expect(self, now: float) -> None:
        """Predict whether the next iteration will be sampled, assuming that it takes about as long as the last
        iteration. Marking an iteration that is not sampled costs little. Not marking a sampled iteration delays the
        report.
        """
        soon = now + 1.2 * (now - self._last) >= self._next
        self.expects_sample = soon or self._is_overdue(self._iterations + 1)
        self._last = now

    def _is_overdue(self, iterations: int) -> bool:
        return iterations - self._sampled > max(iterations * MAX_DISTANCE_FRACTION, MAX_DISTANCE)


class RareGrowthScans:
    """Decides when to scan for rare growth. Call `is_due` after an iteration, and `scan` if the result is True."""

    def __init__(self, window: ScanWindow, fraction: float) -> None:
        """Scans may use at most `fraction` of the run time. The first scans are not limited."""
        self._window = window
        self.steady = window.steady
        self._fraction = fraction
        self._next = FIRST_RARE_SCAN
        self._not_before = FIRST_RARE_SCAN
        self._delay_exponent = 0
        self._started = time.perf_counter()
        self._seconds = 0.0
        self._in_use = 0

    def is_due(self, iteration: int, *, new_maximum: bool, in_use: Callable[[], int]) -> bool:
        """Return whether a scan is due. `new_maximum` means that a counter has reached a new maximum. `in_use` returns
        the lowest memory use in bytes that was measured after the last few sampled iterations.
        """
        scheduled = iteration >= self._next
        if not scheduled and not (new_maximum and iteration >= self._not_before):
            return False
        used = in_use()
        allowed = (
            self._window.scans < FREE_SCANS
            or (scheduled and used > self._in_use)
            or self._seconds < self._fraction * (time.perf_counter() - self._started)
        )
        if allowed:
            self._in_use = used
        return allowed

    def scan(self, iteration: int) -> "list[Suspect]":
        started = time.thread_time()
        suspects = self._window.scan(iteration)
        self._seconds += time.thread_time() - started
        # A holder that was found and ruled out is not a reason to scan earlier.
        useful = self._window.adds and (suspects or not self._window.found_holder)
        self._delay_exponent = (
            0 if useful or self._window.scans < 3 else min(self._delay_exponent + 1, MAX_DELAY_EXPONENT)
        )
        self._not_before = iteration + 2**self._delay_exponent
        if iteration >= self._next:
            self._next = iteration + max(iteration // (4 if iteration >= STEADY_FROM else 2), 1)
        return suspects
