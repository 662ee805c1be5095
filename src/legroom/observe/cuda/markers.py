"""Marks the entries of the CUDA allocator's history with the position in the training loop.

The allocator adds a user-defined string to every entry of its history, and each thread can set its own string. This
module sets a short string such as `L1234f56`, called a *stamp*. C++ can copy such a short string without an
allocation. The stamp contains the activity, the running module and a *tick*. A tick is a counter that increases when a
root module starts, an optimizer steps, or a step ends. The positions of these events among the entries are therefore
exact. Entries from the autograd engine's threads can be identified, because these threads set no stamp.

Before torch 2.9, entries cannot be marked. Therefore the tick increases at every change of activity or module, and the
first entry after the change is found by time. Two changes within about a microsecond may be confused.
"""

import re
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Literal, NamedTuple

from legroom.memory.event_base import Phase

Activity = Literal["f", "n", "b", "p", "o"]
FORWARD: Activity = "f"
INFERENCE: Activity = "n"
"""A forward pass without gradients."""
BACKWARD: Activity = "b"
OPTIMIZER: Activity = "p"
OTHER: Activity = "o"

PHASES: dict[str, Phase] = {
    FORWARD: Phase.FORWARD,
    INFERENCE: Phase.FORWARD,
    BACKWARD: Phase.BACKWARD,
    OPTIMIZER: Phase.OPTIMIZER,
    OTHER: Phase.OTHER,
}

_STAMP = re.compile(r"L(\d+)([fnbpo])(\d+)")


class Marker(NamedTuple):
    """The position in the training loop from a tick until the next tick."""

    tick: int
    step: int
    activity: str
    module: str


class Markers:
    KEEP = 200_000
    """The number of markers to keep, which exceeds the number of entries in a history."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.tick = 0
        self.step = 0
        self._clock = clock
        self._stamp: Callable[[str], None] | None = None
        self._recording = False
        self._prefix = ""
        self._modules: list[str] = []
        self._codes: dict[str, str] = {}
        """The index of each module in `_modules`, which is part of a stamp."""
        self._markers = [Marker(0, 0, OTHER, "")]
        self._times = [clock() // 1000]
        self._known: dict[str, Marker] = {}

    def start(self, stamp: Callable[[str], None] | None) -> None:
        """Start marking the history entries. `stamp` sets the stamp of all later entries from this thread. `stamp` is
        None if torch does not support stamps.
        """
        self._stamp = stamp
        self._recording = True
        self.advance(OTHER)

    def stop(self) -> None:
        if self._stamp is not None:
            self._stamp("")
        self._recording = False

    def advance(self, activity: str, module: str = "") -> int:
        self.tick = tick = self.tick + 1
        self._markers.append(Marker(tick, self.step, activity, module))
        self._times.append(self._clock() // 1000)
        if len(self._markers) > 2 * self.KEEP:
            del self._markers[: self.KEEP], self._times[: self.KEEP]
        if self._stamp is not None:
            self._prefix = f"L{tick}"
            self.enter_module(activity, module)
        return tick

    def enter_module(self, activity: str, module: str) -> None:
        if self._stamp is not None:
            code = self._codes.get(module)
            if code is None:
                code = self._codes[module] = str(len(self._modules))
                self._modules.append(module)
            self._stamp(self._prefix + activity + code)
        elif self._recording:
            self.advance(activity, module)

    def read(self, stamp: str, microseconds: int) -> Marker | None:
        """Return the marker of an entry, or None if the thread of the entry sets no stamps."""
        if self._stamp is None:
            return self._markers[max(bisect_right(self._times, microseconds) - 1, 0)]
        known = self._known.get(stamp)
        if known is None:
            found = _STAMP.fullmatch(stamp)
            if found is None:
                return None
            tick, activity, module = found.groups()
            known = Marker(int(tick), self.at(int(tick)).step, activity, self._modules[int(module)])
            self._known[stamp] = known
        return known

    def at(self, tick: int) -> Marker:
        return self._markers[min(max(tick - self._markers[0].tick, 0), len(self._markers) - 1)]

    def clear_stamps(self) -> None:
        # After a history was read, later entries have other stamps.
        self._known.clear()

    @property
    def identifies_threads(self) -> bool:
        return self._stamp is not None
