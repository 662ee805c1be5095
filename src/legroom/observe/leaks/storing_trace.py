"""Which line puts something into a container, seen as it happens: for where the source does not tell.

The source of a name is searched first, at no cost to the loop. It says nothing where things are stored under another name (an
alias, a helper's argument) or where there is no source, and too much where several lines store into the same name. Then the
user's own lines are traced, for two turns at most and only until the container has grown once (or, where tensors in a small container are replaced, until one is). A trace that is already set (a debugger, a coverage tool) is left alone. The container is
held meanwhile, and let go as soon as no one else holds it.
"""

import gc
import sys
from types import FrameType
from typing import Any, NamedTuple

import torch

from legroom.observe.dispatch.attribution import is_user_file

TURNS = 2


class Place(NamedTuple):
    """A line that stores."""

    file: str
    line: int
    function: str


class StoringTrace:
    """Follows one container from `begin` to `end`; `place` is the line, once seen."""

    def __init__(self, container: int, *, replaced: bool = False) -> None:
        """`container`: its `id`. `replaced`: it does not grow itself, what is in it is replaced."""
        self.place: Place | None = None
        self._wanted = container
        self._container: Any = None
        self._replaced = replaced
        self._state: Any = 0
        self._lines: dict[int, int] = {}
        """`id` of a frame → the line it was last seen on."""
        self._trace = self._event  # one object, to be recognised by

    def begin(self, frame: FrameType | None) -> bool:
        """`frame`: where the program is. False where it cannot be traced."""
        if sys.gettrace() is not None:
            return False
        self._container = next((each for each in gc.get_objects() if id(each) == self._wanted), None)
        if self._container is None:
            return False
        self._state = self._measure()
        while frame is not None:
            if is_user_file(frame.f_code.co_filename) and frame.f_trace is None:
                frame.f_trace = self._trace
                self._lines[id(frame)] = frame.f_lineno or 0
            frame = frame.f_back
        sys.settrace(self._trace)
        return True

    def end(self) -> None:
        self._container = None
        if sys.gettrace() is self._trace:
            sys.settrace(None)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_trace is self._trace:
                frame.f_trace = None
            frame = frame.f_back

    def _event(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._container is None or not is_user_file(frame.f_code.co_filename):
            return None
        state, before = self._measure(), self._state
        self._state = state
        if (state != before) if self._replaced else (state > before):
            self._blame(frame.f_back if event == "call" else frame)
            return None
        if sys.getrefcount(self._container) <= 2:  # ours, and the argument of this very call
            self._container = None
            return None
        if event == "line":
            self._lines[id(frame)] = frame.f_lineno or 0
        elif event == "return":
            self._lines.pop(id(frame), None)
        return self._trace

    def _measure(self) -> Any:
        """The length, or which tensors there are."""
        if not self._replaced:
            return len(self._container)
        values = self._container.values() if isinstance(self._container, dict) else self._container
        return [(id(value), _version_of(value)) for value in list(values) if isinstance(value, torch.Tensor)]

    def _blame(self, frame: FrameType | None) -> None:
        """What was stored between two events was stored by the line on which this frame, or the one that called it, was before."""
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            frame = frame.f_back
        self._container = None
        if frame is not None:
            line = self._lines.get(id(frame), frame.f_lineno or 0)
            self.place = Place(frame.f_code.co_filename, line, frame.f_code.co_name)


def _version_of(tensor: torch.Tensor) -> int:
    """How often it was written to: `total.add_(loss)` leaves the same tensor there. 0 for one of inference mode, which does not count."""
    return 0 if tensor.is_inference() else tensor._version
