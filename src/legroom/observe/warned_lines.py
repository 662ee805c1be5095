"""Shows warnings with the user's line, as without Legroom.

Python attributes a warning from C++ to the innermost Python frame. While a program is recorded, that is a frame of Legroom or of
torch's dispatch code, between the user's line and the C++ code.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LEGROOM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_TORCH_DISPATCH = tuple(os.path.join("torch", name) for name in ("_ops.py", "overrides.py"))


@contextmanager
def user_line_warnings() -> Iterator[None]:
    """Inside, warnings are shown with the user's line. A program that replaces `warnings.showwarning` is not affected."""
    original = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        if _is_internal(filename):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and _is_internal(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
        original(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = original


def _is_internal(filename: str) -> bool:
    return (
        filename.startswith(_LEGROOM) or filename.endswith(_TORCH_DISPATCH) or filename == warnings.__file__
    )
