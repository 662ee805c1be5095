"""Determines which source files belong to the user. This module does not import torch."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

INTERNAL, LIBRARY, USER = 0, 1, 2

_THIRD_PARTY = ("/site-packages/", "/dist-packages/")
_INTERACTIVE = ("<stdin>", "<ipython-input-", "<python-input-")

kinds: dict[str, int] = {}
"""The kind of each file that was checked so far, by path. Code that runs in every operation reads this dict directly.
"""


def kind_of(file: str) -> int:
    kind = kinds.get(file)
    if kind is None:
        kind = kinds[file] = _kind_of(file)
    return kind


def is_user_file(file: str) -> bool:
    return kind_of(file) == USER


def _kind_of(file: str) -> int:
    if file.startswith("<"):
        return USER if file.startswith(_INTERACTIVE) else INTERNAL
    path = slashes(file if file.startswith("/") else os.path.abspath(file))
    if path.startswith(_TORCH_AND_LEGROOM):
        return INTERNAL
    if any(part in path for part in _THIRD_PARTY):
        return LIBRARY
    return INTERNAL if path.startswith(_STDLIB) else USER


def slashes(path: str, system: ModuleType = os.path) -> str:
    """Return a path with forward slashes. On Windows, the path is also in lower case, so that equal paths are equal
    strings.
    """
    return path if system.sep == "/" else system.normcase(path).replace(system.sep, "/")


def _folders(*paths: str | Path | None) -> tuple[str, ...]:
    """Return each folder as given and with symbolic links resolved. A code object contains the path that was used for
    the import, which may have either form.
    """
    given = [Path(path) for path in paths if path]
    return tuple({f"{slashes(str(each))}/" for path in given for each in (path.absolute(), path.resolve())})


def _torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


_TORCH_AND_LEGROOM = _folders(_torch_folder(), Path(__file__).parents[2])
_STDLIB = _folders(
    Path(os.__file__).parent,
    Path(sys.base_exec_prefix, sys.platlibdir, f"python{sys.version_info[0]}.{sys.version_info[1]}"),
)
