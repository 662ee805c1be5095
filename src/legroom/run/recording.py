"""Runs one script and records its memory, for `legroom run` and for the ranks of `legroom launch`.

Usage errors are raised before the script starts. The script then runs as if it were started with `python`, and its
memory events are written to a capture file. An uncaught out-of-memory error is reported immediately. The report comes
last, after the script's threads and exit handlers, or just before `os._exit`. Errors in Legroom never change the
script's exit code.

Forked children of the script write no capture and print no report. Spawned processes are recorded as well. On a virtual
GPU, other programs that the script starts are recorded too. The report describes the process that ran out of memory or
used the most memory.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

from rich.console import RenderableType
from rich.text import Text

from legroom.diagnose.oom.recognize import is_oom
from legroom.diagnose.report import source_lines
from legroom.diagnose.report.command import RunCommand
from legroom.diagnose.report.run_report import RunReport, report_from_ledger
from legroom.errors import LegroomError
from legroom.gpus.catalog import GpuSpec
from legroom.log import say
from legroom.memory.annotations import ExitReason, OtherProcesses, RunEnded
from legroom.memory.capture.capture import CaptureWriter
from legroom.memory.events import Event
from legroom.memory.ledger import Ledger
from legroom.memory.live.periodic_thread import PeriodicThread
from legroom.observe.children.captures import ChildCaptures
from legroom.observe.children.recording import spawned_processes_recorded
from legroom.observe.dispatch.checks.index_checks import IndexChecks
from legroom.observe.program_state import follow_settings
from legroom.observe.script import Outcome, Script, before_os_exit, execute, installed
from legroom.observe.session import Session, Status
from legroom.observe.source.script_settings import ScriptSettings
from legroom.observe.source.user_files import is_user_file
from legroom.run.capture_header import capture_header
from legroom.run.capture_path import MAX_BYTES, NoWriter, OpenCapture, open_capture
from legroom.run.child_processes import RecordedProcess, describe_processes
from legroom.run.event_buffer import MAX_PENDING, EventBuffer
from legroom.run.json_stdout import JsonStdout
from legroom.run.live_status import LiveStatusWriter
from legroom.run.memory_log import MemoryLog, open_log
from legroom.run.process_identity import identity
from legroom.show.common.live_line import LiveLine
from legroom.show.common.terminal import print_to
from legroom.show.explain.known_errors import say_explanation
from legroom.show.report.run_report import render_footer, render_oom, render_run
from legroom.show.report.short_report import ShortFooter, ShortReport
from legroom.show.report.tracebacks import (
    format_error_line,
    format_short_traceback,
    format_traceback,
    innermost_user_location,
    omit_dispatch_frames,
)
from legroom.train.spilling.spill import Spill
from legroom.units import format_size

KEPT_EVENTS = 100_000
"""The number of events that stay in memory to build the report. These are the newest events, and the events around the
peak and around failures.
"""
FLUSH_SECONDS = 0.5
"""The interval in seconds at which pending events are written if no step ends. Pending events are lost if the process
is killed.
"""
AtExit = Callable[[Callable[[], None]], object]


class OutcomeListener(Protocol):
    """Receives the outcome of a run instead of the terminal. The launcher uses a listener to report for all ranks."""

    header: Mapping[str, object]

    def on_exception(self, text: str, traceback: str) -> None:
        """Called when the script raises an uncaught exception, before the exception is printed."""

    def on_end(self, outcome: Outcome, status: Status) -> None:
        """Called when the script has ended and the capture is complete."""


class Recording:
    """Runs one script and records its memory. An instance can be used only once."""

    def __init__(
        self,
        script: Script,
        *,
        gpus: list[GpuSpec] | None,
        output: Path | None,
        force: bool,
        as_json: bool,
        options: list[str],
        spill: Spill | None = None,
        blocking: bool = False,
        verbose: bool = False,
        log: str | None = None,
        listener: OutcomeListener | None = None,
    ) -> None:
        """`options` contains the options of `legroom run`, which are repeated in the suggested next command. If `spill`
        is given, activations are spilled to host memory. With `blocking`, indices are checked before each operation on
        a real GPU. With `verbose`, the complete report is printed instead of a one-screen summary. `log` is the value of `--log`.
        If `listener` is given, it receives the outcome, and the outcome is not printed.
        """
        self._script = script
        self._gpus = gpus
        self._output = output
        self._force = force
        self._as_json = as_json
        self._options = options
        self._spill = spill
        self._blocking = blocking
        self._verbose = verbose
        self._log_target = log
        self._log: MemoryLog | None = None
        self._listener = listener
        self._pid = os.getpid()
        self._session: Session | None = None
        self._capture: OpenCapture | None = None
        self._writer: CaptureWriter | NoWriter | None = None
        self._run: dict[str, Any] = {}
        self._ledger = Ledger(keep_events=KEPT_EVENTS)
        self._events = EventBuffer(self._record)
        self._live: LiveLine | None = None
        self._flush_thread: PeriodicThread | None = None
        self._live_status: LiveStatusWriter | None = None
        self._json: JsonStdout | None = None
        self._children: ChildCaptures | None = None
        self._outcome: Outcome | None = None
        self._oom_report: RunReport | None = None
        """The report that was printed for an out-of-memory error. The report does not include later events."""
        self._closed = False
        self._started = time.perf_counter()
        self._recording = ExitStack()
        self._as_main = ExitStack()

    def run(self, *, at_exit: AtExit | None = None) -> int:
        """Run the script and return its exit code. `at_exit` is called before the script starts, with a callback that
        prints the report.
        """
        self._script.check()
        self.start()
        self._as_main.enter_context(installed(self._script))
        if at_exit is not None:
            at_exit(self._close_at_exit)
        try:
            self._outcome = execute(self._script, uncaught=self.show_error)
        except LegroomError:  # the module cannot be run
            self._discard()
            raise
        if at_exit is None:
            self.close()
            self._as_main.close()
        elif self._log is not None:
            at_exit(self._close_at_exit)  # before the exit handler of wandb, which ends the script's run
        return self._outcome.exit_code or (2 if self._json is not None and self._json.failed else 0)

    def end(self, outcome: Outcome) -> None:
        """Set the outcome of a script that `run` did not start. Call `close` afterwards."""
        self._outcome = outcome

    # --- before the script

    def start(self) -> None:
        self._session = Session(
            self._events.write,
            gpus=self._gpus,
            frequent_sink=self._events.add,
            on_step=self._events.step_ended,
        )
        self._run = self._header()
        self._capture = open_capture(self._output, force=self._force, stem=self._script.stem, run=self._run)
        self._writer = self._capture.writer
        if self._log_target is not None:
            path = Path(self._capture.name or f"{self._script.stem}.legroom")
            several = len(self._session.devices) > 1
            self._log = open_log(self._log_target, capture=path, several_gpus=several)
        try:
            self._recording.enter_context(self._session)
        except BaseException:
            self._capture.discard()
            raise
        if self._session.devices[0].kind != "host" and self._listener is None:
            self._children = ChildCaptures({**identity(self._run), "devices": self._run["devices"]})
            self._recording.enter_context(self._children.recorded())
            if self._gpus is None:  # virtual GPUs record the processes that inherit them
                self._recording.enter_context(spawned_processes_recorded())
        if self._spill is not None:
            self._recording.enter_context(self._spill.all_threads())
        if self._blocking and self._session.devices[0].kind == "cuda":
            self._recording.enter_context(IndexChecks())
        settings = ScriptSettings(self._script.arguments)
        self._recording.enter_context(settings.followed_options())
        follow_settings(settings)
        self._recording.callback(follow_settings, None)
        self._recording.enter_context(before_os_exit(self._on_os_exit))
        _abandon_in_children(self)
        self._live_status = LiveStatusWriter(self._session, lambda: self._ledger.ooms(), self._run)
        # Recorded events reach the file even if the script is stuck.
        self._flush_thread = PeriodicThread(self._flush, repeat(FLUSH_SECONDS), name="legroom-flush")
        self._flush_thread.start()
        if self._capture.warning and (self._as_json or self._listener is not None):
            say(self._capture.warning)
        if self._as_json:
            self._json = JsonStdout()
        elif self._listener is None:
            self._announce()
            self._live = LiveLine(self._session.status)
            self._live.start()

    def _header(self) -> dict[str, Any]:
        assert self._session is not None
        script = self._script
        command = RunCommand(
            tuple(self._options), tuple(script.command_line[: 2 if script.is_module else 1]), script.arguments
        )
        return {
            **capture_header(command, self._session.devices),
            **(self._listener.header if self._listener is not None else {}),
        }

    def _announce(self) -> None:
        assert self._session is not None
        assert self._capture is not None
        devices = self._session.devices
        kind = devices[0].kind
        gpus = {"virtual": "Virtual GPU", "cuda": "GPU", "host": "No GPU found. Host memory"}[kind]
        sizes = " and ".join(format_size(device.capacity) for device in devices)
        sentences = [f"{gpus}{'s' if len(devices) > 1 else ''}: {sizes}."]
        if kind == "host" and any(each.partition("=")[0] == "--gpu" for each in self._script.arguments):
            sentences.append(
                "`--gpu` after the script is passed to the script. For a virtual GPU, put `--gpu` before the script."
            )
        if self._spill is not None:
            sentences.append("Saved activations are moved to host memory.")
        if self._blocking and kind == "cuda":
            sentences.append("Indices are checked before each operation.")
        if self._log is not None:
            sentences.append(self._log.sentence)
        sentences.append(
            f"Recording to {self._capture.name}." if self._capture.name else self._capture.warning
        )
        say(" ".join(sentences))

    # --- while it runs

    def _record(self, events: list[Event]) -> None:
        if self._oom_report is None and self._writer is not None:
            self._writer.write_all(events)
            self._ledger.apply_all(events)
            if self._log is not None:
                self._log.add(events)

    def _flush(self) -> None:
        self._events.flush()
        if self._writer is not None:
            self._writer.flush()
        if self._live_status is not None and not self._closed:
            self._live_status.write()
        if self._log is not None and not self._closed:
            self._log.write()

    def _write(self, event: Event) -> None:
        if self._writer is not None and os.getpid() == self._pid:
            self._events.flush()
            self._writer.write_all([event])
            self._ledger.apply_all([event])

    def show_error(self, error: BaseException, hooked: bool) -> tuple[str, str]:
        if os.getpid() != self._pid:
            if not hooked:
                sys.stderr.write(format_traceback(error))
            return format_error_line(error), ""
        if self._live is not None:
            self._live.stop()
        _flush(sys.stdout)
        if isinstance(error, KeyboardInterrupt):
            return f"KeyboardInterrupt at {innermost_user_location(error, is_user_file)}", ""
        text = format_error_line(error)
        if not is_oom(error):
            traceback = format_traceback(error)
        else:
            traceback = format_short_traceback(error, is_user_file)
            _guarded(lambda: self._print_oom_report(text, traceback))
            if hooked:
                omit_dispatch_frames(error)
        if self._listener is not None:
            self._listener.on_exception(text, traceback)
        if not hooked:
            sys.stderr.write(traceback)
        if not self._as_json and self._listener is None and not is_oom(error):
            _guarded(lambda: say_explanation(error, on_virtual_gpu=self._gpus is not None))
        return text, traceback

    def _print_oom_report(self, text: str, traceback: str) -> None:
        if self._as_json:
            return
        report = self._report(Outcome(1, ExitReason.RAISED, text, traceback))
        if report.oom is not None:
            self._oom_report = report
            if self._listener is None:
                print_to(sys.stderr, "", self._rendered(report), "")

    def _on_os_exit(self, status: int) -> None:
        self._outcome = Outcome(status & 0xFF, ExitReason.OS_EXIT)
        self.close()

    # --- after it

    def close(self) -> None:
        """Finish the capture and print the report. Later calls, and calls in a forked child, do nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._stop_threads()
        _guarded(self._finish)
        # Torch modes can only be exited on the thread that entered them, and os._exit may run on another thread.
        if self._outcome is None or self._outcome.reason is not ExitReason.OS_EXIT:
            _guarded(self._recording.close)

    def _close_at_exit(self) -> None:
        self.close()
        if self._json is not None and self._json.failed and self._outcome and not self._outcome.exit_code:
            # An exit handler cannot change the exit code in another way.
            _flush(sys.stdout)
            _flush(sys.stderr)
            os._exit(2)

    def _finish(self) -> None:
        assert self._capture is not None
        outcome = self._outcome or Outcome(1, ExitReason.RAISED)
        if self._listener is not None:
            self._finish_silently(outcome, self._listener)
            return
        printed = self._oom_report
        report = self._report(outcome) if printed is None else printed
        if printed is not None:
            self._write_ending(outcome)
        if self._output is None and report.failed_before_any_tensor:
            self._capture.discard()
            report = replace(report, capture=None)
        self._capture.writer.close()
        self._close_log(report)
        if self._json is not None:
            self._json.write(report.as_json())
            return
        _flush(sys.stdout)
        if report.capture is None and report.failed_before_any_tensor:
            if report.ending.reason is ExitReason.EXITED:
                say(f"Exited with code {report.ending.exit_code} before any memory was used.")
            return
        if printed is None:
            print_to(sys.stderr, "", self._rendered(report))
        # The reason why no capture is kept was printed before the script started.
        make_footer = render_footer if self._verbose else ShortFooter
        print_to(sys.stderr, make_footer(report, warning=self._capture.writer.failed or ""))

    def _close_log(self, report: RunReport) -> None:
        if self._log is not None:
            path = self._writer.path if report.capture and isinstance(self._writer, CaptureWriter) else None
            self._log.close(None if report.failed_before_any_tensor else report, path)

    def _rendered(self, report: RunReport) -> RenderableType:
        assert self._capture is not None
        if not self._verbose:
            gap = Text("") if report.failed_with_oom else None  # above the traceback
            return ShortReport(report, warning=self._capture.writer.failed or "", below=gap)
        return render_oom(report) if report.failed_with_oom else render_run(report)

    def _finish_silently(self, outcome: Outcome, listener: OutcomeListener) -> None:
        """Finish the capture without a report. The launcher builds a report from the capture if it needs a report."""
        assert self._session is not None
        assert self._capture is not None
        self._session.finish()
        self._write_ending(outcome)
        self._capture.writer.close()
        listener.on_end(outcome, self._session.fullest())

    def _report(self, outcome: Outcome) -> RunReport:
        """Return the report of the run so far, built from the events in memory without reading the capture."""
        assert self._session is not None
        assert self._capture is not None
        self._session.finish()
        self._events.flush()
        self._include_children()
        self._write_ending(outcome)
        writer = self._capture.writer
        writer.flush()
        report = report_from_ledger(self._ledger, self._run, path=self._capture.name, dropped=writer.dropped)
        lines = source_lines.read_sources(report.frames())
        for annotation in source_lines.to_annotations(lines, self._seconds):
            writer.write(annotation)
        return replace(report, sources=lines)

    def _include_children(self) -> None:
        """Report on the process that ran out of memory or has the highest peak, even if it is a child of the script."""
        if self._children is None:
            return
        recorded = map(RecordedProcess.from_capture, self._children.read())
        children = [child for child in recorded if any(child.importance)]
        self._children.discard()
        self._children = None
        if not children:
            return
        main = RecordedProcess("the main process", self._ledger)
        chosen = max([main, *children], key=lambda process: process.importance)
        if chosen is not main:
            self._run |= chosen.ranks
            self._replace_events(chosen.events)
        self._write(OtherProcesses(self._seconds, describe_processes(chosen, main, children)))

    def _replace_events(self, events: Sequence[Event]) -> None:
        assert self._capture is not None
        writer = self._capture.writer
        if isinstance(writer, CaptureWriter):
            writer.close()
            writer = CaptureWriter(writer.path, run=self._run, force=True, max_bytes=MAX_BYTES)
            self._capture.writer = self._writer = writer
        self._ledger = Ledger(keep_events=KEPT_EVENTS)
        for start in range(0, len(events), MAX_PENDING):
            self._record(list(events[start : start + MAX_PENDING]))

    def _write_ending(self, outcome: Outcome) -> None:
        now = self._seconds
        if self._spill is not None:
            self._write(self._spill.totals(now))
        self._write(RunEnded(now, outcome.exit_code, outcome.reason, outcome.error, outcome.traceback))

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _discard(self) -> None:
        self._closed = True
        self._stop_threads()
        self._recording.close()
        self._as_main.close()
        if self._capture is not None:
            self._capture.discard()

    def _stop_threads(self) -> None:
        if self._live is not None:
            self._live.stop()
        if self._flush_thread is not None:
            self._flush_thread.stop()
        if self._live_status is not None:
            self._live_status.remove()

    def abandon(self) -> None:
        """Stop using the parent's capture and terminal in a forked child."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        if self._live is not None:
            self._live.abandon()


_current: list[Recording] = []


def _abandon_in_children(recording: Recording) -> None:
    if not _current and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_on_fork)
    _current[:] = [recording]


def _on_fork() -> None:
    for recording in _current:
        recording.abandon()


def _guarded(work: Callable[[], None]) -> None:
    """Run `work` and suppress errors in Legroom's code, because these errors must not change the exit code of the
    script.
    """
    try:
        work()
    except LegroomError as error:
        say(str(error))
    except KeyboardInterrupt:
        say("The report was interrupted.")
    except Exception as error:
        say(f"Could not create the report ({type(error).__name__}: {error}). The run is not affected.")


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return
