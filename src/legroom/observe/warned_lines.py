"""Warnings name the line that they would name without us.

A warning from C++ is given at the innermost Python frame. While a program is watched, that is a frame of ours or of the machinery by
which torch calls us, in between the program's line and torch's code.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_MACHINERY = tuple(os.path.join("torch", name) for name in ("_ops.py", "overrides.py"))


@contextmanager
def warned_where_they_arise() -> Iterator[None]:
    """Inside, warnings are shown with the line that they are about. Who takes `warnings.showwarning` over has it as ever."""
    plain = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        if _is_between(filename):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and _is_between(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
        plain(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = plain


def _is_between(filename: str) -> bool:
    return filename.startswith(_OURS) or filename.endswith(_MACHINERY) or filename == warnings.__file__
