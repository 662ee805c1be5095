"""Which turns are attended, so that watching takes no more than its share of the time.

An attended turn is timed. The next one is attended once that time, and as much again for what cannot be timed (hooks, and the marks on
what a backward pass begins from), lies within the share: every turn of 20 ms or more, every fourth or so of 5 ms. Where
something may be growing, the very next turn is attended, and the time is paid back later. The first turns are all attended and cost nothing
that matters: so what a short program is told does not depend on how busy the machine is.
"""

UNTIMED = 2.0
"""What an attended turn costs in all, as a multiple of what can be timed: measured by `bench.overhead.watch`."""


FREE_TURNS = 256


class Attention:
    """Call `is_due` at the end of every turn, and `paid` after each that was attended."""

    def __init__(self, share: float, *, free: int = FREE_TURNS) -> None:
        """`free`: so many turns are attended at first."""
        self.share = share
        self.expects = True
        """Whether the turn that now begins will be attended: then its backward passes are marked."""
        self._next = 0.0
        self._owed = 0.0
        self._last = 0.0
        self._free = free

    def is_due(self, now: float) -> bool:
        if self._free:
            self._free -= 1
            return True
        due = now >= self._next
        if not due:
            self._foresee(now)
        return due

    def paid(self, now: float, seconds: float, *, again: bool) -> None:
        """An attended turn took so many seconds of this thread. `again`: the next one is to be attended as well, whatever it costs."""
        if self._free:
            return
        self._owed += UNTIMED * seconds
        if again:
            self._next = 0.0
        else:
            self._next = now + self._owed / self.share
            self._owed = 0.0
        self._foresee(now)

    def _foresee(self, now: float) -> None:
        """Turns take about as long as the one before; a mark too many is cheap, one too few delays the verdict."""
        self.expects = now + 1.2 * (now - self._last) >= self._next
        self._last = now
