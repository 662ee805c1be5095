"""`legroom.watch(loader)`: a progress bar like tqdm's that also shows memory use and leak warnings.

A terminal shows one updating line, and a notebook shows one updating output. In a pipe or a CI log, a plain line is
printed periodically. Each leak is reported once, with the variable that retains the memory and the line that stores
the tensors. `watch` yields the items of the loader and keeps no reference to them.

All loops of a process share one leak detector, which keeps its state between epochs and is attached only while a loop
is watched. If several threads train, the detector does not search for leaks, and `watch` reports this in one line.

The modules that search for the cause of growing memory are imported only when a scan finds growth, and the modules that
describe a leak only after a leak is found. Importing all of them takes as long as the rest of the first call.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

from legroom.errors import UsageError
from legroom.log import log
from legroom.memory.live.history import TREND_READINGS, StepHistory, trend
from legroom.observe.leaks.counters import cuda_allocated, cuda_allocated_and_peak, resident_bytes
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.source.cells import is_notebook
from legroom.show.common.live_line import can_repaint
from legroom.show.watch.bar import ProgressStats, bar_text, plain_text

if TYPE_CHECKING:
    from legroom.diagnose.report.growing_lines import Leak
    from legroom.memory.detected_leak import DetectedLeak
    from legroom.show.watch.live_status import LoopStatus
    from legroom.show.watch.notebook_line import NotebookLine

Item = TypeVar("Item")
REPAINT_SECONDS = 0.15
NOTEBOOK_SECONDS = 0.3
FIRST_PLAIN_SECONDS = 10.0
PLAIN_SECONDS = 30.0
LIVE_SECONDS = 0.5
"""The number of seconds between two updates of the live file. A loop that ends before the first update writes no live
file."""


def watch(
    loader: Iterable[Item],
    *,
    total: int | None = None,
    description: str = "",
    file: TextIO | None = None,
    quiet: bool = False,
    on_leak: "Callable[[Leak], None] | None" = None,
) -> "Watched[Item]":
    """Loop over `loader` with a progress line and leak warnings.

    `total` is the number of items. Pass `total` only if `len(loader)` is not available. `file` is the stream to which
    the line is written (default: stderr). With `quiet`, only leak warnings are shown, without a progress line. If
    `on_leak` is given, it is called with each `Leak`, and `watch` does not print the leak. The `.leaks` attribute of
    the result contains all leaks.
    """
    caller = sys._getframe(1)
    place = (caller.f_code.co_filename, caller.f_lineno)
    return Watched(
        loader, place, total=total, description=description, file=file, quiet=quiet, on_leak=on_leak
    )


class Watched(Generic[Item]):
    """An iterable that shows progress and reports leaks while it is iterated."""

    def __init__(
        self,
        loader: Iterable[Item],
        place: tuple[str, int],
        *,
        total: int | None,
        description: str,
        file: TextIO | None,
        quiet: bool,
        on_leak: "Callable[[Leak], None] | None",
    ) -> None:
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise UsageError(
                f"watch() requires an iterable such as a DataLoader, not {type(loader).__name__}. Example: "
                "`for batch in legroom.watch(loader):`"
            )
        self.leaks: list[Leak] = []
        self._loader = loader
        self._place = place
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
        in_notebook = self._file is None and is_notebook()
        line = _Line(self._file or sys.stderr, self._description, total, self._quiet, in_notebook)
        line.finding = self._finding
        return _WatchedIterator(iter(self._loader), self._place, line, self._report)

    def _finding(self) -> str:
        return f"{self.leaks[-1].code} {self.leaks[-1].holder or ''}" if self.leaks else ""

    def _report(self, detected: "DetectedLeak", line: "_Line") -> None:
        from legroom.diagnose.report.leaks import leaks_from

        (leak,) = leaks_from([detected], [], detected.step, 0)
        known = any(
            (each.name, each.file, each.line) == (leak.name, leak.file, leak.line) for each in self.leaks
        )
        if known:
            return
        self.leaks.append(leak)
        if self._on_leak is not None:
            self._on_leak(leak)
        else:
            line.print_leak(leak)


class _WatchedIterator(Iterator[Item]):
    def __init__(
        self,
        items: Iterator[Item],
        place: tuple[str, int],
        line: "_Line",
        report: Callable[["DetectedLeak", "_Line"], None],
    ) -> None:
        self._items = items
        self._line = line
        self._finished = False
        self._report: Callable[[DetectedLeak], None] = lambda detected: report(detected, line)
        _shared.begin(self._report, place)

    def __next__(self) -> Item:
        if self._finished:
            raise StopIteration
        _shared.next_batch()
        self._line.advance()
        try:
            return next(self._items)
        except BaseException:
            self._finish()
            raise

    def __del__(self) -> None:  # the loop was left by `break`
        if not self._finished and _shared is not None:
            self._finish()

    def _finish(self) -> None:
        self._finished = True
        _shared.end(self._report)
        self._line.close()


class _SharedDetector:
    """The leak detector of this process. The detector is attached while at least one loop is watched."""

    def __init__(self) -> None:
        self.detector = LeakDetector(self._report)
        self._listeners: list[Callable[[DetectedLeak], None]] = []
        self._pid = os.getpid()
        self._places: set[tuple[str, int]] = set()
        self._lock = threading.RLock()  # reentrant: garbage collection of an iterator may end its loop
        self._has_warned = False

    def begin(self, listener: Callable[["DetectedLeak"], None], place: tuple[str, int]) -> None:
        """Start watching the loop at `place` (file and line). In later epochs of the loop, a scan runs only if memory
        use suggests a leak."""
        if self._pid != os.getpid():  # a forked worker watches its own loops
            self.__init__()  # type: ignore[misc]
        with self._lock:
            self._listeners.append(listener)
            if len(self._listeners) == 1:
                if place not in self._places:
                    self._places.add(place)
                    self.detector.begin_loop()
                self.detector.attach()

    def next_batch(self) -> None:
        self.detector.iterations.next_batch()
        if self.detector.several_threads and not self._has_warned:
            self._has_warned = True
            log.warning("Several threads train at the same time, so watch() does not search for leaks.")

    def end(self, listener: Callable[["DetectedLeak"], None]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
                if not self._listeners:
                    self.detector.detach()
                    if _live is not None:
                        _live.remove()

    def _report(self, detected: "DetectedLeak") -> None:
        if self._listeners:
            self._listeners[-1](detected)


_live: "LoopStatus | None" = None
"""The live file of this process, or None until a loop has lasted for `LIVE_SECONDS`."""
_shared = _SharedDetector()


class _Line:
    def __init__(
        self, stream: TextIO, description: str, total: int | None, quiet: bool, in_notebook: bool = False
    ) -> None:
        self._stream = stream
        self._description = description
        self._total = total
        self._quiet = quiet
        self._repaints = can_repaint(stream)
        self._notebook = _notebook_line() if in_notebook and not quiet else None
        self._pauses = (
            (NOTEBOOK_SECONDS, NOTEBOOK_SECONDS)
            if self._notebook is not None
            else (REPAINT_SECONDS, REPAINT_SECONDS)
            if self._repaints
            else (FIRST_PLAIN_SECONDS, PLAIN_SECONDS)
        )
        """The time in seconds before the first update, and the time between later updates."""
        self._done = -1
        self._started = time.perf_counter()
        self._next = self._started + self._pauses[0]
        self._readings: list[tuple[int, int]] = []
        self._painted = False
        self.finding: Callable[[], str] = str
        self._next_live = self._started + LIVE_SECONDS
        self._history = StepHistory()
        self._last_logged = 0

    def advance(self) -> None:
        """Count the previous item as finished. Call this method when the next item is requested."""
        self._done += 1
        now = time.perf_counter()
        if now >= self._next and not self._quiet:
            self._next = now + self._pauses[1]
            self._show(now)
        if now >= self._next_live:
            self._next_live = now + LIVE_SECONDS
            self._publish(now)

    def _publish(self, now: float) -> None:
        global _live
        if _live is None:
            from legroom.show.watch.live_status import LoopStatus

            _live = LoopStatus()
        self._history.add(self._done, cuda_allocated())
        _live.write(
            step=self._done,
            total=self._total,
            seconds=(now - self._started) / max(self._done, 1),
            trend=self._history.trend,
            history=self._history.sizes,
            finding=self.finding(),
        )

    def print_leak(self, leak: "Leak") -> None:
        from rich.text import Text

        from legroom.show.common.terminal import print_to
        from legroom.show.report.run_report import render_leak

        self._clear()
        print_to(self._stream, Text("legroom: memory leak detected", style="bold red"), render_leak(leak))

    def close(self) -> None:
        if self._quiet or self._done <= self._last_logged:
            return
        stats = self._stats(time.perf_counter())
        if self._notebook is not None:
            self._notebook.show(stats)
            return
        self._clear()
        self._write(plain_text(stats) + "\n")

    def _show(self, now: float) -> None:
        stats = self._stats(now)
        if self._notebook is not None:
            self._notebook.show(stats)
        elif self._repaints:
            self._write(f"\r\x1b[2K{bar_text(stats, _columns(self._stream) - 1)}")
            self._painted = True
        else:
            self._write(f"legroom: {plain_text(stats)}\n")
            self._last_logged = self._done

    def _stats(self, now: float) -> ProgressStats:
        allocated, peak = cuda_allocated_and_peak()
        self._readings = [*self._readings[-TREND_READINGS:], (self._done, allocated)]
        return ProgressStats(
            description=self._description,
            done=self._done,
            total=self._total,
            seconds=now - self._started,
            allocated=allocated,
            peak=peak,
            host=0 if peak else resident_bytes(),  # shown only if no device memory is used
            bytes_per_step=trend(self._readings) if allocated else None,
        )

    def _clear(self) -> None:
        if self._painted:
            self._painted = False
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal was closed, but the loop continues
            self._quiet = True


def _notebook_line() -> "NotebookLine":
    from legroom.show.watch.notebook_line import NotebookLine

    return NotebookLine()


def _columns(stream: Any) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80
