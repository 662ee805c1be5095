"""The live line: where a run stands, on stderr, without getting in the way of what the script prints.

On a terminal one status line is repainted a few times a second. It is taken away before the script's own text
appears and comes back only once that text has ended its line, so prints stay whole and a progress bar (which keeps
the cursor on its line) simply has the terminal to itself. The script's `sys.stdout` and `sys.stderr` stay the very
same objects: only their `write` is shadowed, so `isatty`, `fileno`, `buffer` and `encoding` cannot change. Painting goes
to the file descriptor, past every buffer.

In a pipe or a log nothing can be repainted: there a plain line is written now and then.
"""

import builtins
import os
import sys
import threading
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any, Protocol, TextIO

from legroom.show.common.background_thread import PeriodicThread
from legroom.units import format_size


class LiveStatus(Protocol):
    """What the line shows: figures that a session has at hand."""

    @property
    def step(self) -> int: ...
    @property
    def seconds_per_step(self) -> float: ...
    @property
    def allocated(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def peak_reserved(self) -> int: ...
    @property
    def capacity(self) -> int: ...


class LiveLine:
    """Shows `status()` on stderr from `start` to `stop`. Does nothing in a forked child."""

    REPAINT_SECONDS = 0.2
    FIRST_PLAIN_SECONDS = 10.0
    PLAIN_SECONDS = 30.0

    def __init__(self, status: Callable[[], LiveStatus], *, stream: TextIO | None = None) -> None:
        self._status = status
        self._stream = sys.stderr if stream is None else stream
        self._repaints = can_repaint(self._stream)
        self._descriptor = _descriptor(self._stream)
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._painted = False
        self._paused = 0
        self._at_line_start = True
        self._over = False
        self._beat: PeriodicThread | None = None
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        if self._descriptor is None:
            return
        if self._repaints:
            self._shadow_writes()
            self._beat = PeriodicThread(self.paint, repeat(self.REPAINT_SECONDS), name="legroom-live")
        else:
            pauses = chain([self.FIRST_PLAIN_SECONDS], repeat(self.PLAIN_SECONDS))
            self._beat = PeriodicThread(self._print, pauses, name="legroom-live")
        self._beat.start()

    def stop(self) -> None:
        """Take the line away for good; nothing of it remains on the terminal."""
        self._over = True
        if os.getpid() != self._owner:
            return
        if self._beat is not None:
            self._beat.stop()
        with self._lock:
            self._clear()
            while self._undo:
                self._undo.pop()()

    def abandon(self) -> None:
        """In a forked child: the parent's line is none of our business, and the lock may be held by no one alive."""
        self._lock = threading.RLock()
        self._over = True
        self._painted = False
        while self._undo:
            self._undo.pop()()

    # --- painting ---------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Repaint now, if the terminal's cursor stands at the start of a line."""
        text = fit_status(self._status(), _columns(self._descriptor) - 1)
        with self._lock:
            if self._at_line_start and not self._paused and not self._over:
                # The cursor goes back to the first column, so that output past our hooks (a subprocess) overwrites.
                self._put(f"\x1b[2K{text}\r")
                self._painted = True

    def _print(self) -> None:
        self._put(f"legroom: {format_status(self._status())}\n")

    def _clear(self) -> None:
        if self._painted:
            self._painted = False
            self._put("\x1b[2K\r")

    def _put(self, text: str) -> None:
        if self._descriptor is not None:
            try:
                os.write(self._descriptor, text.encode(errors="replace"))
            except OSError:  # the terminal is gone; the run goes on
                self._over = True

    # --- giving way to the script -----------------------------------------------------------------------------

    def _shadow_writes(self) -> None:
        for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr)}.values():
            if stream is not None and can_repaint(stream):
                self._shadow(stream, "write", self._given_way)
                buffer = getattr(stream, "buffer", None)
                if buffer is not None:
                    self._shadow(buffer, "write", self._given_way)
        self._shadow(builtins, "input", self._input_in_peace)

    def _shadow(
        self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        original = getattr(owner, name)
        replacement = make(original)
        try:
            setattr(owner, name, replacement)
        except AttributeError:  # a stream of the user's own with fixed slots: leave it as it is
            return

        def undo() -> None:
            if vars(owner).get(name) is replacement:
                if owner is builtins:
                    setattr(owner, name, original)
                else:
                    delattr(owner, name)

        self._undo.append(undo)

    def _given_way(self, write: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def write_after_clearing(text: Any, /) -> Any:
            with self._lock:
                self._clear()
                if text:
                    self._at_line_start = text[-1:] in ("\n", b"\n")
                return write(text)

        return write_after_clearing

    def _input_in_peace(self, read: Callable[..., str]) -> Callable[..., str]:
        def input_without_live_line(*prompt: object) -> str:
            with self._lock:
                self._paused += 1
                self._clear()
            try:
                return read(*prompt)
            finally:
                with self._lock:
                    self._paused -= 1
                    self._at_line_start = True  # what was typed ended with the return key

        return input_without_live_line


def can_repaint(stream: TextIO) -> bool:
    """Whether a stream is a terminal that understands the codes for clearing a line."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):
        return False


def format_status(status: LiveStatus) -> str:
    """`step 41, 0.35 s/step, 1.20 GiB allocated, 1.50 GiB reserved, peak 1.62 GiB of 8.00 GiB`."""
    return ", ".join(_parts(status))


def fit_status(status: LiveStatus, columns: int) -> str:
    """The same cut down to a width: the rightmost figures give way first, the peak last."""
    parts = _parts(status)
    for keep in ((0, 1, 2, 3, 4), (0, 1, 2, 4), (0, 2, 4), (0, 4), (4,)):
        text = "legroom  " + "  ".join(parts[i] for i in keep if parts[i])
        if len(text) <= columns:
            return text
    return ""


def _parts(status: LiveStatus) -> list[str]:
    pace = f"{_seconds(status.seconds_per_step)}/step" if status.seconds_per_step > 0 else "first step"
    total = f" of {format_size(status.capacity)}" if status.capacity else ""
    return [
        f"step {status.step}",
        pace,
        f"{format_size(status.allocated)} allocated",
        f"{format_size(status.reserved)} reserved",
        f"peak {format_size(status.peak_reserved)}{total}",
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _columns(descriptor: int | None) -> int:
    try:
        return os.get_terminal_size(descriptor if descriptor is not None else 2).columns or 80
    except OSError:
        return 80
