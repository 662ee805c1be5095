"""Where the training loop is, written into the CUDA allocator's history while it is made.

The allocator stamps every entry of its history with a text that the thread at work has set. Ours (`L1234f56`: short, so
that C++ copies it without allocating) names the activity, the module at work and a *tick*: a number that grows at each moment worth finding again
(a root module begins, an optimizer steps, a step ends). So what was seen at a tick finds its place among the entries
exactly, whatever the clocks say. A torch that cannot stamp entries (before 2.9) leaves their times: then every change
is a tick of its own, found by time, and two changes within a microsecond or so may be confused.

A stamp belongs to one thread. Entries made by the autograd engine's threads carry none, and that is how they are told.
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
    """What the loop was doing from a tick on."""

    tick: int
    step: int
    activity: str
    module: str


class Markers:
    """The ticks of a run, and the stamp of the moment."""

    KEEP = 200_000
    """More than a history holds entries."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.tick = 0
        self.step = 0
        self._clock = clock
        self._stamp: Callable[[str], None] | None = None
        self._recording = False
        self._prefix = ""
        self._modules: list[str] = []
        self._codes: dict[str, str] = {}
        """Module → how stamps name it: its place in the list."""
        self._markers = [Marker(0, 0, OTHER, "")]
        self._times = [clock() // 1000]
        self._known: dict[str, Marker] = {}

    def start(self, stamp: Callable[[str], None] | None) -> None:
        """The history begins. `stamp` sets this thread's text, or None where torch cannot."""
        self._stamp = stamp
        self._recording = True
        self.advance(OTHER)

    def stop(self) -> None:
        if self._stamp is not None:
            self._stamp("")
        self._recording = False

    def advance(self, activity: str, module: str = "") -> int:
        """A moment worth finding again: gives its tick."""
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
        """Another module is at work."""
        if self._stamp is not None:
            code = self._codes.get(module)
            if code is None:
                code = self._codes[module] = str(len(self._modules))
                self._modules.append(module)
            self._stamp(self._prefix + activity + code)
        elif self._recording:
            self.advance(activity, module)

    def read(self, stamp: str, microseconds: int) -> Marker | None:
        """What an entry's stamp says; None for an entry of a thread that set none."""
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
        """What the loop was doing from `tick` on."""
        return self._markers[min(max(tick - self._markers[0].tick, 0), len(self._markers) - 1)]

    def clear_stamps(self) -> None:
        """A history has been read: its stamps will not come again."""
        self._known.clear()

    @property
    def identifies_threads(self) -> bool:
        """Whether an entry says which thread made it."""
        return self._stamp is not None
