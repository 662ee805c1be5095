"""Temporarily replaces attributes of modules and classes, and restores them exactly.

All replacements of a virtual GPU are defined in tables with the columns owner, name and value. A name that this version
of torch lacks is skipped, unless the replacement has `add=True`. A CPU build of torch lacks the C functions that
torch's own Python code calls. These functions are added so that torch's Python code runs unchanged, with its own
argument handling and errors.

A library that is imported while a script runs may keep a reference to a replacement. Therefore a replacement calls the
original function after the virtual GPU has ended.
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
    owner: Any
    name: str
    value: Any
    add: bool = False


def table(owner: Any, values: Mapping[str, Any], *, add: bool = False) -> list[Replacement]:
    """Return replacements for attributes of one module or class. The result is empty if `owner` is None."""
    return (
        [Replacement(owner, name, value, add) for name, value in values.items()] if owner is not None else []
    )


@contextlib.contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Apply the replacements inside the `with` block, and restore every attribute afterwards, even after an error."""
    undo: list[tuple[Any, str, Any]] = []
    is_active = [True]
    try:
        for owner, name, value, add in replacements:
            if not add and not hasattr(owner, name):
                continue
            # Read the owner's own dictionary. An inherited attribute must be deleted again, not copied to the owner,
            # and a static method must be restored as the same object.
            before = vars(owner).get(name, _ABSENT)
            if isinstance(owner, ModuleType) and inspect.isroutine(before) and inspect.isroutine(value):
                value = _while_active(value, before, is_active)
            setattr(owner, name, value)
            undo.append((owner, name, before))
        yield
    finally:
        is_active.clear()
        for owner, name, before in reversed(undo):
            if before is not _ABSENT:
                setattr(owner, name, before)
            elif name in vars(owner):
                delattr(owner, name)


def optional_module(name: str) -> Any:
    """Return a module, or None if this version of torch lacks it. If torch wraps the module in an object with
    properties, return the wrapped module.
    """
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    # torch.backends.cudnn and others replace themselves in sys.modules with an object that has properties. Their functions look
    # names up in the module inside it.
    inner = vars(module).get("m")
    return inner if isinstance(inner, ModuleType) else module


def answer(value: Any = None) -> Callable[..., Any]:
    def answered(*_arguments: Any, **_options: Any) -> Any:
        return value

    return answered


def once_warner() -> Callable[[str], None]:
    @functools.cache
    def warn(message: str) -> None:
        warnings.warn(message, stacklevel=_frames_to_user())

    return warn


def _frames_to_user() -> int:
    """Return the `stacklevel` of the first caller outside this package, so that the warning shows the user's line."""
    depth, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("legroom.observe.virtual"):
        depth, frame = depth + 1, frame.f_back
    return depth - 1


def _while_active(value: Callable[..., Any], original: Callable[..., Any], is_active: list[bool]) -> Any:
    """Return a function with the name and docstring of `original`. The function calls `value` while the replacement is
    active, and `original` afterwards.
    """

    @functools.wraps(original)
    def replacement(*arguments: Any, **options: Any) -> Any:
        return (value if is_active else original)(*arguments, **options)

    return replacement
