"""Which lines hold more at the end of every step than at the end of the one before.

A sound training loop ends each step with what it began with. A line whose bytes rise step after step keeps
something: this is what the leak detector stands on. Categories are as known at the end of each step.
"""

from collections.abc import Mapping
from typing import NamedTuple

from legroom.memory.events import Category, Frame

Line = tuple[Frame | None, Category]


class Growth(NamedTuple):
    """A line that held more at the end of each of the last steps."""

    file: str | None
    """None, like `line` and `function`, where no line of the user's is known."""
    line: int | None
    function: str | None
    category: Category
    bytes_per_step: int
    steps: int
    """How many step ends in a row, each above the one before."""
    bytes: int
    """At the last of them."""


class _Streak(NamedTuple):
    steps: int
    first_step: int
    first_bytes: int
    last_step: int
    last_bytes: int


class GrowthWatch:
    """Follows the lines of one device from step end to step end."""

    def __init__(self) -> None:
        self._streaks: dict[Line, _Streak] = {}

    def end_step(self, step: int, bytes_by_line: Mapping[Line, int]) -> None:
        before, self._streaks = self._streaks, {}
        for line, size in bytes_by_line.items():
            if size <= 0:
                continue
            streak = before.get(line)
            if streak is not None and size > streak.last_bytes:
                steps, first_step, first_bytes, _, _ = streak
                self._streaks[line] = _Streak(steps + 1, first_step, first_bytes, step, size)
            else:
                self._streaks[line] = _Streak(1, step, size, step, size)

    def growing(self, least_steps: int) -> list[Growth]:
        """Those that grew over at least so many step ends in a row, up to the last; the fastest first."""
        rows = []
        for (frame, category), streak in self._streaks.items():
            if streak.steps >= max(least_steps, 2):
                elapsed = max(streak.last_step - streak.first_step, 1)
                rate = (streak.last_bytes - streak.first_bytes) / elapsed
                rows.append(
                    Growth(
                        file=frame.file if frame else None,
                        line=frame.line if frame else None,
                        function=frame.function if frame else None,
                        category=category,
                        bytes_per_step=round(rate),
                        steps=streak.steps,
                        bytes=streak.last_bytes,
                    )
                )
        return sorted(rows, key=lambda row: -row.bytes_per_step)
