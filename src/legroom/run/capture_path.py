"""Selects the path of the capture of a run.

Without `-o` it is `SCRIPT.legroom` in the current directory, or `SCRIPT-2.legroom` and so on if that exists. If the
directory is not writable, the script still runs: the capture is written to a temporary directory and deleted after
the report.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom.errors import CaptureError, UsageError
from legroom.memory.capture.capture import SUFFIX, CaptureWriter
from legroom.units import MiB

MAX_BYTES = 8 * MiB
"""About two million events, which `legroom report` reads in a few seconds."""


@dataclass(slots=True)
class OpenCapture:
    """A capture open for writing, and its path."""

    writer: CaptureWriter
    name: str | None
    """The path relative to the current directory; None if the capture is temporary."""
    warning: str = ""
    """Why the capture is temporary."""
    _folder: "tempfile.TemporaryDirectory[str] | None" = None

    def discard(self) -> None:
        """Close and delete the capture."""
        self.writer.close()
        if self._folder is not None:
            self._folder.cleanup()
        else:
            self.writer.path.unlink(missing_ok=True)


def open_capture(output: Path | None, *, force: bool, stem: str, run: dict[str, Any]) -> OpenCapture:
    """Create a capture at `output`, or at an unused path made from `stem`."""
    if output is not None:
        return OpenCapture(CaptureWriter(output, run=run, force=force, max_bytes=MAX_BYTES), str(output))
    try:
        return _open_numbered(stem, force, run)
    except CaptureError as error:
        folder = tempfile.TemporaryDirectory(prefix="legroom-")
        writer = CaptureWriter(Path(folder.name) / f"{stem}{SUFFIX}", run=run, max_bytes=MAX_BYTES)
        return OpenCapture(
            writer, None, f"No capture is kept. {str(error).removesuffix('.')} with `-o`.", folder
        )


def _open_numbered(stem: str, force: bool, run: dict[str, Any]) -> OpenCapture:
    number = 1
    while True:
        name = f"{stem}{SUFFIX}" if number == 1 else f"{stem}-{number}{SUFFIX}"
        if force or not os.path.lexists(name):
            try:
                return OpenCapture(CaptureWriter(name, run=run, force=force, max_bytes=MAX_BYTES), name)
            except (UsageError, CaptureError):
                if force or not os.path.lexists(name):
                    raise
        number += 1  # the name exists, or another rank of the same launch has just created it
