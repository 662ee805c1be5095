"""Finds lines whose memory grows from step to step.

A training loop without leaks has the same memory at the end of every step. If the memory of a line increases from each
step to the next, objects are probably retained from step to step. A storage is counted under the category that is known
at the end of the step.
"""

from collections.abc import Mapping
from typing import NamedTuple

from legroom.memory.event_base import Category, Frame

Line = tuple[Frame | None, Category]


class Growth(NamedTuple):
    file: str | None
    """The file, or None if no line of the user's code is known. If `file` is None, `line` and `function` are None too."""
    line: int | None
    function: str | None
    category: Category
    bytes_per_step: int
    steps: int
    bytes: int


class _Streak(NamedTuple):
    steps: int
    first_step: int
    first_bytes: int
    last_step: int
    last_bytes: int


class GrowthTracker:
    """Tracks the memory of each source line on one device at the end of each step."""

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

    def growing(self, min_steps: int) -> list[Growth]:
        """Return the lines whose memory grew in at least the last `min_steps` steps, fastest first."""
        growths = []
        for (frame, category), streak in self._streaks.items():
            if streak.steps >= max(min_steps, 2):
                elapsed = max(streak.last_step - streak.first_step, 1)
                rate = (streak.last_bytes - streak.first_bytes) / elapsed
                growths.append(
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
        return sorted(growths, key=lambda growth: -growth.bytes_per_step)
