"""Marks the entries of the CUDA allocator's history with the position in the training loop.

The allocator adds a user-defined string to every entry of its history, and each thread can set its own string. This
module sets a short string such as `L1234f56`, called a *stamp*. C++ can copy such a short string without an
allocation. The stamp contains the activity, the running module and a *tick*. A tick is a counter. The tick increases
at every event that must be found again in the history: a root module starts, an optimizer steps, a step ends. The
position of these events among the entries is therefore exact. Before torch 2.9, entries cannot be marked. With these
versions, the tick increases at every change of activity or module, and the first entry after the change is found by
time. Two changes within about a microsecond may be confused.

Entries from the autograd engine's threads can be identified, because these threads set no stamp.
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
    """Stores the ticks of a run, and sets the stamp for new entries."""

    KEEP = 200_000
    """The number of markers to keep, which is more than the number of entries in a history."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.tick = 0
        self.step = 0
        self._clock = clock
        self._stamp: Callable[[str], None] | None = None
        self._recording = False
        self._prefix = ""
        self._modules: list[str] = []
        self._codes: dict[str, str] = {}
        """Maps a module to its index in `_modules`. Stamps contain this index."""
        self._markers = [Marker(0, 0, OTHER, "")]
        self._times = [clock() // 1000]
        self._known: dict[str, Marker] = {}

    def start(self, stamp: Callable[[str], None] | None) -> None:
        """Start to mark the history entries. `stamp` is a function that sets the stamp of all later entries from this
        thread, or None if torch does not support stamps."""
        self._stamp = stamp
        self._recording = True
        self.advance(OTHER)

    def stop(self) -> None:
        if self._stamp is not None:
            self._stamp("")
        self._recording = False

    def advance(self, activity: str, module: str = "") -> int:
        """Start a new tick and return its number."""
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
        """Record that a different module is running now."""
        if self._stamp is not None:
            code = self._codes.get(module)
            if code is None:
                code = self._codes[module] = str(len(self._modules))
                self._modules.append(module)
            self._stamp(self._prefix + activity + code)
        elif self._recording:
            self.advance(activity, module)

    def read(self, stamp: str, microseconds: int) -> Marker | None:
        """Return the marker of an entry, or None if its thread has set no stamp."""
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
        """Return the marker that was recorded at `tick`."""
        return self._markers[min(max(tick - self._markers[0].tick, 0), len(self._markers) - 1)]

    def clear_stamps(self) -> None:
        """Clear the cache after a history was read, because later entries have other stamps."""
        self._known.clear()

    @property
    def identifies_threads(self) -> bool:
        """True if each history entry identifies the thread that made the request."""
        return self._stamp is not None
