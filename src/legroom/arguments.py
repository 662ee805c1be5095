"""Argument checks for public functions.

A wrong type raises `UsageError` with one line that says what to pass.

The message shows a number or a string unchanged. For any other value, it shows only the type, because `repr` may be
long or call user code.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from legroom.errors import UsageError


def check_path(name: str, value: Any) -> Path:
    if isinstance(value, str | os.PathLike) and value != "":
        path = os.fspath(value)
        if isinstance(path, str):
            return Path(path)
    raise UsageError(f"{_given(name, value)} is not a path. Pass a string or a pathlib.Path.")


def check_count(name: str, value: Any, *, minimum: int = 1, otherwise: str = "") -> int:
    """Return `value` if it is an integer of at least `minimum`, and raise `UsageError` otherwise. The error message
    suggests `otherwise` as another valid value, such as `None for no limit`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
        return value
    alternative = f", or {otherwise}" if otherwise else ""
    raise UsageError(
        f"{_given(name, value)} is not valid. Pass an integer of {minimum} or more{alternative}."
    )


def check_positive(name: str, value: Any) -> float:
    """Return `value` if it is a number above 0, and raise `UsageError` otherwise. A tensor or an array with one
    element also counts as a number."""
    try:
        if not isinstance(value, bool | str | bytes) and value > 0:
            return value  # type: ignore[no-any-return]
    except (TypeError, ValueError, RuntimeError):
        pass
    raise UsageError(f"{_given(name, value)} is not valid. Pass a number above 0, or omit {name}.")


def check_names(name: str, value: Any, example: str) -> tuple[Any, ...]:
    """Return the items of a list or another collection as a tuple. A string is rejected, because its items would be
    single characters."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return tuple(value)
    raise UsageError(f"{_given(name, value)} is not valid. Pass a list, such as {name}={example}.")


def _given(name: str, value: Any) -> str:
    is_plain = value is None or isinstance(value, int | float | str | bytes)
    return f"{name}={value!r}" if is_plain else f"{name}=<{type(value).__name__}>"


_SCRIPTS = (".py", ".pyw", ".ipynb", ".sh")


def refuse_script(path: Path, another: str) -> None:
    """Raise UsageError if an output path is the name of a script, even if no such file exists. `another` is a sentence
    that suggests a different path.
    """
    target = Path(os.path.realpath(path))  # the file that a link names would be overwritten
    if target.suffix.lower() in _SCRIPTS or path.suffix.lower() in _SCRIPTS:
        linked = "" if target.name == path.name else f" (a link to {target.name})"
        raise UsageError(f"{path}{linked} is a script, and Legroom will never write a script. {another}")
