"""`legroom.record()`: records the memory of a block of code, on a real GPU, a virtual GPU or the CPU.

The events are written to a temporary capture of limited size, so a block of any length uses little memory. The report
is built when the block ends. After the block, no torch function stays replaced, and the recording keeps no tensor,
frame or exception alive. Exceptions raised in the block pass through unchanged.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, overload

from legroom.arguments import check_path
from legroom.diagnose.oom.recognize import is_oom
from legroom.diagnose.report import source_lines
from legroom.diagnose.report.command import RunCommand
from legroom.diagnose.report.device_memory import holding_as_dict
from legroom.diagnose.report.growing_lines import Leak
from legroom.diagnose.report.run_report import OomReport, RunReport, report_from_ledger
from legroom.errors import CaptureError, MissingExtra, UsageError
from legroom.log import log
from legroom.memory.annotations import ExitReason, FoundSetting, RunEnded
from legroom.memory.capture.capture import SUFFIX, copy_capture, read_capture
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import BEFORE_RECORDING, Frame
from legroom.memory.events import Alloc, Event, Free, Holder, Oom
from legroom.memory.ledger import Ledger
from legroom.memory.state import State
from legroom.memory.timeline import Sample
from legroom.observe.session import Session
from legroom.observe.source.cells import cell_name, is_shell_variable, named_frame, shell
from legroom.observe.source.user_files import is_user_file
from legroom.run.capture_header import capture_header
from legroom.run.capture_path import NoWriter, OpenCapture, open_capture
from legroom.run.event_buffer import EventBuffer
from legroom.show.report.block_report import block_html, block_text, plot_timeline
from legroom.show.report.tracebacks import format_error_line, format_short_traceback, format_traceback

P = ParamSpec("P")
R = TypeVar("R")
KEPT_EVENTS = 100_000
"""The number of events that stay in memory to build the report. The temporary capture contains more events."""
_ON_HOST = "No GPU was found, so the recording contains CPU tensors (host memory)."


@overload
def record(*, leaks: bool = True) -> "BlockRecording": ...
@overload
def record(function: Callable[P, R], /) -> Callable[P, R]: ...
def record(
    function: Callable[P, R] | None = None, /, *, leaks: bool = True
) -> "BlockRecording | Callable[P, R]":
    """Record the memory of a block of code or of a function.

    Use `record` as a context manager (`with legroom.record() as recording:`) or as a decorator (`@legroom.record()`). A
    decorated function has the attribute `recording`, which contains the recording of its last call. Inside `legroom
    run` or another recording, the block is recorded separately, and the outer recording continues. Without a GPU, CPU
    tensors are recorded. `leaks=False` skips the search for leaks, which scans all Python objects several times in the
    first 20 steps.
    """
    if function is None:
        return BlockRecording(leaks=leaks)
    if not callable(function):
        raise UsageError(
            f"record() expects a function, not {type(function).__name__}. Example: `with legroom.record() as recording:`"
        )
    return BlockRecording()(function)


class BlockRecording:
    """The GPU memory that a block of code uses. All results are available after the block. Sizes are in bytes."""

    def __init__(self, *, leaks: bool = True) -> None:
        self._search_leaks = leaks
        self._running: _Running | None = None
        self._finished: _Finished | None = None

    # --- recording

    def __enter__(self) -> "BlockRecording":
        if self._running is not None:
            raise UsageError(
                "This recording is already running. Create another recording with `legroom.record()`."
            )
        self._finished = None
        running = _Running(search_leaks=self._search_leaks)
        running.start()
        self._running = running
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running, self._running = self._running, None
        if running is not None and running.process == os.getpid():  # a forked child does not report
            self._finished = running.finish(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function that records its calls. Recursive calls are part of the recording of the outermost
        call."""

        @wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            if self._running is not None:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        recorded.recording = self  # type: ignore[attr-defined]
        return recorded

    # --- results

    @property
    def peak(self) -> int:
        """The peak allocated memory on the device with the highest peak relative to its size."""
        device = self._report.device
        return device.peak_allocated if device is not None else 0

    @property
    def peak_reserved(self) -> int:
        """The peak memory that PyTorch's allocator reserved on the same device. For host memory, this value equals
        `peak`.
        """
        device = self._report.device
        if device is None:
            return 0
        return device.peak_allocated if device.kind == "host" else device.peak_reserved

    @property
    def steps(self) -> int:
        """The number of completed steps. A training step ends with `optimizer.step()`. If the program has no optimizer,
        each backward pass is a step. If the program has neither an optimizer nor a backward pass, each batch of a
        DataLoader is a step.
        """
        return self._report.steps

    @property
    def seconds(self) -> float:
        """The duration of the block in seconds."""
        return self._report.seconds

    @property
    def device(self) -> str:
        """The device, for example `virtual GPU 0`, `GPU 0 (NVIDIA H200)` or `host memory`."""
        device = self._report.device
        return device.title if device is not None else "no device"

    @property
    def oom(self) -> OomReport | None:
        """The out-of-memory error raised in the block, or None. The error is available even if the code in the block
        caught it.
        """
        return self._report.oom

    @property
    def leaks(self) -> list[Leak]:
        """The leaks in the block: memory that grew with every step, and the variable that retains the memory, if known."""
        return list(self._report.leaks)

    def by_category(self, at: Literal["peak", "end"] = "peak") -> dict[str, int]:
        """Return the allocated bytes of each category at the peak or at the end of the block, largest first."""
        sizes = self._state(at).by_category().items()
        return {str(category): size for category, size in sizes if size}

    def by_line(self, at: Literal["peak", "end"] = "peak", *, existing: bool = True) -> list[dict[str, Any]]:
        """Return the lines that allocated the live memory at the peak or at the end of the block, largest first. Each
        entry has the fields `file`, `line`, `bytes`, `category`, `module`, `function` and `count` (the number of
        tensors). With `existing=False`, tensors that existed before the block are omitted.
        """
        state = self._state(at)
        if not existing:
            state = replace(
                state,
                live=[alloc for alloc in state.live if alloc.time > 0.0 and alloc.frame != BEFORE_RECORDING],
            )
        rows = map(holding_as_dict, state.top(sys.maxsize))
        return [{**row, "line": row["line"] or None} for row in rows]

    @property
    def timeline(self) -> list[Sample]:
        """The allocated memory, the reserved memory and the memory of each category over time. The entries include the
        peak.
        """
        finished = self._result
        device = finished.report.device
        return finished.ledger.timeline(device=device.index if device is not None else 0)

    @property
    def events(self) -> list[Event]:
        """All recorded events. If the block emitted more than about two million events, some events are missing."""
        return read_capture(self._result.path).events

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per tensor storage. The columns describe when and where the storage
        was allocated and freed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise MissingExtra("pandas", "plot") from None
        freed = {event.id: event.time for event in self.events if isinstance(event, Free)}
        rows = [
            {
                "allocated_seconds": event.time,
                "freed_seconds": freed.get(event.id),
                "bytes": event.block_bytes,
                "category": str(event.category),
                "phase": str(event.phase),
                "step": event.step,
                "device": event.device,
                "module": event.module,
                "file": event.frame.file if event.frame else None,
                "line": event.frame.line if event.frame else None,
                "function": event.frame.function if event.frame else None,
                "operation": event.op,
            }
            for event in _with_final_categories(self.events)
        ]
        return pandas.DataFrame(rows, columns=_COLUMNS)

    def plot(self, ax: Any = None) -> Any:
        """Draw the memory by category over time with matplotlib, and return the axes."""
        return plot_timeline(self._report, self.timeline, ax)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a capture that `legroom report` and `legroom diff` read, and return its path. An existing file is
        overwritten only with `force=True`, and only if it is a capture.
        """
        finished = self._result
        target = check_path("path", path)
        copy_capture(finished.path, target, force=force)
        finished.report = replace(finished.report, capture=str(target))
        return target

    def __str__(self) -> str:
        return block_text(self._report, self._note)

    def __repr__(self) -> str:
        if self._finished is None:
            return f"<legroom recording: {'running' if self._running else 'not started'}>"
        return str(self)

    def _repr_html_(self) -> str | None:
        return block_html(self._report, self.timeline, self._note) if self._finished is not None else None

    @property
    def _note(self) -> str:
        device = self._report.device
        return _ON_HOST if device is not None and device.kind == "host" else ""

    def _state(self, at: str) -> State:
        if at not in ("peak", "end"):
            raise UsageError(f"`at` must be 'peak' or 'end', not {at!r}.")
        finished = self._result
        device = finished.report.device
        index = device.index if device is not None else 0
        if at == "end":
            return finished.ledger.now(index)
        return finished.ledger.at(finished.ledger.peak(index).index, index)

    @property
    def _report(self) -> RunReport:
        return self._result.report

    @property
    def _result(self) -> "_Finished":
        if self._running is not None:
            raise UsageError("The recording is still running. Read its results after the `with` block.")
        if self._finished is None:
            raise UsageError("Nothing has been recorded yet. Example: `with legroom.record() as recording:`")
        return self._finished


_COLUMNS = [
    "allocated_seconds", "freed_seconds", "bytes", "category", "phase", "step", "device", "module", "file", "line",
    "function", "operation",
]  # fmt: skip


def _with_final_categories(events: Iterable[Event]) -> list[Alloc]:
    from legroom.memory.columns import final_categories

    known = list(events)
    tags = final_categories(known)
    return [
        event._replace(category=tags.get(event.id, event.category))
        for event in known
        if isinstance(event, Alloc)
    ]


class _Running:
    def __init__(self, *, search_leaks: bool) -> None:
        self.process = os.getpid()
        self._started = time.perf_counter()
        self._ledger = Ledger(keep_events=KEPT_EVENTS)
        self._cells = _CellFrames() if shell() is not None else None
        self._events = EventBuffer(self._record)
        self._session = Session(self._events.write, mid_program=True, search_leaks=search_leaks)
        self._run = capture_header(RunCommand(verb="record"), self._session.devices)
        self._folder = _temporary_folder()
        self._capture = _open(self._folder, self._run)

    def start(self) -> None:
        try:
            self._session.__enter__()
        except BaseException:
            self._capture.writer.close()
            raise
        self._started = time.perf_counter()

    def finish(self, error: BaseException | None) -> "_Finished":
        """Stop recording and return the result. Legroom's own errors never replace an error raised in the block."""
        seconds = time.perf_counter() - self._started
        ending = _ending(error, seconds)
        try:
            self._session.__exit__()
        except Exception as problem:
            log.warning(
                f"The recording is incomplete ({type(problem).__name__}: {problem}). Your code is not affected."
            )
        self._events.flush()
        self._record([ending])
        report = report_from_ledger(self._ledger, self._run, dropped=self._capture.writer.dropped)
        lines = source_lines.read_sources(report.frames())
        self._capture.writer.write_all([*source_lines.to_annotations(lines, seconds)])
        self._capture.writer.close()
        failed = self._capture.warning or self._capture.writer.failed or ""
        return _Finished(self._ledger, replace(report, sources=lines), self._folder, failed)

    def _record(self, events: list[Event]) -> None:
        if self._cells is not None:
            events = [self._cells.named(event) for event in events if not _is_of_shell(event)]
        self._capture.writer.write_all(events)
        self._ledger.apply_all(events)


