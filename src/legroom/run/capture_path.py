"""Where a run's capture goes.

Without `-o` it is `SCRIPT.legroom` in the current folder, numbered where that exists: a name that is short to type in the next
command, and nothing is ever overwritten. A folder that cannot be written to is no reason not to run: the capture then
goes to a temporary folder, serves the summary, and is taken away.
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
"""About two million events: as much as `legroom report` reads back in a few seconds."""


@dataclass(slots=True)
class CapturePlace:
    """An open capture, and what to tell the user of it."""

    writer: CaptureWriter
    name: str | None
    """As the user would type it; None where it will not be kept."""
    complaint: str = ""
    """Why it will not be kept, as a sentence."""
    _folder: "tempfile.TemporaryDirectory[str] | None" = None

    def discard(self) -> None:
        """Close it and take it away: nothing was run, or nowhere could be found to keep it."""
        self.writer.close()
        if self._folder is not None:
            self._folder.cleanup()
        else:
            self.writer.path.unlink(missing_ok=True)


def open_capture(output: Path | None, *, force: bool, stem: str, run: dict[str, Any]) -> CapturePlace:
    """A new capture at `output`, or at a free name made from `stem`."""
    if output is not None:
        return CapturePlace(CaptureWriter(output, run=run, force=force, max_bytes=MAX_BYTES), str(output))
    try:
        return _open_numbered(stem, force, run)
    except CaptureError as error:
        folder = tempfile.TemporaryDirectory(prefix="legroom-")
        writer = CaptureWriter(Path(folder.name) / f"{stem}{SUFFIX}", run=run, max_bytes=MAX_BYTES)
        return CapturePlace(writer, None, f"no capture is kept: {error} (with -o)", folder)


def _open_numbered(stem: str, force: bool, run: dict[str, Any]) -> CapturePlace:
    number = 1
    while True:
        name = f"{stem}{SUFFIX}" if number == 1 else f"{stem}-{number}{SUFFIX}"
        if force or not os.path.lexists(name):
            try:
                return CapturePlace(CaptureWriter(name, run=run, force=force, max_bytes=MAX_BYTES), name)
            except (UsageError, CaptureError):
                if force or not os.path.lexists(name):
                    raise
        number += 1  # taken, perhaps this very moment by another rank of the same launch
