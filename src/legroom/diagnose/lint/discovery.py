"""Which files the given paths mean: Python files and notebooks, without what a project does not write itself."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from legroom.diagnose.lint.finding import FileError
from legroom.diagnose.lint.settings import settings_for
from legroom.errors import UsageError

SUFFIXES = {".py", ".pyi", ".ipynb"}
NEVER = {
    ".bzr",
    ".direnv",
    ".eggs",
    ".git",
    ".hg",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".nox",
    ".pytest_cache",
    ".ruff_cache",
    ".svn",
    ".tox",
    ".venv",
    "__pycache__",
    "__pypackages__",
    "build",
    "dist",
    "env",
    "node_modules",
    "site-packages",
    "venv",
}
"""Folders that are left out unless they are given themselves."""


def find_files(paths: Sequence[str], troubles: list[FileError]) -> Iterator[Path]:
    """Every file that the paths mean, once. A file that is given itself is always meant."""
    seen: set[tuple[int, int]] = set()
    for given in paths:
        if not given.strip():
            raise UsageError("an empty path was given: name a file or a folder, such as `legroom lint .`")
        path = Path(given)
        if path.is_dir():
            found = list(_inside(path, seen, troubles))
            if not found:
                troubles.append(FileError(file=given, sentence="no Python files or notebooks in it"))
            yield from found
        elif path.exists() or path.is_symlink():
            if _is_new(path, seen):
                yield path
        else:
            raise UsageError(f"there is no file or folder {given}")


def _inside(folder: Path, seen: set[tuple[int, int]], troubles: list[FileError]) -> Iterator[Path]:
    pending = [folder]
    while pending:
        current = pending.pop()
        if not _is_new(current, seen):  # a link that leads back
            continue
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            sentence = f"cannot be read: {(error.strerror or str(error)).lower()}"
            troubles.append(FileError(file=str(current), sentence=sentence))
            continue
        folders = []
        for entry in entries:
            path = Path(entry.path)
            if _is_folder(entry):
                if entry.name not in NEVER and not settings_for(path / "x").excludes(path):
                    folders.append(path)
            elif path.suffix in SUFFIXES and not settings_for(path).excludes(path) and _is_new(path, seen):
                yield path
        pending.extend(reversed(folders))


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_new(path: Path, seen: set[tuple[int, int]]) -> bool:
    try:
        status = path.stat()
    except OSError:
        return True  # told when it is read
    place = (status.st_dev, status.st_ino)
    if place in seen:
        return False
    seen.add(place)
    return True
