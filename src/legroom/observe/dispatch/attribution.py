"""The location of an operation in the user's program: line, module and phase of the training loop.

The line is the innermost frame of the user's code, outside torch, site-packages, the standard library and Legroom. A
backward operation has no such frame, because the autograd engine runs it from `loss.backward()`. The location of each
forward operation is therefore stored under the sequence number of its autograd node. The backward operation looks up
this location.
"""

import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as _hooks

from legroom.memory.event_base import Frame, Phase
from legroom.observe.dispatch.backward_engine import ACCUMULATE_GRAD, next_sequence_nr
from legroom.observe.dispatch.forward_progress import pixels_of
from legroom.observe.dispatch.module_names import ModuleNames
from legroom.observe.source.user_files import LIBRARY, USER, is_user_file, kind_of, kinds


class OpLocation(NamedTuple):
    frame: Frame | None
    module: str
    phase: Phase


_locations: dict[tuple[int, str, Phase], OpLocation] = {}
_MAX_CACHED = 100_000


def located(frame: Frame | None, module: str, phase: Phase) -> OpLocation:
    # A run stores a location for each operation, so equal locations share one object.
    key = (id(frame), module, phase)
    known = _locations.get(key)
    if known is None or known.frame is not frame:
        if len(_locations) > _MAX_CACHED:
            _locations.clear()
        known = _locations[key] = OpLocation(frame, module, phase)
    return known


# --- the user's line ---------------------------------------------------------------------------------------------


_frames: dict[tuple[str, int, str], Frame] = {}
_lines: dict[tuple[int, int], tuple[CodeType, Frame]] = {}
"""The line of each instruction, by the `id` of its code object and its offset. The code object is stored too, so that
its `id` is not reused.
"""


def _engine_code() -> CodeType | None:
    """Return the code of the Python function that runs the autograd engine. If torch has no such function, a backward
    pass written in Python is reported at the line of its forward pass.
    """
    function = getattr(torch.autograd.graph, "_engine_run_backward", None)
    return getattr(function, "__code__", None)


ENGINE = _engine_code()


def user_frame(frame: FrameType | None) -> tuple[Frame | None, bool]:
    """Return the user's innermost line at or above `frame`, and whether that line runs the autograd engine.

    If no frame belongs to the user, for example if a library runs with `python -m`, the innermost library frame is
    used.
    """
    fallback: FrameType | None = None
    engine = False
    while frame is not None:
        code = frame.f_code
        kind = kinds.get(code.co_filename)
        if kind is None:
            kind = kind_of(code.co_filename)
        if kind == USER:
            return _line_of(frame, code), engine
        if kind == LIBRARY:
            fallback = fallback or frame
        elif code is ENGINE:
            engine = True
        frame = frame.f_back
    return (_line_of(fallback, fallback.f_code) if fallback else None), engine


def _line_of(frame: FrameType, code: CodeType) -> Frame:
    # Python finds the line number by decoding a table from its start. A code object is hashed slowly, so its `id` is the key.
    key = (id(code), frame.f_lasti)
    known = _lines.get(key)
    if known is None:
        if len(_lines) > _MAX_CACHED:
            _lines.clear()
        known = _lines[key] = code, _as_frame(code, frame.f_lineno)
    return known[1]


def user_lines(frame: FrameType | None) -> tuple[list[Frame], Frame | None]:
    """Return the user's lines at or above `frame`, innermost first. Also return the line that called the innermost
    running backward pass.
    """
    lines: list[Frame] = []
    backward: Frame | None = None
    below_engine = False
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            lines.append(_as_frame(code, frame.f_lineno))
            if below_engine and backward is None:
                backward = lines[-1]
        elif code is ENGINE:
            below_engine = True
        frame = frame.f_back
    return lines, backward


def _as_frame(code: CodeType, line: int | None) -> Frame:
    # Hashing a code object is slow.
    key = (code.co_filename, line or code.co_firstlineno, code.co_name)
    known = _frames.get(key)
    if known is None:
        known = _frames[key] = Frame(*key)
    return known


# --- the running module -----------------------------------------------------------------------------------------


class ModuleStack(threading.local):
    """Tracks the path of the innermost running module with torch's global module hooks. Each thread has its own path.
    Call `attach` and `detach` on the same thread.
    """

    def __init__(self, on_enter: Callable[[nn.Module, tuple[Any, ...], bool], None] | None = None) -> None:
        """`on_enter(module, args, is_root)` is called before the forward pass of each module."""
        self.path = ""
        self.stack: list[str] = []
        self._names: dict[int, str] = {}
        self._entered = self._last = self._pixels = 0
        self._known = ModuleNames()
        self._on_enter = on_enter
        self._handles: list[Any] = []

    def attach(self) -> None:
        self._handles = [
            _hooks.register_module_forward_pre_hook(self._enter),
            _hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.stack.clear()
        self._known.clear()
        self.path = ""

    @property
    def progress(self) -> float | None:
        """The approximate fraction of the root module's forward pass that is complete. The fraction is None outside the
        root module, and if submodules are called repeatedly.
        """
        return (
            self._known.progress(self._names, self._entered, self._last, self._pixels, self.path)
            if self.stack
            else None
        )

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        root = not self.stack
        if root:
            self._names = self._known.below(module)
            self._entered, self._pixels = 0, pixels_of(args)
        self._entered += 1
        self._last = id(module)
        self.path = self._names.get(self._last) or type(module).__name__
        self.stack.append(self.path)
        if self._on_enter is not None:
            self._on_enter(module, args, root)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.stack:
            self.stack.pop()
        self.path = self.stack[-1] if self.stack else ""


# --- the forward locations of backward operations ---------------------------------------------------------------


class ForwardLocations:
    """The location of the forward operation that created each autograd node, by the sequence number of the node."""

    MAX_ENTRIES = 200_000

    def __init__(self) -> None:
        self._numbers = array("q")
        self._locations: list[OpLocation] = []
        self._last: OpLocation | None = None

    def record(self, location: OpLocation) -> None:
        if next_sequence_nr is None:
            return
        number = next_sequence_nr() - 1
        numbers = self._numbers
        if numbers and number <= numbers[-1]:  # no node was created, or another thread created one
            return
        numbers.append(number)
        self._locations.append(location)
        if len(numbers) > self.MAX_ENTRIES:
            del numbers[: self.MAX_ENTRIES // 2]
            del self._locations[: self.MAX_ENTRIES // 2]

    def find(self, node: Any) -> OpLocation | None:
        """Return the location of the forward operation that created `node`. Views have no recorded location, so a view
        gets the location of the last recorded operation before it.
        """
        number = node._sequence_nr()
        if number >= ACCUMULATE_GRAD:
            return self._last
        position = bisect_right(self._numbers, number) - 1
        self._last = self._locations[max(position, 0)] if self._locations else None
        return self._last
