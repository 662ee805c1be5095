"""The capture file: a run's events on disk, for every viewer to read.

It is streamed, so that a run which is killed leaves all but its last moments; bounded, so that a run of days does
not fill the disk; plain (`zcat run.legroom` shows it), so that no capture can run code. `capture_rows` says what is
in it, `capture_trim` what is given up when it grows too large.

A writer stands in the middle of somebody's training. So `write` only puts the event on a list; events are encoded
in batches, by one thread at a time, and never inside one another: a storage may die, and `write` be called for it,
at any moment, even while a batch is encoded. And whatever happens to the file, the training goes on: see `failed`.
"""

import errno
import os
import stat
from io import FileIO
from pathlib import Path
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Self

from legroom.errors import CaptureError, UsageError
from legroom.memory.capture.chunks import ChunkFile
from legroom.memory.capture.lines import to_json
from legroom.memory.capture.reader import Capture, read_capture
from legroom.memory.events import Alloc, Event, Free, Tag
from legroom.memory.interrupts import later_interrupts
from legroom.units import MiB, format_size

__all__ = ["DEFAULT_MAX_BYTES", "SUFFIX", "Capture", "CaptureWriter", "read_capture"]

SUFFIX = ".legroom"
DEFAULT_MAX_BYTES = 64 * MiB
"""About 15 million events. More could be written, but a viewer needs some 250 bytes of memory for each."""

_LEAST_MAX_BYTES = MiB
_MOST_PENDING = 1024
"""Events that may wait, and so be lost when the process is killed ..."""
_LONGEST_WAIT = 0.5
"""... or seconds' worth of them. A Step, an Oom and other rare events do not wait at all."""


class CaptureWriter:
    """Writes events to a capture file. Its `write` is a Sink."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: dict[str, Any],
        force: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """`run` describes the run in plain JSON data: script, devices, versions, settings.

        The file stays below `max_bytes` (while it is trimmed, another of half the size lies beside it). Only where so
        much is alive at once that to describe it takes more than an eighth of that does the bound give way.
        """
        if max_bytes < _LEAST_MAX_BYTES:
            raise UsageError(
                f"a capture needs at least {format_size(_LEAST_MAX_BYTES)}, not {format_size(max_bytes)}"
            )
        try:
            to_json(run)
        except (TypeError, ValueError) as error:
            raise UsageError(f"what describes a run must be plain JSON data: {error}") from None
        self.path = Path(os.path.realpath(path))
        self.failed: str | None = None
        """Why writing stopped before the run did, as a sentence; None while all is well."""
        self._process = os.getpid()
        self._pending: list[Event] = []
        self._due = _LONGEST_WAIT
        self._lock = Lock()
        self._owner: int | None = None
        try:
            self._file: ChunkFile | None = ChunkFile(
                self.path, _create(self.path, force=force), run=run, max_bytes=max_bytes
            )
        except OSError as error:
            raise CaptureError(_why_not(self.path, error)) from None

    @property
    def dropped(self) -> int:
        """How many events the file is without, because it was kept small."""
        return self._file.dropped if self._file is not None else 0

    def write(self, event: Event) -> None:
        if self._file is None:
            return
        self._pending.append(event)
        if isinstance(event, Alloc | Free):
            if event[0] < self._due and len(self._pending) < _MOST_PENDING:
                return
        elif isinstance(event, Tag) and len(self._pending) < _MOST_PENDING:
            return
        self._drain()

    def flush(self) -> None:
        """Put every event written so far where it survives the death of the process."""
        self._drain(wait=True)

    def close(self) -> None:
        """Write what waits and the mark of a good end. Events that come later are ignored."""
        self._drain(wait=True, finish=True)

    def abandon(self) -> None:
        """For a forked child: stop, and leave the file, which is the parent's, as it is."""
        self._stop(self.failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _drain(self, *, wait: bool = False, finish: bool = False) -> None:
        """Encode and write what waits; when that is under way already, whoever does it or comes next will."""
        if os.getpid() != self._process:
            self.abandon()  # before the lock: at the fork, another thread of the parent may have held it
        me = get_ident()
        if self._file is None or self._owner == me:
            return
        with later_interrupts():
            if self._lock.acquire(blocking=wait):
                try:
                    self._owner = me
                    self._write_pending_or_stop(finish)
                finally:
                    self._owner = None
                    self._lock.release()

    def _write_pending_or_stop(self, finish: bool) -> None:
        try:
            self._write_pending(finish)
        except OSError as error:
            self._stop(f"recording stopped: {_why_not(self.path, error)}")
        except (TypeError, ValueError, OverflowError) as error:
            self._stop(f"recording to {self.path} stopped: an event could not be written ({error})")
        except BaseException as error:
            # A signal's handler raised this. Half a batch is written: to go on would spoil what is there.
            self._stop(f"recording to {self.path} stopped: it was interrupted by {type(error).__name__}")
            raise

    def _write_pending(self, finish: bool) -> None:
        if self._file is None:
            return
        self._write_batch(self._file)
        if finish:
            while self._pending:  # more may have come while those were written
                self._write_batch(self._file)
            self._file.finish()
            self._file = None

    def _write_batch(self, file: ChunkFile) -> None:
        # Other threads may append meanwhile. Each of these two lines is atomic; swapping in a new list is not.
        batch = self._pending[:]
        del self._pending[: len(batch)]
        if batch:
            file.write(batch)
            self._due = file.seconds + _LONGEST_WAIT

    def _stop(self, failed: str | None) -> None:
        self.failed = failed
        file, self._file = self._file, None
        self._pending.clear()
        if file is not None:
            file.drop()


def _create(path: Path, *, force: bool) -> FileIO:
    """A new file at `path`; `force` replaces a capture, and nothing but a capture."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return FileIO(path, "xb")
    if stat.S_ISDIR(mode):
        raise CaptureError(f"{path} is a folder: give the name of a file in it")
    if not stat.S_ISREG(mode):
        raise CaptureError(f"{path} is no ordinary file: give the name of one")
    if not force:
        raise UsageError(f"{path} exists: add --force to overwrite it, or give another name")
    with open(path, "rb") as existing:
        if existing.read(2) not in (b"", b"\x1f\x8b"):
            raise UsageError(f"{path} is no capture, so --force does not overwrite it: give another name")
    return FileIO(path, "wb")


def _why_not(path: Path, error: OSError) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return f"{path} cannot be written because {path.parent} is no folder: create it, or give another path"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{path} cannot be written because {path.parent} is read-only: give a path where you may write"
        case errno.ENOSPC | errno.EDQUOT:
            return f"{path} cannot be written because the disk is full: free some space, or give another path"
        case _:
            return f"{path} cannot be written ({error.strerror or error}): give another path"
