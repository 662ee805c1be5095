"""Creates folders atomically.

A folder is filled under a hidden name and renamed after its contents are flushed to disk. Therefore, a folder is
either complete or absent. A running process locks the hidden folder that it fills. If a hidden folder is not locked,
its process was killed, because the kernel releases the locks of a killed process.
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
except ImportError:  # Windows: hidden folders of killed processes must be removed manually
    fcntl = None  # type: ignore[assignment]

_HIDDEN = ".unfinished-"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnfinishedFolder:
    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        self._parent = parent
        self.path = _hidden_folder(parent)
        self._lock: int | None = _lock(self.path)

    def finish(self, name: str) -> Path:
        """Rename the folder to `name`, and return its path. The contents must have been written by `write_file`, which
        flushes them to disk."""
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
    """Remove a folder atomically, by renaming the folder before removing it."""
    hidden = _hidden_folder(path.parent)
    os.rename(path, hidden / path.name)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove hidden folders left by killed processes."""
    for path in parent.glob(f"{_HIDDEN}*"):
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


@contextlib.contextmanager
def disk_errors(folder: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise CheckpointError(_no_space(folder, needed, error)) from None
        raise CheckpointError(
            f"The checkpoint could not be written to {folder}: {error.strerror or error}. "
            "Existing checkpoints are not affected."
        ) from None


def _no_space(folder: Path, needed: int, error: OSError) -> str:
    try:
        free = f", and {format_size(shutil.disk_usage(folder).free)} is free"
    except OSError:
        free = ""
    return (
        f"There is not enough disk space for the checkpoint in {folder} ({error.strerror}). The checkpoint needs "
        f"{format_size(needed)}{free}. Existing checkpoints are not affected. Free disk space, or keep fewer "
        "checkpoints with keep=."
    )


def sync_folder(path: Path) -> None:
    """Flush the directory entries of a folder to disk, so that a power failure cannot undo a rename."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Lock `path` until the process ends. Return the file descriptor of the lock, or None if another process has locked
    `path`.
    """
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
