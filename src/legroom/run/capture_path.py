"""Selects the path of a run's capture.

Without `-o`, the path is `SCRIPT.legroom` in the current directory, or `SCRIPT-2.legroom` and so on if the file exists.
If no capture can be written, or if the disk is full, the script still runs and the report is printed.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom.errors import CaptureError, DiskFullError, UsageError
from legroom.memory.capture.capture import SUFFIX, CaptureWriter
from legroom.memory.events import Event
from legroom.units import MiB

MAX_BYTES = 8 * MiB
"""The maximum size of a capture in bytes. A capture of this size contains about two million events, which `legroom
report` reads in a few seconds.
"""
MAX_NUMBER = 100_000


class NoWriter:
    failed: str | None = None
    dropped = 0

    def write(self, event: Event) -> None: ...

    def write_all(self, events: list[Event]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


@dataclass(slots=True)
class OpenCapture:
    """A capture open for writing, and its path."""

    writer: CaptureWriter | NoWriter
    name: str | None
    """The path relative to the current directory, or None if no capture is written."""
    warning: str = ""

    def discard(self) -> None:
        self.writer.close()
        if isinstance(self.writer, CaptureWriter):
            self.writer.path.unlink(missing_ok=True)


def open_capture(output: Path | None, *, force: bool, stem: str, run: dict[str, Any]) -> OpenCapture:
    """Create a capture at `output`, or at an unused path made from `stem`."""
    try:
        if output is not None:
            return OpenCapture(CaptureWriter(output, run=run, force=force, max_bytes=MAX_BYTES), str(output))
        return _open_numbered(stem, force, run)
    except CaptureError as error:
        if output is None:
            return OpenCapture(
                NoWriter(), None, f"No capture is written. {str(error).removesuffix('.')} with `-o`."
            )
        if isinstance(error, DiskFullError):
            return OpenCapture(NoWriter(), None, f"No capture is written. {error}")
        raise


def _open_numbered(stem: str, force: bool, run: dict[str, Any]) -> OpenCapture:
    for number in range(1, MAX_NUMBER + 1):
        name = f"{stem}{SUFFIX}" if number == 1 else f"{stem}-{number}{SUFFIX}"
        if force or not os.path.lexists(name):
            try:
                return OpenCapture(CaptureWriter(name, run=run, force=force, max_bytes=MAX_BYTES), name)
            except UsageError:  # another rank has just created the file, or it is not a capture
                if force:
                    raise
    raise CaptureError(f"{stem}{SUFFIX} to {stem}-{MAX_NUMBER}{SUFFIX} already exist. Specify another path.")
