"""Records the lines of the user's code that create optimizers and DataLoaders.

The line of an optimizer is a part of advice. The lines of a loader show where its batch size comes from.
"""

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils.data import BatchSampler

from legroom.memory.event_base import Frame
from legroom.observe.dispatch.attribution import user_frame, user_lines

MAX_LINES = 16


class CreationLines:
    """The lines that create the instances of a class. They are recorded while `follow` was called more often than
    `unfollow`.
    """

    def __init__(self, kind: Any, lines_at: Callable[[FrameType | None], list[Frame]]) -> None:
        self._kind, self._lines_at = kind, lines_at
        self._lines: dict[int, tuple[weakref.ref[Any], list[Frame]]] = {}
        """Maps the `id` of each instance, which may not be hashable, to its lines."""
        self._original: Any = None
        self._recorded: Any = None
        self._users = 0

    def follow(self) -> None:
        self._users += 1
        if self._users > 1:
            return
        original = self._original = self._kind.__init__

        @functools.wraps(original)
        def recorded(instance: Any, *args: Any, **kwargs: Any) -> None:
            original(instance, *args, **kwargs)
            if self._users:
                with contextlib.suppress(TypeError):  # an instance without weak references
                    self._record(instance, sys._getframe(1))

        self._kind.__init__ = self._recorded = recorded

    def unfollow(self) -> None:
        self._users = max(self._users - 1, 0)
        # Another library may have replaced the constructor since.
        if not self._users and self._kind.__init__ is self._recorded:
            self._kind.__init__ = self._original

    def of(self, instance: Any) -> list[Frame]:
        """Return the lines that created an instance. The list is empty if the instance was not recorded."""
        reference, lines = self._lines.get(id(instance), (None, []))
        return lines if reference is not None and reference() is instance else []

    def _record(self, instance: Any, frame: FrameType | None) -> None:
        # The constructors of the instance's own class may be in the user's code.
        constructors = [
            getattr(vars(kind).get("__init__"), "__code__", None) for kind in type(instance).__mro__
        ]
        while frame is not None and frame.f_code in constructors:
            frame = frame.f_back
        key, known = id(instance), self._lines
        known[key] = weakref.ref(instance, lambda _: known.pop(key, None)), self._lines_at(frame)


def _optimizer_lines(frame: FrameType | None) -> list[Frame]:
    line, _ = user_frame(frame)
    return [line] if line is not None else []


def _loader_lines(frame: FrameType | None) -> list[Frame]:
    return user_lines(frame)[0][:MAX_LINES]


optimizer_lines = CreationLines(torch.optim.Optimizer, _optimizer_lines)
_sampler_lines = CreationLines(BatchSampler, _loader_lines)


def follow_constructors() -> None:
    optimizer_lines.follow()
    _sampler_lines.follow()


def unfollow_constructors() -> None:
    optimizer_lines.unfollow()
    _sampler_lines.unfollow()


def lines_of_loader(iterator: Any) -> list[Frame]:
    """Return the lines that created the loader of an iterator, innermost first. The list is empty if the loader existed
    before the recording, or does not batch the samples.
    """
    sampler = getattr(iterator, "_index_sampler", None)
    while sampler is not None:
        lines = _sampler_lines.of(sampler)
        if lines:
            return lines
        sampler = getattr(sampler, "batch_sampler", None)  # the sampler of accelerate
    return []
