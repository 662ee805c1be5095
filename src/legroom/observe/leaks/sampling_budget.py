"""Decides which iterations are sampled, and when the heap is scanned for rare growth.

Sampling an iteration means reading the counters after the iteration. The measured time of each sample is doubled to
include work that cannot be measured (hooks, and marking the roots of backward passes). The next iteration is sampled as
soon as the total time of all samples is within the budget. If iterations take 20 ms or more, every iteration is
sampled. If iterations take 5 ms, about every fourth iteration is sampled. If memory may be growing, the next iteration
is always sampled, and later samples are delayed to stay within the budget. The first iterations are always sampled, so
the result for a short program does not depend on the machine load.

Rare growth (once per epoch, in every tenth step, with each evaluation) is not visible in a few consecutive iterations.
Therefore one additional series of scans lasts for the whole run, with scans that are far apart. Scans run after an
iteration in which a counter reached a new maximum, and from time to time to find growth that the counters do not show.
A scan that finds nothing new delays the next scan. The time of the first scans is not limited. Later scans use a small
fraction of the run time.
"""

import time

from legroom.observe.leaks.suspects import Suspect
from legroom.observe.leaks.window import ScanWindow

UNTIMED_FACTOR = 2.0
"""The total cost of a sampled iteration divided by its measured time. The value comes from `bench.overhead.watch`."""
FREE_ITERATIONS = 256
FIRST_RARE_SCAN = 5
"""Before this iteration, a new maximum of a counter does not start a scan. After a scan, the next one is due when the
number of iterations has grown by half, or by a quarter from iteration `STEADY_FROM`.
"""
STEADY_FROM = 22
"""Steady growth is recorded from this iteration on. To be steady, the growth must be visible in several scans in the
last two thirds of the run.
"""
FREE_SCANS = 16
MAX_DELAY_EXPONENT = 6


class SamplingBudget:
    """Decides which iterations are sampled. Call `is_due` after every iteration, and `spend` after a sampled
    iteration.
    """

    def __init__(self, fraction: float, *, free: int = FREE_ITERATIONS) -> None:
        """`fraction` is the maximum fraction of the run time that samples may use. `free` is the number of iterations
        at the start that are always sampled.
        """
        self.fraction = fraction
        self.expects_sample = True
        """Whether the iteration that starts now will probably be sampled. If it will be, its backward passes are
        marked.
        """
        self._next = 0.0
        self._debt = 0.0
        self._last = 0.0
        self._free = free

    def is_due(self, now: float) -> bool:
        if self._free:
            self._free -= 1
            return True
        due = now >= self._next
        if not due:
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
        iteration. Marking an iteration that is not sampled costs little, but not marking a sampled iteration delays the
        report.
        """
        self.expects_sample = now + 1.2 * (now - self._last) >= self._next
        self._last = now


class RareGrowthScans:
    """Decides when to scan for rare growth. Call `is_due` after an iteration, then `scan`."""

    def __init__(self, window: ScanWindow, fraction: float) -> None:
        """`fraction` is the maximum fraction of the run time that scans may use, after the first scans, which are not
        limited.
        """
        self._window = window
        self.steady = window.steady
        self._fraction = fraction
        self._next = FIRST_RARE_SCAN
        self._not_before = FIRST_RARE_SCAN
        self._delay_exponent = 0
        self._started = time.perf_counter()
        self._seconds = 0.0

    def is_due(self, iteration: int, *, new_maximum: bool) -> bool:
        """Return whether a scan is due. `new_maximum` means that a counter has reached a new maximum."""
        if iteration < self._next and not (new_maximum and iteration >= self._not_before):
            return False
        if self._window.scans < FREE_SCANS:
            return True
        return self._seconds < self._fraction * (time.perf_counter() - self._started)

    def scan(self, iteration: int) -> list[Suspect]:
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
