"""Recognizes the iterations of a loop that has no model, optimizer or loader, by the lines that allocate memory.

A search or a simulation calls only functions of torch, so no hook of torch marks the end of an iteration. The recorder
knows the line of each allocation: if the same lines allocate again and again, a loop runs. On a GPU without a recorder of
operations, such a loop is not watched.
"""

from collections.abc import Callable

from legroom.memory.events import Frame

_CERTAIN = 24
"""A line that has allocated memory this many times is in a loop."""
_MIN_REPEATS = 8
_ONE_LINE = 64
"""After this many consecutive allocations on the same line, each allocation is an iteration of a loop of one line."""
_MAX_LINES = 4096
"""The number of lines that are counted. A program with more lines has other signs of an iteration."""


class RepeatedLines:
    """Calls `on_iteration()` each time the chosen line of a loop allocates memory. `on_iteration` returns False when the
    program shows a better sign of an iteration."""

    def __init__(self, on_iteration: Callable[[], bool]) -> None:
        self._on_iteration = on_iteration
        self._counts: dict[Frame, int] = {}
        self._chosen: Frame | None = None
        self._last: Frame | None = None
        self._consecutive = 0
        self.is_active = True

    def allocated(self, frame: Frame | None) -> None:
        """Record that a line allocates memory."""
        if frame is None or not self.is_active:
            return
        if frame == self._last:  # several operations on one line, or a loop of one line
            self._consecutive += 1
            if self._consecutive < _ONE_LINE:
                return
        else:
            self._last, self._consecutive = frame, 0
        if self._chosen is not None:
            if frame == self._chosen:
                self.is_active = self._on_iteration()
            return
        count = self._counts.get(frame, 0) + 1
        self._counts[frame] = count
        if count >= _CERTAIN:
            # In nested loops, the line of the outer loop repeats less often.
            repeated = [each for each, times in self._counts.items() if times >= _MIN_REPEATS]
            self._chosen = min(repeated, key=self._counts.__getitem__)
            self._counts = {}
        elif len(self._counts) > _MAX_LINES:
            self.is_active = False
