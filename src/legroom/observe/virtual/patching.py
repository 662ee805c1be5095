"""Attributes of torch's modules and classes, replaced for a while and put back exactly.

Everything that a virtual GPU answers is written as tables (owner, name, value). A name that this version of torch
does not have is skipped, unless the table says to add it: a CPU build lacks the C functions that torch's own Python
code calls, and adding those lets that code run unchanged, with its own argument handling and its own errors.

Libraries are imported while a script runs, and keep what they import. So a function that stands in for another one
is that other one again afterwards, also for those who hold it.
"""

import contextlib
import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

_ABSENT = object()


class Replacement(NamedTuple):
    """One attribute and what stands in for it."""

    owner: Any
    """A module or a class."""
    name: str
    value: Any
    add: bool = False
    """Set it even where torch has no such name."""


def table(owner: Any, values: Mapping[str, Any], *, add: bool = False) -> list[Replacement]:
    """A table of replacements in one module or class; empty where `owner` is None."""
    return (
        [Replacement(owner, name, value, add) for name, value in values.items()] if owner is not None else []
    )


@contextlib.contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Within the block the replacements are in place; after it, however it ends, everything is as it was."""
    undo: list[tuple[Any, str, Any]] = []
    is_in_place = [True]
    try:
        for owner, name, value, add in replacements:
            if not add and not hasattr(owner, name):
                continue
            # From the owner's own dictionary: an inherited attribute must be deleted again, not copied down, and
            # a static method must come back as the object that it was.
            before = vars(owner).get(name, _ABSENT)
            if isinstance(owner, ModuleType) and inspect.isroutine(before) and inspect.isroutine(value):
                value = _standing_in(value, before, is_in_place)
            setattr(owner, name, value)
            undo.append((owner, name, before))
        yield
    finally:
        is_in_place.clear()
        for owner, name, before in reversed(undo):
            if before is not _ABSENT:
                setattr(owner, name, before)
            elif name in vars(owner):
                delattr(owner, name)


def optional_module(name: str) -> Any:
    """A module of torch that some version may lack; None there. Property modules give the module they wrap."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    # torch.backends.cudnn and friends put an object with properties in their own place; what their functions look
    # names up in is the module inside it.
    inner = vars(module).get("m")
    return inner if isinstance(inner, ModuleType) else module


def answer(value: Any = None) -> Callable[..., Any]:
    """A function that takes anything and returns `value`."""

    def answered(*_arguments: Any, **_options: Any) -> Any:
        return value

    return answered


def once_warner() -> Callable[[str], None]:
    """A function that warns with a sentence the first time it is given it, wherever that is."""

    @functools.cache
    def warn(sentence: str) -> None:
        warnings.warn(sentence, stacklevel=_frames_to_user())

    return warn


def _frames_to_user() -> int:
    """How far up the caller is that is neither ours nor the cache's: the line that the warning is about."""
    depth, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("legroom.observe.virtual"):
        depth, frame = depth + 1, frame.f_back
    return depth - 1


def _standing_in(value: Callable[..., Any], original: Callable[..., Any], is_in_place: list[bool]) -> Any:
    """`value` while the replacement is in place, `original` afterwards; with the original's name and help text."""

    @functools.wraps(original)
    def stand_in(*arguments: Any, **options: Any) -> Any:
        return (value if is_in_place else original)(*arguments, **options)

    return stand_in
