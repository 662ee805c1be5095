"""Where an operation stands in the user's program: which line, which module, which phase of the loop.

A line is the innermost frame that is the user's own: outside torch, site-packages, the standard library and
Legroom. A backward operation has no such frame of its own (the engine runs it from `loss.backward()`), so every
forward operation leaves its place under the sequence number of the autograd node it made, and the backward
operation looks it up.
"""

import sysconfig
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as _hooks

from legroom.memory.events import Frame, Phase
from legroom.observe.dispatch.backward_engine import ACCUMULATES, next_number
from legroom.observe.dispatch.module_names import ModuleNames, part_begun


class Place(NamedTuple):
    """Where an operation stands."""

    frame: Frame | None
    module: str
    phase: Phase


# --- the user's line ---------------------------------------------------------------------------------------------


def _folder(path: str | None) -> str:
    return str(Path(path).resolve()) + "/" if path else "\0"


_TORCH = _folder(str(Path(torch.__file__).parent))
_LEGROOM = _folder(str(Path(__file__).parents[2]))
_STDLIB = tuple({_folder(sysconfig.get_paths().get(name)) for name in ("stdlib", "platstdlib")})
_THIRD_PARTY = ("/site-packages/", "/dist-packages/")
_INTERACTIVE = ("<stdin>", "<ipython-input-", "<python-input-")

_OTHERS, _LIBRARY, _USER = 0, 1, 2
_kinds: dict[str, int] = {}
_frames: dict[tuple[str, int, str], Frame] = {}


def _kind_of(file: str) -> int:
    """Whose code a file is: the user's, a third-party library's, or torch's, Python's and ours."""
    if file.startswith("<"):
        return _USER if file.startswith(_INTERACTIVE) else _OTHERS
    path = file if file.startswith("/") else str(Path(file).absolute())
    if path.startswith((_TORCH, _LEGROOM)):
        return _OTHERS
    if any(part in path for part in _THIRD_PARTY):
        return _LIBRARY
    return _OTHERS if path.startswith(_STDLIB) else _USER


def is_user_file(file: str) -> bool:
    """Whether a source file is the user's own rather than torch's, a library's, Python's or Legroom's."""
    return _kind_of(file) == _USER


def _engine_code() -> CodeType | None:
    """The Python function below which the autograd engine runs. Without it, a custom backward written in Python
    is reported at the forward line instead of its own."""
    function = getattr(torch.autograd.graph, "_engine_run_backward", None)
    return getattr(function, "__code__", None)


_ENGINE = _engine_code()


def user_frame(frame: FrameType | None) -> tuple[Frame | None, bool]:
    """The user's innermost line at or above `frame`, and whether the autograd engine lies between.

    Where no frame is the user's own (a library run with `-m`), the innermost one of a library serves.
    """
    fallback: FrameType | None = None
    engine = False
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = _kind_of(code.co_filename)
        if kind == _USER:
            return _as_frame(code, frame.f_lineno), engine
        if kind == _LIBRARY:
            fallback = fallback or frame
        elif code is _ENGINE:
            engine = True
        frame = frame.f_back
    return (_as_frame(fallback.f_code, fallback.f_lineno) if fallback else None), engine


def user_lines(frame: FrameType | None) -> tuple[list[Frame], Frame | None]:
    """The user's lines at or above `frame`, innermost first; and that of them which called the innermost backward pass at work."""
    lines: list[Frame] = []
    backward: Frame | None = None
    below_engine = False
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            lines.append(_as_frame(code, frame.f_lineno))
            if below_engine and backward is None:
                backward = lines[-1]
        elif code is _ENGINE:
            below_engine = True
        frame = frame.f_back
    return lines, backward


def _as_frame(code: CodeType, line: int | None) -> Frame:
    # A code object itself is slow to hash.
    key = (code.co_filename, line or code.co_firstlineno, code.co_name)
    known = _frames.get(key)
    if known is None:
        known = _frames[key] = Frame(*key)
    return known


# --- the module at work -----------------------------------------------------------------------------------------


class ModuleStack:
    """The path of the innermost module at work, kept by torch's global module hooks while attached."""

    def __init__(self, on_enter: Callable[[nn.Module, tuple[Any, ...], bool], None] | None = None) -> None:
        """`on_enter(module, args, is_root)` is called before each module's forward."""
        self.path = ""
        self.stack: list[str] = []
        """The paths of the modules at work, outermost first."""
        self._names: dict[int, str] = {}
        self._entered = 0
        """Calls of modules since the root began."""
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
        """About which part of the root's modules have begun; None outside of any, and where modules are called over and over."""
        return part_begun(self._entered, self._names) if self.stack else None

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        root = not self.stack
        if root:
            self._names = self._known.under(module)
            self._entered = 0
        self._entered += 1
        self.path = self._names.get(id(module)) or type(module).__name__
        self.stack.append(self.path)
        if self._on_enter is not None:
            self._on_enter(module, args, root)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.stack:
            self.stack.pop()
        self.path = self.stack[-1] if self.stack else ""


# --- where backward operations come from ------------------------------------------------------------------------


class Origins:
    """Sequence number of an autograd node → the place of the forward operation that made it."""

    KEEP = 400_000

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._places: list[Place] = []
        self._last: Place | None = None

    def leave(self, place: Place) -> None:
        """The operation just run, with gradients on, stands at `place`."""
        if next_number is None:
            return
        number = next_number() - 1
        numbers = self._numbers
        if numbers and number <= numbers[-1]:  # made no node of its own, or another thread's count
            return
        numbers.append(number)
        self._places.append(place)
        if len(numbers) > self.KEEP:
            del numbers[: self.KEEP // 2], self._places[: self.KEEP // 2]

    def find(self, node: Any) -> Place | None:
        """The forward place of `node`; for a view (which leaves none), of the operation before it."""
        number = node._sequence_nr()
        if number >= ACCUMULATES:
            return self._last
        position = bisect_right(self._numbers, number) - 1
        self._last = self._places[max(position, 0)] if self._places else None
        return self._last
