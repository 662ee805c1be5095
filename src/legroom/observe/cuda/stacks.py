"""The Python stacks of a CUDA history, read for what matters: the user's line, and what was at work below it."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

import torch

from legroom.memory.events import Frame
from legroom.observe.dispatch.attribution import is_user_file

_TORCH = str(PurePath(torch.__file__).parent) + "/"
_AUTOGRAD = _TORCH + "autograd/__init__.py"
_LIBRARIES = ("/site-packages/", "/dist-packages/")


class Stack(NamedTuple):
    """What a stack says."""

    frame: Frame | None
    """The user's innermost line; where no frame is the user's, the innermost of a library."""
    op: str
    """The function of torch's own that allocated (`functional.relu`, `conv._conv_forward`), "" where the user's
    line did so itself: the history does not name operations."""
    from_engine: bool
    """Whether the autograd engine started this stack (on a thread of its own), rather than the program."""
    in_backward: bool
    """Whether the program had asked for a backward pass."""


NO_STACK = Stack(None, "", True, False)
"""Of an entry that no Python code stood behind: made by the autograd engine."""


class Stacks:
    """Reads the stacks of one snapshot, in which equal stacks are the same list."""

    def __init__(self) -> None:
        self._known: dict[int, Stack] = {}

    def read(self, frames: Sequence[Mapping[str, Any]] | None) -> Stack:
        if not frames:
            return NO_STACK
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = _read(frames)
        return known


def _read(frames: Sequence[Mapping[str, Any]]) -> Stack:
    """Up to the user's innermost line: torch's own functions at work lie below it."""
    line: Frame | None = None
    library: Frame | None = None
    in_backward = False
    for frame in frames:
        file = frame["filename"]
        if _is_user_line(file):
            line = Frame(file, frame["line"], frame["name"])
            break
        if file == _AUTOGRAD:
            in_backward = True
        elif library is None and not file.startswith(_TORCH) and any(part in file for part in _LIBRARIES):
            library = Frame(file, frame["line"], frame["name"])
    innermost = frames[0]["filename"]
    op = f"{_stem(innermost)}.{frames[0]['name']}" if innermost.startswith(_TORCH) else ""
    return Stack(line or library, op, frames[-1]["filename"].startswith(_TORCH), in_backward)


@lru_cache(maxsize=4096)
def _stem(file: str) -> str:
    return PurePath(file).stem


@lru_cache(maxsize=65536)
def _is_user_line(file: str) -> bool:
    """Code that torch's compiler wrote lies in a folder of its own, but is nobody's source."""
    return is_user_file(file) and "/torchinductor_" not in file
