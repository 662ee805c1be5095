"""One run under watch, from the first check to the last word.

The order of things is the point of this file. Everything that can be refused is refused before the script starts. The
script then runs as `python` would run it; what happens to memory goes to a capture file. An uncaught exception is
explained the moment it leaves the script. The closing words come last, after the script's threads and exit handlers,
or just before `os._exit` takes the process away. Whatever goes wrong on our side, the script's exit code stands.

A forked child of the script is the script's business: it writes no capture and says nothing.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import torch

from legroom import __version__
from legroom.diagnose.oom.recognize import is_oom
from legroom.diagnose.report import source_lines
from legroom.diagnose.report.command import RunCommand
from legroom.diagnose.report.run_report import RunReport, report_from_ledger
from legroom.errors import LegroomError
from legroom.gpus.catalog import GpuSpec
from legroom.log import say
from legroom.memory.annotations import ExitReason, RunEnded, SpillTotals
from legroom.memory.events import Event
from legroom.memory.ledger import Ledger
from legroom.observe.dispatch.attribution import is_user_file
from legroom.observe.dispatch.index_checks import IndexChecks
from legroom.observe.script import Outcome, Script, before_os_exit, execute, installed
from legroom.observe.session import Session, Status
from legroom.run.capture_path import CapturePlace, open_capture
from legroom.run.json_stdout import JsonStdout
from legroom.show.common.background_thread import PeriodicThread
from legroom.show.common.live_line import LiveLine
from legroom.show.common.terminal import print_to
from legroom.show.report.run_report import render_footer, render_oom, render_run
from legroom.show.report.tracebacks import (
    format_error_line,
    format_short_traceback,
    format_traceback,
    innermost_user_location,
)
from legroom.train.spilling.spill import Spill
from legroom.units import format_size

REMEMBERED = 100_000
"""So many events stay in memory for the report: those around the peak, around a failure, and the newest."""
AtExit = Callable[[Callable[[], None]], object]


class Speaker(Protocol):
    """Speaks for a run instead of the run itself: a launcher that has many of them to speak for."""

    facts: Mapping[str, object]
    """For the capture's header."""

    def failing(self, text: str, traceback: str) -> None:
        """An exception leaves the script; nothing of it has been printed yet."""

    def ended(self, outcome: Outcome, figures: Status) -> None:
        """The script is over, and the capture is complete."""


