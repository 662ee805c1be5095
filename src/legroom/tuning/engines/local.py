"""Trials as processes of this machine, without Ray.

A fork server that has imported torch starts them, so a trial begins in a fraction of a second; each has its own process and
its own share of a GPU. This loop waits for what they say, passes it on, and answers.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait

from legroom.tuning.engines.engine import Job, ended_politely
from legroom.tuning.engines.fork_server import TrialProcess, fork_server
from legroom.tuning.study_runner import Conductor
from legroom.tuning.trial.process import Order, TrialEnd
from legroom.tuning.trial.ranks import RankGroup
from legroom.tuning.trial.trial import Reported
from legroom.tuning.trial_dispatch import Stage

LOOK = 0.5
"""Seconds between two looks at estimates and the clock while nothing is said."""


class LocalEngine:
    """Runs a job's trials on this machine."""

    name = "local"

    def prepare(self, job: Job) -> None:
        fork_server(job.function)

    def run(self, job: Job, conductor: Conductor) -> None:
        _Local(job, conductor).run()


@dataclass(slots=True)
class _Processes:
    """The processes of one trial, a rank each."""

    number: int
    processes: list[TrialProcess]
    group: RankGroup
    meeting: "tempfile.TemporaryDirectory[str] | None"
    """Where its ranks meet, if it has several."""

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        if self.meeting is not None:
            self.meeting.cleanup()


class _Local:
    """One run of the engine."""

    def __init__(self, job: Job, conductor: Conductor) -> None:
        self._conductor, self._server = conductor, fork_server(job.function)
        self._stage = Stage(job, conductor)
        self._running: dict[int, _Processes] = {}

    def run(self) -> None:
        try:
            with ended_politely():
                while True:
                    while (orders := self._stage.hand_out()) is not None:
                        self._start(orders)
                    if self._stage.is_over:
                        return
                    if self._conductor.seconds_left == 0.0:
                        self._kill_all()
                        self._stage.time_is_up()
                        return
                    self._listen()
        except KeyboardInterrupt:
            self._kill_all()
            self._stage.interrupt()
            raise
        finally:
            self._kill_all()

    def _start(self, orders: list[Order]) -> None:
        meeting = None
        if len(orders) > 1:
            meeting = tempfile.TemporaryDirectory(prefix="legroom-")
            orders = [replace(order, meeting=f"file://{meeting.name}/ranks") for order in orders]
        number, processes = orders[0].number, [TrialProcess.start(self._server, order) for order in orders]
        self._running[number] = _Processes(number, processes, RankGroup(len(orders)), meeting)

    def _listen(self) -> None:
        """What trials say, as it comes."""
        owners = {
            process.pipe: (trial, rank)
            for trial in self._running.values()
            for rank, process in enumerate(trial.processes)
            if rank not in trial.group.ends
        }
        if not owners:
            self._conductor.wait(LOOK)
            return
        left = self._conductor.seconds_left
        for pipe in wait(list(owners), LOOK if left is None else min(LOOK, left)):
            trial, rank = owners[pipe]  # type: ignore[index]
            self._heard(trial, rank, trial.processes[rank].hear())
        for trial in [trial for trial in self._running.values() if trial.group.is_over]:
            trial.kill()
            del self._running[trial.number]
            self._stage.ended(trial.number, trial.group.end)

    def _heard(self, trial: _Processes, rank: int, told: Reported | TrialEnd) -> None:
        if isinstance(told, Reported):
            answers = trial.group.reported(rank, told, partial(self._stage.reported, trial.number))
        else:
            answers = trial.group.ended(rank, told)
        for each, action in answers.items():
            trial.processes[each].answer(action)

    def _kill_all(self) -> None:
        for trial in self._running.values():
            trial.kill()
        self._running.clear()
