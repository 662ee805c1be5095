"""Trials as processes of this machine, without Ray.

A fork server that has imported torch starts them, so a trial begins in a fraction of a second; each has its own process and
its own share of a GPU. This loop waits for what they say, passes it on, and answers.
"""

import contextlib
import multiprocessing
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

from legroom.tuning.conductor import Conductor
from legroom.tuning.engine import Job
from legroom.tuning.ranks import RankGroup
from legroom.tuning.records import TrialState
from legroom.tuning.staging import Stage
from legroom.tuning.trial import Reported
from legroom.tuning.trial_process import Order, TrialEnd, live

LOOK = 0.5
"""Seconds between two looks at estimates and the clock while nothing is said."""


class LocalEngine:
    """Runs a job's trials on this machine."""

    name = "local"

    def run(self, job: Job, conductor: Conductor) -> None:
        _Local(job, conductor).run()


@dataclass(slots=True)
class _Processes:
    """The processes of one trial, a rank each."""

    number: int
    pipes: list[Connection]
    processes: list[Any]
    group: RankGroup
    meeting: "tempfile.TemporaryDirectory[str] | None"
    """Where its ranks meet, if it has several."""

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()
        if self.meeting is not None:
            self.meeting.cleanup()


class _Local:
    """One run of the engine."""

    def __init__(self, job: Job, conductor: Conductor) -> None:
        self._conductor = conductor
        self._stage = Stage(job, conductor)
        self._running: dict[int, _Processes] = {}
        self._fork_server = multiprocessing.get_context("forkserver")
        self._fork_server.set_forkserver_preload(["torch", "legroom.tuning.preloaded", *job.function.imports])
        forkserver.ensure_running()  # it imports while the first estimate is made

    def run(self) -> None:
        try:
            with _ended_politely():
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
        pipes, processes, meeting = [], [], None
        if len(orders) > 1:
            meeting = tempfile.TemporaryDirectory(prefix="legroom-")
            orders = [replace(order, meeting=f"file://{meeting.name}/ranks") for order in orders]
        for order in orders:
            ours, theirs = self._fork_server.Pipe()
            process = self._fork_server.Process(target=live, args=(order, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        number = orders[0].number
        self._running[number] = _Processes(number, pipes, processes, RankGroup(len(orders)), meeting)

    def _listen(self) -> None:
        """What trials say, as it comes."""
        owners = {
            pipe: (trial, rank)
            for trial in self._running.values()
            for rank, pipe in enumerate(trial.pipes)
            if rank not in trial.group.ends
        }
        if not owners:
            self._conductor.wait(LOOK)
            return
        left = self._conductor.seconds_left
        for pipe in wait(list(owners), LOOK if left is None else min(LOOK, left)):
            assert isinstance(pipe, Connection)
            trial, rank = owners[pipe]
            try:
                told = pipe.recv()
            except (EOFError, OSError):
                told = _died(trial, rank)
            self._heard(trial, rank, told)
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
            with contextlib.suppress(OSError):  # its end comes next
                trial.pipes[each].send(action)

    def _kill_all(self) -> None:
        for trial in self._running.values():
            trial.kill()
        self._running.clear()


def _died(trial: _Processes, rank: int) -> TrialEnd:
    process = trial.processes[rank]
    process.join(5)
    code = process.exitcode
    who = "its process" if len(trial.processes) == 1 else f"the process of rank {rank}"
    if code == -signal.SIGKILL:
        why = f"{who} was killed (signal 9): by someone, or by the host for want of memory"
    else:
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        why = f"{who} ended without a word ({how})"
    return TrialEnd(state=TrialState.FAILED, why=why)


@contextlib.contextmanager
def _ended_politely() -> Iterator[None]:
    """A polite kill (SIGTERM) ends a study as Ctrl-C does. Only the main thread may arrange that."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
