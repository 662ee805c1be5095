"""Finds the Python files and notebooks below the given paths. Build and environment directories are skipped."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from legroom.diagnose.lint.finding import FileError
from legroom.diagnose.lint.settings import settings_for
from legroom.errors import UsageError

SUFFIXES = {".py", ".pyi", ".ipynb"}
EXCLUDED_DIRECTORIES = {
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


def find_files(paths: Sequence[str], file_errors: list[FileError]) -> Iterator[Path]:
    """Yield all files below the paths, without duplicates. A file that is given explicitly is always included."""
    seen: set[tuple[int, int]] = set()
    for given in paths:
        if not given.strip():
            raise UsageError("The path is empty. Pass a file or a directory, for example `legroom lint .`")
        path = Path(given)
        if path.is_dir():
            found = list(_inside(path, seen, file_errors))
            if not found:
                file_errors.append(
                    FileError(file=given, message="no Python files or notebooks found", is_failure=False)
                )
            yield from found
        elif path.exists() or path.is_symlink():
            if _is_new(path, seen):
                yield path
        else:
            raise UsageError(f"{given} does not exist.")


def _inside(folder: Path, seen: set[tuple[int, int]], file_errors: list[FileError]) -> Iterator[Path]:
    pending = [folder]
    while pending:
        current = pending.pop()
        if not _is_new(current, seen):  # a cyclic link
            continue
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            message = f"cannot be read: {(error.strerror or str(error)).lower()}"
            file_errors.append(FileError(file=str(current), message=message))
            continue
        folders = []
        for entry in entries:
            path = Path(entry.path)
            if _is_folder(entry):
                if entry.name not in EXCLUDED_DIRECTORIES and not settings_for(path / "x").excludes(path):
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
        return True  # reported when it is read
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return False
    seen.add(identity)
    return True