class Recording:
    """Runs one script under watch. Use once."""

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
        speaker: Speaker | None = None,
    ) -> None:
        """`options`: Legroom's own words that another run of the same kind needs. `spill`: give it to the script.
        `blocking`: check indices before each operation on a real GPU. `speaker`: say nothing, tell it instead."""
        self._script = script
        self._gpus = gpus
        self._output = output
        self._force = force
        self._as_json = as_json
        self._options = options
        self._spill = spill
        self._blocking = blocking
        self._speaker = speaker
        self._owner = os.getpid()
        self._session: Session | None = None
        self._place: CapturePlace | None = None
        self._run: dict[str, Any] = {}
        self._ledger = Ledger(keep_events=REMEMBERED)
        self._live: LiveLine | None = None
        self._flushing: PeriodicThread | None = None
        self._json: JsonStdout | None = None
        self._outcome: Outcome | None = None
        self._told: RunReport | None = None
        self._closed = False
        self._began = time.perf_counter()
        self._open = ExitStack()
        self._as_main = ExitStack()

    def run(self, *, at_exit: AtExit | None = None) -> int:
        """The script's exit code. Given `at_exit`, the closing words are left to it, and `__main__` stays the script."""
        self._script.check()
        self._prepare()
        if at_exit is not None:
            at_exit(self._close)
        try:
            self._outcome = execute(self._script, uncaught=self._uncaught)
        except LegroomError:  # the module turned out not to be runnable: nothing happened worth keeping
            self._withdraw()
            raise
        if at_exit is None:
            self._close()
            self._as_main.close()
        return self._outcome.exit_code

    # --- before -----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._session = Session(self._record, gpus=self._gpus)
        self._run = self._header()
        self._place = open_capture(self._output, force=self._force, stem=self._script.stem, run=self._run)
        try:
            self._open.enter_context(self._session)
        except BaseException:
            self._place.discard()
            raise
        if self._spill is not None:
            self._open.enter_context(self._spill.all_threads())
        if self._blocking and self._session.devices[0].kind == "cuda":
            self._open.enter_context(IndexChecks())
        self._open.enter_context(before_os_exit(self._leaving))
        self._as_main.enter_context(installed(self._script))
        _follow_forks(self)
        # What is recorded reaches the file even while the script is busy with something else, or stuck.
        self._flushing = PeriodicThread(self._place.writer.flush, repeat(1.0), name="legroom-flush")
        self._flushing.start()
        if self._as_json:
            self._json = JsonStdout()
        elif self._speaker is None:
            self._announce()
            self._live = LiveLine(self._session.status)
            self._live.start()

    def _header(self) -> dict[str, Any]:
        assert self._session is not None
        script = self._script
        command = RunCommand(
            tuple(self._options), tuple(script.words[: 2 if script.is_module else 1]), script.arguments
        )
        return {
            **command.as_header(),
            "folder": os.getcwd(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "legroom": __version__,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "allocator": os.environ.get("PYTORCH_ALLOC_CONF")
            or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
            or "",
            "devices": [asdict(device) for device in self._session.devices],
            **(self._speaker.facts if self._speaker is not None else {}),
        }

    def _announce(self) -> None:
        assert self._session is not None
        assert self._place is not None
        sizes = [format_size(device.capacity) for device in self._session.devices]
        what = {
            "virtual": "a virtual GPU of " if len(sizes) == 1 else "virtual GPUs of ",
            "cuda": "the GPU, " if len(sizes) == 1 else "the GPUs, ",
            "host": "no GPU here: watching host memory, ",
        }
        where = f"recording to {self._place.name}" if self._place.name else self._place.complaint
        spilling = "; saved activations go to host memory" if self._spill is not None else ""
        checks = self._blocking and self._session.devices[0].kind == "cuda"
        waiting = "; indices are checked before each operation" if checks else ""
        say(f"{what[self._session.devices[0].kind]}{' and '.join(sizes)}{spilling}{waiting}; {where}")

    # --- during -----------------------------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        """What happens after the report was told (a dead script's tensors die in their thousands) is no part of it."""
        if self._told is None:
            self._write(event)

    def _write(self, event: Event) -> None:
        if self._place is not None and os.getpid() == self._owner:
            self._place.writer.write(event)
            self._ledger.apply(event)

    def _uncaught(self, error: BaseException, hooked: bool) -> tuple[str, str]:
        """Show an exception that left the script, and give its text."""
        if os.getpid() != self._owner:
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
            _guarded(lambda: self._explain(text, traceback))
        if self._speaker is not None:
            self._speaker.failing(text, traceback)
        if not hooked:
            sys.stderr.write(traceback)
        if not self._as_json and self._speaker is None and not is_oom(error):
            _guarded(lambda: _name_cause(error, on_virtual_gpu=self._gpus is not None))
        return text, traceback

    def _explain(self, text: str, traceback: str) -> None:
        """The report of an out-of-memory error, above its traceback."""
        if self._as_json:
            return
        report = self._report(Outcome(1, ExitReason.RAISED, text, traceback))
        if report.oom is not None:
            self._told = report
            if self._speaker is None:
                print_to(sys.stderr, "", render_oom(report), "")

    def _leaving(self, status: int) -> None:
        """The script calls `os._exit`: the process is about to vanish."""
        self._outcome = Outcome(status & 0xFF, ExitReason.OS_EXIT)
        self._close()

    # --- after ------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Finish the capture and say the closing words. Only the first call does anything, and only in our process."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self._stop_beats()
        _guarded(self._conclude)
        left = self._outcome is not None and self._outcome.reason is ExitReason.OS_EXIT
        # Where another thread called os._exit, modes stay as they are: they are left on the thread that entered them.
        if not left:
            _guarded(self._open.close)
        if self._place is not None and self._place.name is None:
            _guarded(self._place.discard)

    def _conclude(self) -> None:
        assert self._place is not None
        outcome = self._outcome or Outcome(1, ExitReason.RAISED)
        if self._speaker is not None:
            self._conclude_in_silence(outcome, self._speaker)
            return
        told = self._told
        report = self._report(outcome) if told is None else told
        if told is not None:
            self._write_ending(outcome)
        self._place.writer.close()
        if self._json is not None:
            self._json.write(report.as_json())
            return
        _flush(sys.stdout)
        if told is None:
            print_to(sys.stderr, "", render_oom(report) if report.failed_with_oom else render_run(report))
        print_to(
            sys.stderr, render_footer(report, warning=self._place.writer.failed or self._place.complaint)
        )

    def _conclude_in_silence(self, outcome: Outcome, speaker: Speaker) -> None:
        """The capture is finished, and not read: whoever wants a report makes it from there."""
        assert self._session is not None
        assert self._place is not None
        self._session.finish()
        self._write_ending(outcome)
        self._place.writer.close()
        speaker.ended(outcome, self._session.fullest())

    def _report(self, outcome: Outcome) -> RunReport:
        """What was recorded up to now, with how the run ended; it need not be read back, however long the run was."""
        assert self._session is not None
        assert self._place is not None
        self._session.finish()
        self._write_ending(outcome)
        writer = self._place.writer
        writer.flush()
        report = report_from_ledger(self._ledger, self._run, path=self._place.name, dropped=writer.dropped)
        lines = source_lines.read_sources(report.frames())
        for annotation in source_lines.to_annotations(lines, self._seconds):
            writer.write(annotation)
        return replace(report, sources=lines)

    def _write_ending(self, outcome: Outcome) -> None:
        now = self._seconds
        if self._spill is not None:
            self._write(_spill_totals(self._spill, now))
        self._write(RunEnded(now, outcome.exit_code, outcome.reason, outcome.error, outcome.traceback))

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _withdraw(self) -> None:
        self._closed = True
        self._stop_beats()
        self._open.close()
        self._as_main.close()
        if self._place is not None:
            self._place.discard()

    def _stop_beats(self) -> None:
        if self._live is not None:
            self._live.stop()
        if self._flushing is not None:
            self._flushing.stop()

    def abandon(self) -> None:
        """In a forked child: leave the capture and the terminal to the parent."""
        if self._place is not None:
            self._place.writer.abandon()
        if self._live is not None:
            self._live.abandon()


_followed: list[Recording] = []


def _follow_forks(recording: Recording) -> None:
    if not _followed and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
    _followed[:] = [recording]


def _in_child() -> None:
    for recording in _followed:
        recording.abandon()


def _spill_totals(spill: Spill, time: float) -> SpillTotals:
    return SpillTotals(
        time,
        moved_bytes=spill.moved_bytes,
        moved_tensors=spill.moved_tensors,
        peak_host_bytes=spill.peak_host_bytes,
        skipped_bytes=spill.skipped_bytes,
        budget_bytes=spill.budget or 0,
        seconds=round(spill.seconds, 6),
    )


def _name_cause(error: BaseException, *, on_virtual_gpu: bool) -> None:
    """Below the traceback of an error that is known: what it means, and where its page is."""
    # A thousand patterns, which a run that goes well never needs.
    from legroom.diagnose.explain.explain import explain

    told = explain(error)
    if not told.code:
        return
    say(f"{told.sentence} legroom explain {told.code} says what to check")
    if on_virtual_gpu and told.code == "LG712":
        say(
            "on a real GPU this is a device-side assert, raised at a later line (LG710); here it stopped at the true one"
        )


def _guarded(work: Callable[[], None]) -> None:
    """Our own trouble must not change how the user's run ends."""
    try:
        work()
    except LegroomError as error:
        say(str(error))
    except KeyboardInterrupt:
        say("the report was interrupted")
    except Exception as error:
        say(f"the report could not be made ({type(error).__name__}: {error}); the run itself is not affected")


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return
