"""Runs trials as processes on this machine, without Ray.

Trials are forked from a server that has imported torch, so a trial starts in a fraction of a second. On systems that
cannot fork, every trial imports torch itself, which takes seconds. Each trial has its own process and its own share of
a GPU. The engine passes each message of a trial to the dispatcher and returns the dispatcher's decision to the trial.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from legroom.tuning.engines.engine import interrupt_on_sigterm
from legroom.tuning.engines.fork_server import TrialProcess, fork_server
from legroom.tuning.job import TuneJob
from legroom.tuning.study_runner import StudyRunner
from legroom.tuning.trial.process import TrialExit, TrialTask, file_rendezvous
from legroom.tuning.trial.ranks import RankGroup
from legroom.tuning.trial.trial import ReportMessage
from legroom.tuning.trial_dispatch import TrialDispatcher

POLL_SECONDS = 0.5
"""The number of seconds between two checks of the estimates and the time budget, if no message arrives."""


class LocalEngine:
    name = "local"

    def prepare(self, job: TuneJob) -> None:
        fork_server(job.function)

    def run(self, job: TuneJob, runner: StudyRunner) -> None:
        _LocalRun(job, runner).run()


@dataclass(slots=True)
class _Processes:
    """The processes of one trial, one per rank."""

    number: int
    processes: list[TrialProcess]
    group: RankGroup
    rendezvous: "tempfile.TemporaryDirectory[str] | None"

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        if self.rendezvous is not None:
            self.rendezvous.cleanup()


class _LocalRun:
    def __init__(self, job: TuneJob, runner: StudyRunner) -> None:
        self._runner, self._server = runner, fork_server(job.function)
        self._dispatcher = TrialDispatcher(job, runner)
        self._running: dict[int, _Processes] = {}

    def run(self) -> None:
        try:
            with interrupt_on_sigterm():
                while True:
                    while (tasks := self._dispatcher.next_tasks()) is not None:
                        self._start(tasks)
                    if self._dispatcher.is_over:
                        return
                    if self._runner.seconds_left == 0.0:
                        self._kill_all()
                        self._dispatcher.stop_on_timeout()
                        return
                    self._receive_messages()
        except (KeyboardInterrupt, SystemExit):
            self._kill_all()
            self._dispatcher.interrupt()
            raise
        finally:
            self._kill_all()

    def _start(self, tasks: list[TrialTask]) -> None:
        rendezvous = None
        if len(tasks) > 1:
            rendezvous = tempfile.TemporaryDirectory(prefix="legroom-")
            file = Path(rendezvous.name, "ranks")
            tasks = [replace(task, init_method=file_rendezvous(file)) for task in tasks]
        number, processes = tasks[0].number, [TrialProcess.start(self._server, task) for task in tasks]
        self._running[number] = _Processes(number, processes, RankGroup(len(tasks)), rendezvous)

    def _receive_messages(self) -> None:
        owners = {
            process.pipe: (trial, rank)
            for trial in self._running.values()
            for rank, process in enumerate(trial.processes)
            if rank not in trial.group.ends
        }
        if not owners:
            self._runner.wait(POLL_SECONDS)
            return
        left = self._runner.seconds_left
        for pipe in wait(list(owners), POLL_SECONDS if left is None else min(POLL_SECONDS, left)):
            trial, rank = owners[pipe]  # type: ignore[index]
            self._handle(trial, rank, trial.processes[rank].receive())
        for trial in [trial for trial in self._running.values() if trial.group.is_over]:
            trial.kill()
            del self._running[trial.number]
            self._dispatcher.ended(trial.number, trial.group.end)

    def _handle(self, trial: _Processes, rank: int, message: ReportMessage | TrialExit) -> None:
        if isinstance(message, ReportMessage):
            answers = trial.group.reported(rank, message, partial(self._dispatcher.reported, trial.number))
        else:
            answers = trial.group.ended(rank, message)
        for each, action in answers.items():
            trial.processes[each].answer(action)

    def _kill_all(self) -> None:
        for trial in self._running.values():
            trial.kill()
        self._running.clear()
