"""`legroom.watch(loader)`: like tqdm around a loop, with memory and a leak alarm.

On a terminal one line is repainted; a pipe, a CI log or a notebook gets a plain line now and then. A leak is told once,
with who keeps it and the line that stores it. Nothing of a batch is kept: what the loader gives is handed straight on.

One detector serves all loops of a process, so that what it knows lasts from epoch to epoch; it is at work only while some
loop is being watched.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, Generic, TextIO, TypeVar

from rich.text import Text

from legroom.diagnose.report.growing_lines import Leak
from legroom.diagnose.report.leaks import leaks_from
from legroom.errors import UsageError
from legroom.memory.leak import Kept
from legroom.observe.leaks.counters import cuda_allocated_and_peak, resident_bytes
from legroom.observe.leaks.watcher import Watcher
from legroom.show.common.live_line import can_repaint
from legroom.show.common.terminal import print_to
from legroom.show.report.run_report import leak_words
from legroom.show.watch.bar import Figures, bar_text, plain_text

Item = TypeVar("Item")
REPAINT_SECONDS = 0.15
FIRST_PLAIN_SECONDS = 10.0
PLAIN_SECONDS = 30.0
TREND_STEPS = 8


def watch(
    loader: Iterable[Item],
    *,
    total: int | None = None,
    description: str = "",
    file: TextIO | None = None,
    quiet: bool = False,
    on_leak: Callable[[Leak], None] | None = None,
) -> "Watched[Item]":
    """Loop over `loader` with a progress line and a leak alarm.

    `total`: how many items, where `len(loader)` does not say. `file`: where the line goes (stderr). `quiet`: no line, only
    alarms. `on_leak` is called with each leak instead of printing it; all are in `.leaks` afterwards.
    """
    return Watched(loader, total=total, description=description, file=file, quiet=quiet, on_leak=on_leak)


class Watched(Generic[Item]):
    """An iterable that watches what is done with its items."""

    def __init__(
        self,
        loader: Iterable[Item],
        *,
        total: int | None,
        description: str,
        file: TextIO | None,
        quiet: bool,
        on_leak: Callable[[Leak], None] | None,
    ) -> None:
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise UsageError(
                f"watch needs something to loop over, such as a DataLoader, and got a {type(loader).__name__}"
            )
        self.leaks: list[Leak] = []
        self._loader = loader
        self._total = total
        self._description = description
        self._file = file
        self._quiet = quiet
        self._on_leak = on_leak

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Item]:
        total = self._total
        if total is None:
            try:
                total = len(self._loader)  # type: ignore[arg-type]
            except (TypeError, NotImplementedError):
                total = None
        line = _Line(self._file or sys.stderr, self._description, total, self._quiet)
        return _Turns(iter(self._loader), id(self._loader), line, self._tell)

    def _tell(self, kept: Kept, line: "_Line") -> None:
        (leak,) = leaks_from([kept], [], kept.step, 0)
        known = any(
            (each.name, each.file, each.line) == (leak.name, leak.file, leak.line) for each in self.leaks
        )
        if known:
            return
        self.leaks.append(leak)
        if self._on_leak is not None:
            self._on_leak(leak)
        else:
            line.interrupt(leak)


class _Turns(Iterator[Item]):
    """Hands items on one by one; holds none."""

    def __init__(
        self, items: Iterator[Item], loop: int, line: "_Line", tell: Callable[[Kept, "_Line"], None]
    ) -> None:
        self._items = items
        self._line = line
        self._over = False
        self._tell: Callable[[Kept], None] = lambda kept: tell(kept, line)
        _detector.begin(self._tell, loop)

    def __next__(self) -> Item:
        if self._over:
            raise StopIteration
        _detector.watcher.ticks.batch()
        self._line.advance()
        try:
            return next(self._items)
        except BaseException:
            self._end()
            raise

    def __del__(self) -> None:  # a loop left by `break`
        if not self._over and _detector is not None:
            self._end()

    def _end(self) -> None:
        self._over = True
        _detector.end(self._tell)
        self._line.close()


class _Detector:
    """The one watcher of this process, at work while a loop is."""

    def __init__(self) -> None:
        self.watcher = Watcher(self._leaks)
        self._listeners: list[Callable[[Kept], None]] = []
        self._owner = os.getpid()
        self._loop = 0

    def begin(self, listener: Callable[[Kept], None], loop: int) -> None:
        """`loop`: the same number for the same loader, epoch after epoch."""
        if self._owner != os.getpid():  # a forked worker has a loop of its own
            self.__init__()  # type: ignore[misc]
        self._listeners.append(listener)
        if len(self._listeners) == 1:
            if loop != self._loop:
                self._loop = loop
                self.watcher.begin_loop()
            self.watcher.attach()

    def end(self, listener: Callable[[Kept], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                self.watcher.detach()

    def _leaks(self, kept: Kept) -> None:
        if self._listeners:
            self._listeners[-1](kept)


_detector = _Detector()


class _Line:
    """The progress line, and the alarms above it."""

    def __init__(self, stream: TextIO, description: str, total: int | None, quiet: bool) -> None:
        self._stream = stream
        self._description = description
        self._total = total
        self._quiet = quiet
        self._repaints = can_repaint(stream)
        self._done = -1
        self._began = time.perf_counter()
        self._next = self._began + (REPAINT_SECONDS if self._repaints else FIRST_PLAIN_SECONDS)
        self._recent: list[tuple[int, int]] = []
        self._painted = False
        self._told = 0
        """How far the last plain line told."""

    def advance(self) -> None:
        """Another item is asked for: the one before it, if any, is done."""
        self._done += 1
        now = time.perf_counter()
        if now >= self._next and not self._quiet:
            self._next = now + (REPAINT_SECONDS if self._repaints else PLAIN_SECONDS)
            self._show(now)

    def interrupt(self, leak: Leak) -> None:
        self._clear()
        print_to(
            self._stream, Text("legroom: memory grows with every step", style="bold red"), leak_words(leak)
        )

    def close(self) -> None:
        if self._quiet or self._done <= self._told:
            return
        self._clear()
        self._write(plain_text(self._figures(time.perf_counter())) + "\n")

    def _show(self, now: float) -> None:
        figures = self._figures(now)
        if self._repaints:
            self._write(f"\r\x1b[2K{bar_text(figures, _columns(self._stream) - 1)}")
            self._painted = True
        else:
            self._write(f"legroom: {plain_text(figures)}\n")
            self._told = self._done

    def _figures(self, now: float) -> Figures:
        allocated, peak = cuda_allocated_and_peak()
        self._recent = [*self._recent[-TREND_STEPS:], (self._done, allocated)]
        return Figures(
            description=self._description,
            done=self._done,
            total=self._total,
            seconds=now - self._began,
            allocated=allocated,
            peak=peak,
            host=0 if peak else resident_bytes(),  # shown only where no device has anything
            bytes_per_step=_trend(self._recent) if allocated else None,
        )

    def _clear(self) -> None:
        if self._painted:
            self._painted = False
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone; the loop goes on
            self._quiet = True


def _trend(recent: list[tuple[int, int]]) -> int | None:
    """Bytes a step, if each figure is above (or below) the one before; else 0: it comes and goes."""
    if len(recent) < 3:
        return None
    changes = [after - before for (_, before), (_, after) in pairwise(recent)]
    if all(change > 0 for change in changes) or all(change < 0 for change in changes):
        return int((recent[-1][1] - recent[0][1]) / max(recent[-1][0] - recent[0][0], 1))
    return 0


def _columns(stream: Any) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80
