"""The program that each rank of `legroom launch` runs. The program runs the script as `python` would, and writes the
outcome to a file for the launcher.

With a real or virtual GPU, the memory of the rank is recorded to a separate capture. On the CPU, nothing is recorded,
because recording every tensor is slow. The rank prints no report, because the launcher prints one report for all
ranks.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from legroom import shell
from legroom.diagnose.report.command import RunCommand
from legroom.errors import LegroomError
from legroom.log import say
from legroom.memory.annotations import ExitReason
from legroom.memory.live.folder import LiveFile
from legroom.observe.script import Outcome, Script, execute, installed
from legroom.processes import exit_with_parent
from legroom.run.process_identity import describe_process
from legroom.scale.launching.folder import RankExit
from legroom.scale.launching.nested_ranks import nested_ranks_rejected
from legroom.scale.launching.rank_settings import RankSettings, rank
from legroom.show.report.tracebacks import format_error_line, format_traceback

if TYPE_CHECKING:
    from legroom.observe.session import Status


def main(arguments: list[str]) -> int:
    exit_with_parent()
    settings = RankSettings.from_environment()
    is_module = arguments[0] == "-m"
    script = Script(arguments[is_module], tuple(arguments[is_module + 1 :]), is_module=is_module)
    outcomes = OutcomeWriter(settings.files().exit_record)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        threading.Thread(target=_report_waits, name="legroom-process-group", daemon=True).start()
    try:
        with nested_ranks_rejected(shell.join(script.command_line)):
            return (
                _run_recorded(script, settings, outcomes)
                if settings.watch
                else _run(script, settings, outcomes)
            )
    except LegroomError as error:  # the script did not start
        outcomes.on_exception(f"legroom: {error}", "")
        say(str(error))
        return 2


def _report_waits() -> None:
    """Report waits inside DDP, FSDP2 and other torch code as soon as the script has a process group."""
    while True:
        time.sleep(1.0)
        is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
        if is_initialized is not None and is_initialized():
            from legroom.train.ranks.waiting import observe_main_thread

            observe_main_thread()


def _run_recorded(script: Script, settings: RankSettings, outcomes: "OutcomeWriter") -> int:
    from legroom.run.recording import Recording

    recording = Recording(
        script,
        gpus=list(settings.gpus) or None,
        output=settings.files().capture,
        force=True,
        as_json=False,
        options=list(settings.options),
        listener=outcomes,
    )
    return recording.run(at_exit=atexit.register)


def _run(script: Script, settings: RankSettings, outcomes: "OutcomeWriter") -> int:
    def uncaught(error: BaseException, hooked: bool) -> tuple[str, str]:
        sys.stdout.flush()
        text = format_error_line(error)
        if isinstance(error, KeyboardInterrupt):
            return text, ""
        traceback = format_traceback(error)
        outcomes.on_exception(text, traceback)
        if not hooked:
            sys.stderr.write(traceback)
        return text, traceback

    live = LiveFile()
    target = script.command_line[: 2 if script.is_module else 1]
    command = RunCommand(settings.options, tuple(target), script.arguments)
    header = {**command.as_header(), "folder": os.getcwd(), **outcomes.header}
    live.write(
        describe_process(header, started=time.time())
    )  # steps are not counted, so the state does not change
    atexit.register(live.remove)
    as_main = installed(script)
    as_main.__enter__()  # never exited: threads and exit handlers of the script still use __main__
    outcome = execute(script, uncaught=uncaught)
    outcomes.on_end(outcome)
    return outcome.exit_code


class OutcomeWriter:
    def __init__(self, path: Path) -> None:
        self.header: Mapping[str, object] = {
            "verb": "launch",
            "rank": rank(),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        }
        self._path = path
        self._started = time.time()
        self._failed_at: float | None = None
        self._log_size: int | None = None
        self._text = self._traceback = ""

    def on_exception(self, text: str, traceback: str) -> None:
        """Record the time of the error, and the size of the log file before the traceback is written. The launcher
        prints the traceback itself, so it must know where the traceback starts in the log.
        """
        sys.stderr.flush()
        self._failed_at, self._log_size = time.time(), os.fstat(2).st_size
        self._text, self._traceback = text, traceback
        self._write(Outcome(1, ExitReason.RAISED, text, traceback), None)

    def on_end(self, outcome: Outcome, status: "Status | None" = None) -> None:
        self._write(outcome, status)

    def _write(self, outcome: Outcome, status: "Status | None") -> None:
        ended = self._failed_at or time.time()
        RankExit(
            rank=rank(),
            time=ended,
            exit_code=outcome.exit_code,
            ended=str(outcome.reason),
            error=outcome.error or self._text,
            traceback=outcome.traceback or self._traceback,
            log_size=self._log_size,
            seconds=ended - self._started,
            steps=status.step if status else 0,
            device=status.device if status else None,
            peak_allocated=status.peak_allocated if status else 0,
            peak_reserved=status.peak_reserved if status else 0,
            capacity=status.capacity if status else 0,
        ).write(self._path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
