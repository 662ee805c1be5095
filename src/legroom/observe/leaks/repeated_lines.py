"""Recognizes the iterations of a loop that has no model, optimizer or loader, by the lines that repeat.

A search, a simulation or a server calls only torch functions, so no torch hook marks the end of an iteration. The
recorder determines the line of each allocation. If the same lines allocate repeatedly, a loop is running. On a real
GPU, operations are not recorded, so the lines that read results from the device are used instead (`ResultReads`).
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from legroom.memory.event_base import Frame
from legroom.observe.dispatch.attribution import user_frame

_CERTAIN = 24
"""A line that has allocated memory this many times is assumed to be in a loop."""
_MIN_REPEATS = 8
_ONE_LINE = 64
"""If the same line makes this many consecutive allocations, the loop is assumed to consist of one line, and each
allocation counts as an iteration.
"""
READS_ON_ONE_LINE = 8
"""Replaces `_ONE_LINE` for lines that read results. A loop often reads its result on a single line."""
_MAX_LINES = 4096
"""The maximum number of lines that are counted. A program that allocates memory on more lines is expected to have other
signs of an iteration.
"""


class RepeatedLines:
    """Chooses one line of a running loop, and calls `on_iteration()` each time this line runs. `on_iteration` returns
    False when the program shows a more reliable sign of an iteration.
    """

    def __init__(self, on_iteration: Callable[[], bool], *, on_one_line: int = _ONE_LINE) -> None:
        self._on_iteration = on_iteration
        self._on_one_line = on_one_line
        self._counts: dict[Frame, int] = {}
        self._chosen: Frame | None = None
        self._last: Frame | None = None
        self._consecutive = 0
        self.is_active = True

    def ran(self, frame: Frame | None) -> None:
        if frame is None or not self.is_active:
            return
        if frame == self._last:  # several operations on one line, or a loop of one line
            self._consecutive += 1
            if self._consecutive < self._on_one_line:
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


class ResultReads:
    """Between `attach` and `detach`, calls `on_read(line)` when the program reads the values of a tensor.

    Reading a result waits for the device, so most loops read only once per iteration. The methods of `torch.Tensor` are
    wrapped only while a program shows no other sign of an iteration.
    """

    METHODS = ("item", "tolist", "cpu", "numpy")

    def __init__(self, on_read: Callable[[Frame | None], None]) -> None:
        self._on_read = on_read
        self._wrapped: dict[str, Any] = {}

    def attach(self) -> None:
        for name in self.METHODS:
            if name not in vars(torch.Tensor):  # otherwise another tool has wrapped the method
                self._wrapped[name] = self._wrap(getattr(torch.Tensor, name))
                setattr(torch.Tensor, name, self._wrapped[name])

    def detach(self) -> None:
        for name, wrapped in self._wrapped.items():
            if vars(torch.Tensor).get(name) is wrapped:
                delattr(torch.Tensor, name)
        self._wrapped.clear()

    def _wrap(self, method: Any) -> Any:
        def wrapped(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            values = method(tensor, *args, **kwargs)
            if not torch.compiler.is_compiling():
                self._on_read(user_frame(sys._getframe(1))[0])
            return values

        wrapped.__wrapped__ = method  # type: ignore[attr-defined]
        return wrapped
