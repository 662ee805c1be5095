"""Marks the entries of the CUDA allocator's history with the position in the training loop.

The allocator adds a text to every entry of its history. Each thread can set this text. This module sets a text such as
`L1234f56`, which is short enough for C++ to copy without an allocation. The text contains the activity, the running
module and a *tick*. The tick increases at every event that must be found again in the history: a root module starts, an
optimizer steps, a step ends. The position of such an event among the entries is therefore exact. Before torch 2.9,
entries cannot be marked. In that case, every change is a tick, and its entry is found by time. Two changes within about
a microsecond may be confused.

The text belongs to one thread. Entries of the autograd engine's threads can be identified, because they have no text.
"""

import re
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Literal, NamedTuple

from legroom.memory.events import Phase

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
    """The activity of the training loop, starting at a tick."""

    tick: int
    step: int
    activity: str
    module: str


class Markers:
    """The ticks of a run, and the current text for entries."""

    KEEP = 200_000
    """More than the number of entries in a history."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.tick = 0
        self.step = 0
        self._clock = clock
        self._stamp: Callable[[str], None] | None = None
        self._recording = False
        self._prefix = ""
        self._modules: list[str] = []
        self._codes: dict[str, str] = {}
        """Maps a module to its index in `_modules`, which stamps contain."""
        self._markers = [Marker(0, 0, OTHER, "")]
        self._times = [clock() // 1000]
        self._known: dict[str, Marker] = {}

    def start(self, stamp: Callable[[str], None] | None) -> None:
        """Start marking. `stamp` is a function that sets the text of this thread, or None if torch does not support
        such texts."""
        self._stamp = stamp
        self._recording = True
        self.advance(OTHER)

    def stop(self) -> None:
        if self._stamp is not None:
            self._stamp("")
        self._recording = False

    def advance(self, activity: str, module: str = "") -> int:
        """Start a new tick and return it."""
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
        """Record that another module is running now."""
        if self._stamp is not None:
            code = self._codes.get(module)
            if code is None:
                code = self._codes[module] = str(len(self._modules))
                self._modules.append(module)
            self._stamp(self._prefix + activity + code)
        elif self._recording:
            self.advance(activity, module)

    def read(self, stamp: str, microseconds: int) -> Marker | None:
        """The marker of an entry; None if its thread has set no text."""
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
        """The marker of `tick`."""
        return self._markers[min(max(tick - self._markers[0].tick, 0), len(self._markers) - 1)]

    def clear_stamps(self) -> None:
        """Clear the cache after a history was read, because the same texts do not occur again."""
        self._known.clear()

    @property
    def identifies_threads(self) -> bool:
        """Whether entries identify the thread that made them."""
        return self._stamp is not None
