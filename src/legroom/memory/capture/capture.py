"""Writes a capture file: the events of a run on disk.

Events are written during the run, so a run that is killed loses only its last events. The file has a maximum size, so
a run of several days does not fill the disk. The format is gzipped JSON (try `zcat run.legroom`), so reading a
capture cannot run code. `lines` describes the format, and `trim` selects the events to remove when the file grows too
large.

Because `write` is called during training, it only appends the event to a list. One thread at a time encodes the
events in batches. A storage can be freed at any moment, so `write` may also be called while a batch is encoded. If
the file cannot be written, training continues, and `failed` contains the reason.
"""

import errno
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Self

from legroom.arguments import refuse_script
from legroom.errors import CaptureError, DiskFullError, UsageError
from legroom.memory.capture.chunks import ChunkFile
from legroom.memory.capture.lines import to_json
from legroom.memory.capture.reader import Capture, is_start_of_capture, read_capture
from legroom.memory.events import Alloc, Event, Free, Tag
from legroom.memory.interrupts import delayed_interrupts
from legroom.units import MiB, format_size

__all__ = ["DEFAULT_MAX_BYTES", "SUFFIX", "Capture", "CaptureWriter", "check_output", "read_capture"]

SUFFIX = ".legroom"
DEFAULT_MAX_BYTES = 64 * MiB
"""The maximum size of a capture, which is enough for about 15 million events. A viewer needs about 250 bytes of memory
per event.
"""

_MIN_MAX_BYTES = MiB
_HEADER_BYTES = 4096
"""The number of bytes that are read to recognize a capture."""
_MAX_PENDING = 1024
"""The maximum number of pending events, which are lost if the process is killed."""
_MAX_WAIT = 0.5
"""The maximum number of seconds for which an event may be pending.

`Step`, `Oom` and other rare events are written immediately.
"""