class _Finished:
    """The result of a recording. The temporary capture is deleted when this object is deleted."""

    def __init__(
        self,
        ledger: Ledger,
        report: RunReport,
        folder: "tempfile.TemporaryDirectory[str] | None",
        failed: str,
    ) -> None:
        self.ledger = ledger
        self.report = report
        self._folder = folder
        self._failed = failed

    @property
    def path(self) -> Path:
        if self._folder is None or self._failed:
            raise CaptureError(
                self._failed or "The events were not stored, because no temporary file could be created."
            )
        return Path(self._folder.name, _NAME)


_NAME = f"recording{SUFFIX}"


def _temporary_folder() -> "tempfile.TemporaryDirectory[str] | None":
    try:
        return tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
    except OSError:  # the disk is full or read-only; the report does not need the events
        return None


def _open(folder: "tempfile.TemporaryDirectory[str] | None", run: dict[str, Any]) -> OpenCapture:
    if folder is None:
        return OpenCapture(NoWriter(), None)
    return open_capture(Path(folder.name, _NAME), force=False, stem="", run=run)


def _ending(error: BaseException | None, seconds: float) -> RunEnded:
    if error is None or isinstance(error, StopIteration | GeneratorExit):
        return RunEnded(seconds, 0, ExitReason.FINISHED)
    text = format_error_line(error)
    if isinstance(error, KeyboardInterrupt):
        return RunEnded(seconds, 130, ExitReason.INTERRUPTED, text)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return RunEnded(seconds, code, ExitReason.EXITED)
    traceback = format_short_traceback(error, is_user_file) if is_oom(error) else format_traceback(error)
    return RunEnded(seconds, 1, ExitReason.RAISED, text, traceback)


def _is_of_shell(event: Event) -> bool:
    return isinstance(event, Holder) and is_shell_variable(event.path)


class _CellFrames(dict[Frame, Frame]):
    """Maps a frame in a notebook cell to a frame with the name of the cell. The capture contains the name of the cell,
    because the file of a cell exists only in its kernel.
    """

    def __missing__(self, frame: Frame) -> Frame:
        named = self[frame] = named_frame(frame)
        return named

    def named(self, event: Event) -> Event:
        if isinstance(event, Alloc | Oom | Holder):
            return event if event.frame is None else event._replace(frame=self[event.frame])
        if isinstance(event, DetectedLeak):
            file, stored, caller = (
                (cell_name(each) or each) if each else each
                for each in (event.file, event.stored_file, event.caller_file)
            )
            return replace(event, file=file, stored_file=stored, caller_file=caller)
        if isinstance(event, FoundSetting) and event.file:
            return replace(event, file=cell_name(event.file) or event.file)
        return event
