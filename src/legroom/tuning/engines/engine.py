"""The interface of an engine. An engine runs trials, and the `StudyRunner` decides which trials run.

    while (ready := runner.next()) is not None:              # a trial whose memory has been estimated
        ... choose a GPU (packing), start the function there
        runner.started(ready.number, gpu, fit)
        decision = runner.reported(number, metrics, ...)     # for each report of the function
        runner.ended(number, TrialOutcome(TrialState.FINISHED))

An engine calls the runner from one thread. The runner stores all changes before a call returns, so a killed study can
be resumed with any engine.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Protocol

from legroom.tuning.job import TuneJob
from legroom.tuning.study_runner import StudyRunner


class TuneEngine(Protocol):
    name: str

    def prepare(self, job: TuneJob) -> None:
        """Start slow operations in the background while the study is prepared. The study calls `prepare` before all
        other methods.
        """

    def run(self, job: TuneJob, runner: StudyRunner) -> None: ...


@contextlib.contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Inside the block, SIGTERM stops the study like Ctrl-C and ends the program. Outside the main thread, the block
    has no effect.
    """

    def interrupt(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
