"""Finds the user's line and the calling torch function in the Python stacks of a CUDA history."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

import torch

from legroom.memory.event_base import Frame
from legroom.observe.source.user_files import is_user_file, slashes

_TORCH = slashes(str(PurePath(torch.__file__).parent)) + "/"
_AUTOGRAD = _TORCH + "autograd/__init__.py"
_LIBRARIES = ("/site-packages/", "/dist-packages/")


class Stack(NamedTuple):
    frame: Frame | None
    """The innermost line of the user's code, or the innermost library line if the stack contains no user code."""
    op: str
    """The torch function that allocated the memory (`functional.relu`, `conv._conv_forward`). The value is "" if the
    user's line called the operation directly, because the history does not contain operations.
    """
    from_engine: bool
    in_backward: bool


NO_STACK = Stack(None, "", True, False)
"""The stack of an entry without Python frames, which the autograd engine creates."""


class Stacks:
    """Caches the stacks that were read. Equal stacks in a snapshot are the same list object, so each stack is read
    only once.
    """

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
    line: Frame | None = None
    library: Frame | None = None
    in_backward = False
    for frame in frames:
        if _is_user_line(frame["filename"]):
            line = Frame(frame["filename"], frame["line"], frame["name"])
            break
        file = slashes(frame["filename"])
        if file == _AUTOGRAD:
            in_backward = True
        elif library is None and not file.startswith(_TORCH) and any(part in file for part in _LIBRARIES):
            library = Frame(frame["filename"], frame["line"], frame["name"])
    innermost, outermost = slashes(frames[0]["filename"]), slashes(frames[-1]["filename"])
    op = f"{_stem(innermost)}.{frames[0]['name']}" if innermost.startswith(_TORCH) else ""
    return Stack(line or library, op, outermost.startswith(_TORCH), in_backward)


@lru_cache(maxsize=4096)
def _stem(file: str) -> str:
    return PurePath(file).stem


@lru_cache(maxsize=65536)
def _is_user_line(file: str) -> bool:
    # Code that torch's compiler generated is not the user's code.
    return is_user_file(file) and "/torchinductor_" not in slashes(file)