class CaptureWriter:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: dict[str, Any],
        force: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Create a capture file. `run` describes the run in JSON types: script, devices, versions, settings.

        The file stays smaller than `max_bytes`. While the file is trimmed, a second file of half the size exists next
        to it. The file may become larger if the live storages alone need more than an eighth of `max_bytes`.
        """
        if max_bytes < _MIN_MAX_BYTES:
            raise UsageError(
                f"The maximum size of a capture must be at least {format_size(_MIN_MAX_BYTES)}, not {format_size(max_bytes)}."
            )
        try:
            to_json(run)
        except (TypeError, ValueError) as error:
            raise UsageError(f"`run` must contain only JSON types: {error}") from None
        self.path = Path(os.path.realpath(path))
        self.failed: str | None = None
        """The reason why writing stopped before the end of the run, or None."""
        self._process = os.getpid()
        self._pending: list[Event] = []
        self._due = _MAX_WAIT
        self._lock = Lock()
        self._owner: int | None = None
        self._file: ChunkFile | None = None
        try:
            created = _create(self.path, force=force)
            try:
                self._file = ChunkFile(self.path, created, run=run, max_bytes=max_bytes)
            except OSError:
                _remove(self.path, created)
                raise
        except OSError as error:
            kind = DiskFullError if error.errno in _DISK_ERRORS else CaptureError
            raise kind(_write_error(self.path, error)) from None

    @property
    def dropped(self) -> int:
        return self._file.dropped if self._file is not None else 0

    def write(self, event: Event) -> None:
        if self._file is None:
            return
        pending = self._pending
        pending.append(event)
        if len(pending) < _MAX_PENDING:
            # This code runs for every event. `isinstance(event, Alloc | Free)` would create the union each time.
            if isinstance(event, Alloc) or isinstance(event, Free):  # noqa: SIM101
                if event[0] < self._due:
                    return
            elif isinstance(event, Tag):
                return
        self._drain()

    def write_all(self, events: list[Event]) -> None:
        if self._file is not None:
            self._pending += events
            self._drain()

    def flush(self) -> None:
        """Pass all pending events to the operating system, so that they are not lost if the process is killed."""
        self._drain(wait=True)

    def close(self) -> None:
        """Write the pending events and the end mark."""
        self._drain(wait=True, finish=True)

    def abandon(self) -> None:
        """Stop writing without changing the file.

        A forked child calls this method, because the file belongs to the parent.
        """
        self._stop(self.failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _drain(self, *, wait: bool = False, finish: bool = False) -> None:
        """Write the pending events.

        If another thread is writing, that thread or the next call writes the pending events.
        """
        if os.getpid() != self._process:
            self.abandon()  # do not take the lock: a thread of the parent may have held it at the fork
        me = get_ident()
        if self._file is None or self._owner == me:
            return
        with delayed_interrupts():
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
            self._stop(f"Recording stopped: {_write_error(self.path, error)}")
        except (TypeError, ValueError, OverflowError) as error:
            self._stop(f"Recording to {self.path} stopped: an event could not be written ({error}).")
        except BaseException as error:
            # A signal handler raised this. The batch is incomplete, and writing more would corrupt the file.
            self._stop(f"Recording to {self.path} stopped: interrupted by {type(error).__name__}.")
            raise

    def _write_pending(self, finish: bool) -> None:
        if self._file is None:
            return
        self._write_batch(self._file)
        if finish:
            while self._pending:  # events may have been added in the meantime
                self._write_batch(self._file)
            self._file.finish()
            self._file = None

    def _write_batch(self, file: ChunkFile) -> None:
        # Other threads may append at the same time. Each of these two lines is atomic. Replacing the list is not
        # atomic.
        batch = self._pending[:]
        del self._pending[: len(batch)]
        if batch:
            file.write(batch)
            self._due = file.seconds + _MAX_WAIT

    def _stop(self, failed: str | None) -> None:
        self.failed = failed
        file, self._file = self._file, None
        self._pending.clear()
        if file is not None:
            file.abandon()


def copy_capture(source: Path, path: Path, *, force: bool) -> None:
    """Copy a complete capture to a new file. With `force`, an existing capture is overwritten, but any other kind of
    file is not.
    """
    exists = check_output(path, force=force, option="force=True", example="")
    try:
        content = source.read_bytes()
        with FileIO(path, "wb" if exists else "xb") as target:
            view = memoryview(content)
            while view:
                view = view[target.write(view) or len(view) :]
    except FileExistsError:
        raise UsageError(_exists(path, "force=True")) from None
    except OSError as error:
        raise CaptureError(_write_error(path, error)) from None


def _create(path: Path, *, force: bool) -> FileIO:
    """Create the file. With `force`, an existing capture is overwritten, but any other kind of file is not."""
    if check_output(path, force=force):
        return FileIO(path, "wb")
    try:
        return FileIO(path, "xb")
    except FileExistsError:  # another process has just created the file
        raise UsageError(_exists(path)) from None


def check_output(path: Path, *, force: bool, option: str = "--force", example: str = "-o ") -> bool:
    """Return True if the file exists, and raise an error if a capture must not overwrite it.

    The error message suggests `option`, which allows overwriting, or `example`, which sets a different path.
    """
    number = "-2" if path.suffix == SUFFIX else ""  # do not suggest the same path
    another = f"Specify another path, for example `{example}{path.stem}{number}{SUFFIX}`."
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        refuse_script(path, another)
        return False
    if stat.S_ISDIR(mode):
        raise CaptureError(f"{path} is a directory. Specify the path to a file.")
    refuse_script(path, another)
    if not stat.S_ISREG(mode):
        raise CaptureError(f"{path} is not a regular file. Specify another path.")
    with open(path, "rb") as existing:
        start = existing.read(_HEADER_BYTES)
        if start and not is_start_of_capture(start):
            raise UsageError(
                f"{path} is not a capture, and Legroom overwrites only captures, even with `{option}`. {another}"
            )
    if not force:
        raise UsageError(_exists(path, option))
    return True


def _exists(path: Path, option: str = "--force") -> str:
    return f"{path} already exists. Add `{option}` to overwrite the file, or specify another path."


def _remove(path: Path, created: FileIO) -> None:
    with suppress(OSError):
        created.close()
    with suppress(OSError):
        path.unlink()


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def _write_error(path: Path, error: OSError) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return f"Cannot write {path}: {path.parent} is not a directory. Create the directory, or specify another path."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"Cannot write {path}: {path.parent} is read-only. Specify another path."
        case errno.ENOSPC | errno.EDQUOT:
            return f"Cannot write {path}: the disk is full. Free some space, or specify another path."
        case _:
            return f"Cannot write {path} ({error.strerror or error}). Specify another path."
