"""Folders that are there as a whole or not at all.

A folder is filled under a hidden name and gets its own name by one rename, after everything in it has reached the disk:
whoever looks for it finds all of it or nothing. What a killed process left under a hidden name is recognised by its
lock, which the kernel has released.
"""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from legroom.errors import CheckpointError
from legroom.units import format_size

try:
    import fcntl
except ImportError:  # Windows: what a killed process left there stays until it is removed by hand
    fcntl = None  # type: ignore[assignment]

_HIDDEN = ".unfinished-"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnfinishedFolder:
    """A folder that nobody finds until `finish(name)` has given it its name."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        self._parent = parent
        self.path = _hidden_folder(parent)
        self._lock: int | None = _lock(self.path)

    def finish(self, name: str) -> Path:
        """Give it its name. What is in it must have been written by `write_file`."""
        sync_folder(self.path)
        final = self._parent / name
        os.rename(self.path, final)
        sync_folder(self._parent)
        self._unlock()
        return final

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_folder(path: Path) -> None:
    """Remove a folder so that a half-removed one is never found under its name."""
    hidden = _hidden_folder(path.parent)
    os.rename(path, hidden / path.name)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove what killed processes left unfinished. Folders that a living process fills are locked, and stay."""
    for path in parent.glob(f"{_HIDDEN}*"):
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


@contextlib.contextmanager
def saying_what_failed(folder: Path, needed: int) -> Iterator[None]:
    """An error of the disk as one sentence, with what a person can do."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise CheckpointError(_no_space(folder, needed, error)) from None
        raise CheckpointError(
            f"the checkpoint could not be written to {folder}: {error.strerror or error}. "
            "The checkpoints before it are untouched"
        ) from None


def _no_space(folder: Path, needed: int, error: OSError) -> str:
    try:
        free = f" and {format_size(shutil.disk_usage(folder).free)} are free"
    except OSError:
        free = ""
    return (
        f"there is no room for the checkpoint in {folder} ({error.strerror}): it takes {format_size(needed)}{free}. "
        "The checkpoints before it are untouched; free some space, or keep fewer with keep="
    )


def sync_folder(path: Path) -> None:
    """Names in a folder are data too: a rename that has not reached the disk is lost with the power."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """A lock on a folder that the kernel releases when the process ends; None if another holds it."""
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _hidden_folder(parent: Path) -> Path:
    path = parent / f"{_HIDDEN}{uuid.uuid4().hex}"
    path.mkdir()
    return path
