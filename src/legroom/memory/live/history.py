"""The memory of a running program at the end of each recent step, and whether this memory grows."""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

HISTORY = 60
"""The number of measurements in `RunStatus.history`: half a minute at two measurements per second."""
TREND_READINGS = 8
"""Memory has a trend if this many consecutive measurements all increase or all decrease."""


class StepHistory:
    def __init__(self) -> None:
        self._readings: deque[tuple[int, int]] = deque(maxlen=HISTORY)

    def add(self, step: int, allocated: int) -> None:
        # Later measurements of the same step are ignored.
        if step and (not self._readings or self._readings[-1][0] != step):
            self._readings.append((step, allocated))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self._readings)

    @property
    def trend(self) -> int | None:
        return trend(list(self._readings)[-TREND_READINGS - 1 :])


def trend(readings: Sequence[tuple[int, int]]) -> int | None:
    """Return the change in bytes per step, from `(step, bytes)` pairs.

    The change is 0 if memory fluctuates, that is, if the measurements neither all increase nor all decrease. The change
    is None if there are too few measurements.
    """
    if len(readings) < 3:
        return None
    changes = [after - before for (_, before), (_, after) in pairwise(readings)]
    if all(change > 0 for change in changes) or all(change < 0 for change in changes):
        return int((readings[-1][1] - readings[0][1]) / max(readings[-1][0] - readings[0][0], 1))
    return 0
