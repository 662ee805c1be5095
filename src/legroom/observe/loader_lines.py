"""Records the lines of the user's code that create each DataLoader, to find where its batch size comes from."""

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler

from legroom.memory.event_base import Frame
from legroom.observe.dispatch.attribution import user_lines

MAX_LINES = 16

_lines: "weakref.WeakKeyDictionary[Any, list[Frame]]" = weakref.WeakKeyDictionary()
_original: Callable[..., None] | None = None
_users = 0


def follow_loaders() -> None:
    """Record the lines of loaders that are created from now on, until `unfollow_loaders` was called as often as this
    function.
    """
    global _original, _users
    _users += 1
    if _users > 1:
        return
    original = _original = BatchSampler.__init__

    @functools.wraps(original)
    def recorded(sampler: Any, *args: Any, **kwargs: Any) -> None:
        original(sampler, *args, **kwargs)
        _lines[sampler] = user_lines(sys._getframe(1))[0][:MAX_LINES]

    BatchSampler.__init__ = recorded  # type: ignore[method-assign, assignment]


def unfollow_loaders() -> None:
    global _original, _users
    _users = max(_users - 1, 0)
    if not _users and _original is not None:
        BatchSampler.__init__ = _original  # type: ignore[method-assign]
        _original = None


def lines_of(loader_iterator: Any) -> list[Frame]:
    """Return the lines that created the loader of an iterator, innermost first. The result is empty if the loader
    existed before the recording, or does not batch the samples.
    """
    sampler = getattr(loader_iterator, "_index_sampler", None)
    while sampler is not None:
        try:
            if sampler in _lines:
                return _lines[sampler]
        except TypeError:  # a sampler without a hash
            return []
        sampler = getattr(sampler, "batch_sampler", None)  # the sampler of accelerate
    return []
