"""The processes of trials on this machine: forked from the server that has imported torch, heard, answered and ended."""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait

from legroom.tuning.fork_server import TrialProcess
from legroom.tuning.ranks import RankGroup
from legroom.tuning.staging import Stage
from legroom.tuning.trial import Reported
from legroom.tuning.trial_process import Order, TrialEnd


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


Speaker = tuple[_Processes, int]
"""A trial, and the rank of it that has something to say."""


class LocalTrials:
    """Those that run. `server`: where they are forked."""

    def __init__(self, stage: Stage, server: str) -> None:
        self._stage, self._server = stage, server
        self._running: dict[int, _Processes] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    def start(self, orders: list[Order]) -> None:
        """A process for each rank of a trial."""
        meeting = None
        if len(orders) > 1:
            meeting = tempfile.TemporaryDirectory(prefix="legroom-")
            orders = [replace(order, meeting=f"file://{meeting.name}/ranks") for order in orders]
        number, processes = orders[0].number, [TrialProcess.start(self._server, order) for order in orders]
        self._running[number] = _Processes(number, processes, RankGroup(len(orders)), meeting)

    def wait(self, seconds: float) -> list[Speaker]:
        """Who has something to say, as soon as somebody has, after so many seconds at the latest."""
        speakers = {
            process.pipe: (trial, rank)
            for trial in self._running.values()
            for rank, process in enumerate(trial.processes)
            if rank not in trial.group.ends
        }
        return [speakers[pipe] for pipe in wait(list(speakers), seconds)]  # type: ignore[index]

    def hear(self, speakers: list[Speaker]) -> None:
        """What they say, told to the stage and answered; trials that are over leave it."""
        for trial, rank in speakers:
            self._heard(trial, rank, trial.processes[rank].hear())
        for trial in [trial for trial in self._running.values() if trial.group.is_over]:
            trial.kill()
            del self._running[trial.number]
            self._stage.ended(trial.number, trial.group.end)

    def kill_all(self) -> None:
        for trial in self._running.values():
            trial.kill()
        self._running.clear()

    def _heard(self, trial: _Processes, rank: int, told: Reported | TrialEnd) -> None:
        if isinstance(told, Reported):
            answers = trial.group.reported(rank, told, partial(self._stage.reported, trial.number))
        else:
            answers = trial.group.ended(rank, told)
        for each, action in answers.items():
            trial.processes[each].answer(action)
