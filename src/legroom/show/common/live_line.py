"""The live status line of a run on stderr, which does not interfere with the script's output.

On a terminal, the status line is repainted a few times per second. The status line is removed before the script
prints. To avoid disturbing the script's progress bar, the status line is shown again only when the cursor is at the
start of a line. `sys.stdout` and `sys.stderr` stay the same objects. Only the `write` method of these streams is
replaced, so `isatty`, `fileno`, `buffer` and `encoding` do not change. The line is written to the file descriptor
directly, bypassing all buffers.

If stderr is a pipe or a log file, a plain line is printed periodically. The line is never appended to an unfinished
line, such as a progress bar.
"""

import builtins
import functools
import os
import sys
import threading
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any, Protocol, TextIO

from legroom.memory.live.periodic_thread import PeriodicThread
from legroom.units import format_size


class LiveStatus(Protocol):
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
    """Shows `status()` on stderr from `start` to `stop`. In a forked child, nothing is shown."""

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
        self._stopped = False
        self._thread: PeriodicThread | None = None
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        if self._descriptor is None:
            return
        if self._repaints:
            self._wrap_streams()
            self._thread = PeriodicThread(self.paint, repeat(self.REPAINT_SECONDS), name="legroom-live")
        else:
            self._replace(self._stream, "write", self._wrap_write)
            pauses = chain([self.FIRST_PLAIN_SECONDS], repeat(self.PLAIN_SECONDS))
            self._thread = PeriodicThread(self._print, pauses, name="legroom-live")
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        if os.getpid() != self._owner:
            return
        if self._thread is not None:
            self._thread.stop()
        with self._lock:
            self._clear()
            while self._undo:
                self._undo.pop()()

    def abandon(self) -> None:
        """Stop in a forked child, without changing the terminal. The lock is replaced, because it may be held by a
        thread that does not exist in the child.
        """
        self._lock = threading.RLock()
        self._stopped = True
        self._painted = False
        while self._undo:
            self._undo.pop()()

    # --- painting ---------------------------------------------------------------------------------------------

    def paint(self) -> None:
        text = fit_status(self._status(), _columns(self._descriptor) - 1)
        with self._lock:
            if self._at_line_start and not self._paused and not self._stopped:
                # Return to the first column, so that output that bypasses the wrapped streams (a subprocess) overwrites the line.
                self._put(f"\x1b[2K{text}\r")
                self._painted = True

    def _print(self) -> None:
        with self._lock:
            start = "" if self._at_line_start else "\n"
            self._put(f"{start}legroom: {format_status(self._status())}\n")
            self._at_line_start = True

    def _clear(self) -> None:
        if self._painted:
            self._painted = False
            self._put("\x1b[2K\r")

    def _put(self, text: str) -> None:
        if self._descriptor is not None:
            try:
                os.write(self._descriptor, text.encode(errors="replace"))
            except OSError:  # the terminal was closed, but the run continues
                self._stopped = True

    # --- the script's streams ----------------------------------------------------------------------------------

    def _wrap_streams(self) -> None:
        for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr)}.values():
            if stream is not None and can_repaint(stream):
                self._replace(stream, "write", self._wrap_write)
                buffer = getattr(stream, "buffer", None)
                if buffer is not None:
                    self._replace(buffer, "write", self._wrap_write)
        self._replace(builtins, "input", self._wrap_input)

    def _replace(
        self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        original = getattr(owner, name)
        replacement = make(original)
        try:
            setattr(owner, name, replacement)
        except AttributeError:  # a user-defined stream with slots: leave it unchanged
            return

        def undo() -> None:
            if vars(owner).get(name) is replacement:
                if owner is builtins:
                    setattr(owner, name, original)
                else:
                    delattr(owner, name)

        self._undo.append(undo)

    def _wrap_write(self, write: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def write_after_clearing(text: Any, /) -> Any:
            with self._lock:
                self._clear()
                if text:
                    self._at_line_start = text[-1:] in ("\n", b"\n")
                return write(text)

        return write_after_clearing

    def _wrap_input(self, read: Callable[..., str]) -> Callable[..., str]:
        def input_without_live_line(*prompt: object) -> str:
            with self._lock:
                self._paused += 1
                self._clear()
            try:
                return read(*prompt)
            finally:
                with self._lock:
                    self._paused -= 1
                    self._at_line_start = True  # the input ended with the return key

        return input_without_live_line


def can_repaint(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that supports colors and clearing a line."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb" and _has_escape_sequences()
    except (AttributeError, ValueError):
        return False


@functools.cache
def _has_escape_sequences() -> bool:
    """Return whether terminals interpret escape sequences. In a Windows console, escape sequences must be enabled
    first."""
    if sys.platform != "win32":
        return True
    import ctypes

    kernel, enabled = ctypes.windll.kernel32, False
    for number in (-11, -12):  # standard output, standard error
        handle, mode = kernel.GetStdHandle(number), ctypes.c_ulong()
        if kernel.GetConsoleMode(handle, ctypes.byref(mode)):
            enabled |= bool(
                kernel.SetConsoleMode(handle, mode.value | 4)
            )  # ENABLE_VIRTUAL_TERMINAL_PROCESSING
    return enabled


def format_status(status: LiveStatus) -> str:
    """Format a status, for example `step 41, 0.35 s/step, 1.20 GiB allocated, 1.50 GiB reserved, peak 1.62 GiB reserved
    of 8.00 GiB`.
    """
    return ", ".join(filter(None, _parts(status)))


def fit_status(status: LiveStatus, columns: int) -> str:
    """Return the status in at most `columns` columns. Values are dropped until the status fits, and the peak is
    dropped last."""
    parts = _parts(status)
    for shown in ((0, 1, 2, 3, 4), (0, 1, 2, 4), (0, 2, 4), (0, 4), (4,)):
        text = "legroom  " + "  ".join(parts[i] for i in shown if parts[i])
        if len(text) <= columns:
            return text
    return ""


def _parts(status: LiveStatus) -> list[str]:
    speed = f"{_seconds(status.seconds_per_step)}/step" if status.seconds_per_step > 0 else "first step"
    total = f" of {format_size(status.capacity)}" if status.capacity else ""
    if not status.peak_reserved:
        return [f"step {status.step}", "", "", "", "no GPU memory allocated yet"]
    return [
        f"step {status.step}",
        speed,
        f"{format_size(status.allocated)} allocated",
        f"{format_size(status.reserved)} reserved",
        f"peak {format_size(status.peak_reserved)} reserved{total}",
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
