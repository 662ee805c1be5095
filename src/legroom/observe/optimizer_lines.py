"""Records the line of the user's code that creates each optimizer."""

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from legroom.memory.event_base import Frame
from legroom.observe.dispatch.attribution import user_frame

_lines: "weakref.WeakKeyDictionary[torch.optim.Optimizer, Frame]" = weakref.WeakKeyDictionary()
_original: Callable[..., None] | None = None
_users = 0


def follow_optimizers() -> None:
    """Record the lines of optimizers that are created from now on, until `unfollow_optimizers` was called as often as
    this function.
    """
    global _original, _users
    _users += 1
    if _users > 1:
        return
    original = _original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def recorded(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        line, _ = user_frame(_caller_of_constructors(optimizer, sys._getframe(1)))
        if line is not None:
            _lines[optimizer] = line

    torch.optim.Optimizer.__init__ = recorded  # type: ignore[method-assign, assignment]


def unfollow_optimizers() -> None:
    global _original, _users
    _users = max(_users - 1, 0)
    if not _users and _original is not None:
        torch.optim.Optimizer.__init__ = _original  # type: ignore[method-assign]
        _original = None


def line_of(optimizer: torch.optim.Optimizer) -> Frame | None:
    """Return the line that created an optimizer, or None if the optimizer existed before the recording."""
    return _lines.get(optimizer)


def _caller_of_constructors(optimizer: torch.optim.Optimizer, frame: FrameType | None) -> FrameType | None:
    """Skip the constructors of the optimizer's own class, which may be in the user's code."""
    while (
        frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is optimizer
    ):
        frame = frame.f_back
    return frame
