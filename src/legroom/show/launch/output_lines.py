"""What many ranks print, on one terminal: every line whole, with its rank in front.

Ranks write to files; here the files are followed. Only whole lines are shown, so that two ranks never share one. A line
that is painted over again and again (a progress bar) is shown as it stands every few seconds. An error log is shown up to
where the rank's own end begins: whose error it was is said once, when it is known which came first.
"""

import codecs
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from legroom.scale.launching.folder import RankFiles, read_ending
from legroom.show.common.formatting import clean

LOOK_SECONDS = 0.1
REPAINT_SECONDS = 3.0
"""How often an unfinished line that paints over itself is shown."""
LARGEST_PIECE = 1 << 20
_COLOURS = (36, 35, 34, 32, 33, 96, 95, 94)


class RankLines:
    """Shows what ranks print until it is stopped. `follow` may be called at any time, for another attempt too."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._logs: list[_Log] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="legroom-lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def follow(self, rank: int, files: RankFiles) -> None:
        """Show what comes into these files from now on."""
        with self._lock:
            self._logs += [
                _Log(files.out, _to(self._out, rank)),
                _Log(files.err, _to(self._err, rank), ending=files.ending),
            ]

    def drain(self) -> None:
        """All ranks so far are over: show what is left of theirs, and be done with them."""
        with self._lock:
            for log in self._logs:
                log.look()
                log.finish()
            self._logs = []

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.drain()

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._look_once()

    def _look_once(self) -> None:
        with self._lock:
            for log in self._logs:
                log.look()


class _Log:
    """One file, shown as it grows."""

    def __init__(self, path: Path, show: Callable[[str], None], ending: Path | None = None) -> None:
        self._path, self._show, self._ending = path, show, ending
        self._position = 0
        self._line = ""
        self._shown_at = time.monotonic()
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def look(self) -> None:
        while piece := self._next_piece():
            self._take(self._decode(piece))
        if "\r" in self._line and time.monotonic() - self._shown_at > REPAINT_SECONDS:
            self._put(self._line)

    def finish(self) -> None:
        """The last line may have no end."""
        if _painted(self._line):
            self._put(self._line)
        self._line = ""

    def _next_piece(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                piece = file.read(LARGEST_PIECE)
        except OSError:
            return b""
        # In this order: a rank writes its ending first and its traceback afterwards.
        ending = read_ending(self._ending) if self._ending is not None and piece else None
        if ending is not None and ending.log_size is not None:
            piece = piece[: max(ending.log_size - self._position, 0)]
        self._position += len(piece)
        return piece

    def _take(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._put(line)
        self._line = self._line[-10_000:]  # a file without a line end is not kept whole

    def _put(self, line: str) -> None:
        self._shown_at = time.monotonic()
        self._show(_painted(line))


def _painted(line: str) -> str:
    """What is to be seen of a line that returns to its beginning."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def _to(stream: TextIO, rank: int) -> Callable[[str], None]:
    """Writes a line with its rank in front, coloured on a terminal."""
    mark = f"[{rank}] "
    if stream.isatty():
        mark = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{mark}\x1b[0m"

    def show(line: str) -> None:
        try:
            stream.write(f"{mark}{_harmless(line)}\n")
            stream.flush()
        except (OSError, ValueError):  # a closed pipe: the files have it all
            return

    return show


def _harmless(line: str) -> str:
    """Colours stay; what moves the cursor or clears lines would spoil a terminal that is shared."""
    parts = _COLOUR.split(_MOVE.sub("", line))
    return "".join(part if position % 2 else clean(part) for position, part in enumerate(parts))


_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_MOVE = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")
