"""Shows the output of several ranks on one terminal, each line with its rank as a prefix.

Ranks write to files, and this module follows the files. Only complete lines are shown, so lines of two ranks never mix.
A line that is overwritten repeatedly (a progress bar) is shown every few seconds. The traceback at the end of a rank's
error log is omitted, because the launch report shows the error of the rank that failed first.
"""

import codecs
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from legroom.scale.launching.folder import RankFiles, read_exit
from legroom.show.common.formatting import clean

POLL_SECONDS = 0.1
REPAINT_SECONDS = 3.0
"""The interval in seconds at which a line that is overwritten repeatedly is shown."""
MAX_CHUNK = 1 << 20
_COLORS = (36, 35, 34, 32, 33, 96, 95, 94)


class RankLines:
    """Shows the output of ranks until `stop` is called. `follow` can be called at any time, for example when another
    attempt starts.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._logs: list[_Log] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="legroom-lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def follow(self, rank: int, files: RankFiles) -> None:
        with self._lock:
            self._logs += [
                _Log(files.out, _writer(self._out, rank)),
                _Log(files.err, _writer(self._err, rank), exit_record=files.exit_record),
            ]

    def drain(self) -> None:
        """Show the remaining output of all ranks that were followed so far, and stop following their files. Call this
        method after the ranks have exited.
        """
        with self._lock:
            for log in self._logs:
                log.poll()
                log.finish()
            self._logs = []

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.drain()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            self._poll_once()

    def _poll_once(self) -> None:
        with self._lock:
            for log in self._logs:
                log.poll()


class _Log:
    def __init__(self, path: Path, show: Callable[[str], None], exit_record: Path | None = None) -> None:
        self._path, self._show, self._exit_record = path, show, exit_record
        self._position = 0
        self._line = ""
        self._shown_at = time.monotonic()
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def poll(self) -> None:
        while chunk := self._read_chunk():
            self._feed(self._decode(chunk))
        if "\r" in self._line and time.monotonic() - self._shown_at > REPAINT_SECONDS:
            self._put(self._line)

    def finish(self) -> None:
        if _visible(self._line):
            self._put(self._line)
        self._line = ""

    def _read_chunk(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                chunk = file.read(MAX_CHUNK)
        except OSError:
            return b""
        # Read the log first: a rank writes its exit record before its traceback.
        exit_record = read_exit(self._exit_record) if self._exit_record is not None and chunk else None
        if exit_record is not None and exit_record.log_size is not None:
            chunk = chunk[: max(exit_record.log_size - self._position, 0)]
        self._position += len(chunk)
        return chunk

    def _feed(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._put(line)
        self._line = self._line[-10_000:]  # limits memory for a file without line breaks

    def _put(self, line: str) -> None:
        self._shown_at = time.monotonic()
        self._show(_visible(line))


def _visible(line: str) -> str:
    """Return the text that a terminal shows for a line with carriage returns, which is the last part that is not
    blank."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def _writer(stream: TextIO, rank: int) -> Callable[[str], None]:
    prefix = f"[{rank}] "
    if stream.isatty():
        prefix = f"\x1b[{_COLORS[rank % len(_COLORS)]}m{prefix}\x1b[0m"

    def show(line: str) -> None:
        try:
            stream.write(f"{prefix}{_sanitize(line)}\n")
            stream.flush()
        except (OSError, ValueError):  # the pipe is closed, but the files contain all output
            return

    return show


def _sanitize(line: str) -> str:
    """Keep colors, but remove control sequences that move the cursor or clear lines."""
    parts = _COLOR.split(_CURSOR.sub("", line))
    return "".join(part if position % 2 else clean(part) for position, part in enumerate(parts))


_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")
_CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")
