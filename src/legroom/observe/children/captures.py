"""Captures of the processes that a program starts (`mp.spawn`, torchrun), one capture per process.

The training may run in a child process. The process that `legroom run` started therefore reads the captures of its
child processes before it exits.
"""

import contextlib
import json
import multiprocessing.util
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from legroom.errors import LegroomError
from legroom.memory.capture.capture import SUFFIX, Capture, CaptureWriter
from legroom.memory.capture.reader import read_capture
from legroom.memory.events import Event, Sink
from legroom.observe.children.status import PARENT, ChildStatus, rank_of_this_process
from legroom.units import MiB

VARIABLE = "LEGROOM_CHILD_CAPTURES"
"""This environment variable contains the path of the folder for captures."""
MAX_BYTES = 8 * MiB


class ChildCaptures:
    def __init__(self, parent: Mapping[str, object] | None = None) -> None:
        """`parent` describes this process. Child processes copy this description to their live files."""
        self._folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
        with contextlib.suppress(OSError):  # the disk is full; the live files then contain no command
            Path(self._folder.name, PARENT).write_text(json.dumps(parent or {}), encoding="utf-8")

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Within the block, the environment variable `VARIABLE` names the folder in which child processes write
        captures.
        """
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = self._folder.name
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before

    def read(self) -> Iterator[Capture]:
        """Yield the captures that child processes have written so far. Captures that cannot be read are omitted."""
        for path in sorted(Path(self._folder.name).glob(f"*{SUFFIX}")):
            with contextlib.suppress(LegroomError):
                yield read_capture(path)

    def discard(self) -> None:
        self._folder.cleanup()


def capture_folder() -> Path | None:
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def sink_of_this_process(*, publishes: bool = True) -> Sink | None:
    """Return a sink that writes a capture of this process, or None if the parent process does not record. With
    `publishes`, the sink also updates the live file of the process when a step ends.
    """
    folder = capture_folder()
    return _LazyWriter(folder, publishes) if folder is not None else None


class _LazyWriter:
    """A sink that creates the capture at the first event. Most loader workers use no GPU memory, so they write no
    capture.
    """

    def __init__(self, folder: Path, publishes: bool) -> None:
        self._folder = folder
        self._writer: CaptureWriter | None = None
        self._failed = False
        self._status = ChildStatus(folder) if publishes else None

    def __call__(self, event: Event) -> None:
        if self._status is not None:
            self._status.add(event)
        if self._writer is None and not self._failed:
            self._open()
        if self._writer is not None:
            self._writer.write(event)

    def _open(self) -> None:
        process = os.getpid()
        path = self._folder / f"{process}{SUFFIX}"
        try:
            run = {"process": process, **rank_of_this_process()}
            self._writer = CaptureWriter(path, run=run, force=True, max_bytes=MAX_BYTES)
        except LegroomError:  # the folder is gone, or the disk is full
            self._failed = True
            return
        # A process of `multiprocessing` does not call the functions that are registered with `atexit`.
        multiprocessing.util.Finalize(self, self._writer.close, exitpriority=0)
