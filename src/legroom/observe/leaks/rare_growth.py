"""When to look for what is added seldom: once in an epoch, at every tenth step, with each evaluation.

Such growth is not seen by looks at a few turns in a row. So one window (see `window`) goes on for the whole run, and its looks are far apart: after a turn
at which a counter stood higher than ever before, and now and then by themselves, for what the counters do not show. A look that finds
nothing new makes the next wait longer. The first looks are free; later ones take a small share of the time.
"""

import time

from legroom.observe.leaks.suspects import Suspect
from legroom.observe.leaks.window import Window

FIRST_TURN = 5
"""The turns before set records without meaning. After it, looks are taken by themselves when half as many turns again have passed."""
FREE_LOOKS = 16
MOST_BARREN = 6


class SlowLooks:
    """Ask `is_due` after a turn, then `look`."""

    def __init__(self, window: Window, share: float) -> None:
        """`share`: the most of the time that looks may take when the free ones are spent."""
        self._window = window
        self._share = share
        self._by_itself = FIRST_TURN
        self._not_before = FIRST_TURN
        self._barren = 0
        self._began = time.perf_counter()
        self._seconds = 0.0

    def is_due(self, turn: int, *, record: bool) -> bool:
        """`record`: a counter stands higher than ever before."""
        if turn < self._by_itself and not (record and turn >= self._not_before):
            return False
        if self._window.looks < FREE_LOOKS:
            return True
        return self._seconds < self._share * (time.perf_counter() - self._began)

    def look(self, turn: int) -> list[Suspect]:
        began = time.thread_time()
        suspects = self._window.look(turn)
        self._seconds += time.thread_time() - began
        # What was followed to a holder that is excused is no reason to hurry either.
        useful = self._window.adds and (suspects or not self._window.searched)
        self._barren = 0 if useful or self._window.looks < 3 else min(self._barren + 1, MOST_BARREN)
        self._not_before = turn + 2**self._barren
        if turn >= self._by_itself:
            self._by_itself = turn + max(turn // 2, 1)
        return suspects
