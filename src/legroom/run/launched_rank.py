"""One rank of `legroom launch`, as a program: runs the script as `python` would and leaves how it ended for the launcher.

With a GPU, real or virtual, what happens to memory goes to a capture of the rank's own. On the CPU nothing is watched,
since counting every tensor would cost more than it tells. Nothing is said here: the launcher speaks for all ranks.
"""

import atexit
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from legroom.errors import LegroomError
from legroom.log import say
from legroom.memory.annotations import ExitReason
from legroom.observe.exit_with_parent import exit_with_parent
from legroom.observe.script import Outcome, Script, execute, installed
from legroom.scale.launching.folder import RankEnding
from legroom.scale.launching.rank_settings import Order, rank
from legroom.show.report.tracebacks import format_error_line, format_traceback

if TYPE_CHECKING:
    from legroom.observe.session import Status


def main(words: list[str]) -> int:
    """Run the script that `words` name, as the environment says; its exit code."""
    exit_with_parent()
    order = Order.from_environment()
    is_module = words[0] == "-m"
    script = Script(words[is_module], tuple(words[is_module + 1 :]), is_module=is_module)
    speaker = Record(order.files().ending)
    try:
        return _run_watched(script, order, speaker) if order.watch else _run(script, speaker)
    except LegroomError as error:  # the script could not even begin
        speaker.failing(f"legroom: {error}", "")
        say(str(error))
        return 2


def _run_watched(script: Script, order: Order, speaker: "Record") -> int:
    from legroom.run.recording import Recording

    recording = Recording(
        script,
        gpus=list(order.gpus) or None,
        output=order.files().capture,
        force=True,
        as_json=False,
        options=list(order.options),
        speaker=speaker,
    )
    return recording.run(at_exit=atexit.register)


def _run(script: Script, speaker: "Record") -> int:
    def uncaught(error: BaseException, hooked: bool) -> tuple[str, str]:
        sys.stdout.flush()
        text = format_error_line(error)
        if isinstance(error, KeyboardInterrupt):
            return text, ""
        traceback = format_traceback(error)
        speaker.failing(text, traceback)
        if not hooked:
            sys.stderr.write(traceback)
        return text, traceback

    as_main = installed(script)
    as_main.__enter__()  # for good: threads and exit handlers of the script still look into __main__
    outcome = execute(script, uncaught=uncaught)
    speaker.ended(outcome)
    return outcome.exit_code


class Record:
    """Writes down how this rank ends, for the launcher to read."""

    def __init__(self, path: Path) -> None:
        self.facts: Mapping[str, object] = {
            "verb": "launch",
            "rank": rank(),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        }
        self._path = path
        self._began = time.time()
        self._failed_at: float | None = None
        self._log_size: int | None = None
        self._text = self._traceback = ""

    def failing(self, text: str, traceback: str) -> None:
        """The time counts, and where the log ends before the traceback: the launcher shows that one itself."""
        sys.stderr.flush()
        self._failed_at, self._log_size = time.time(), os.fstat(2).st_size
        self._text, self._traceback = text, traceback
        self._write(Outcome(1, ExitReason.RAISED, text, traceback), None)

    def ended(self, outcome: Outcome, figures: "Status | None" = None) -> None:
        self._write(outcome, figures)

    def _write(self, outcome: Outcome, figures: "Status | None") -> None:
        at = self._failed_at or time.time()
        RankEnding(
            rank=rank(),
            time=at,
            exit_code=outcome.exit_code,
            ended=str(outcome.reason),
            error=outcome.error or self._text,
            traceback=outcome.traceback or self._traceback,
            log_size=self._log_size,
            seconds=at - self._began,
            steps=figures.step if figures else 0,
            device=figures.device if figures else None,
            peak_allocated=figures.peak_allocated if figures else 0,
            peak_reserved=figures.peak_reserved if figures else 0,
            capacity=figures.capacity if figures else 0,
        ).write(self._path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
