"""Trials as processes of this machine, without Ray.

A fork server that has imported torch starts them, so a trial begins in a fraction of a second; each has its own process and
its own share of a GPU. This loop waits for what they say, passes it on, and answers.
"""

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from legroom.tuning.conductor import Conductor
from legroom.tuning.engine import Job
from legroom.tuning.records import TrialState
from legroom.tuning.schedulers import Action
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
    decided: dict[int, Action] = field(default_factory=dict)
    """Step → what all ranks do after it."""
    waiting: dict[int, list[int]] = field(default_factory=dict)
    """Step → ranks that wait for that."""
    ends: dict[int, TrialEnd] = field(default_factory=dict)
    """Rank → how it ended."""

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()


class _Local:
    """One run of the engine."""

    def __init__(self, job: Job, conductor: Conductor) -> None:
        self._conductor = conductor
        self._stage = Stage(job, conductor)
        self._running: dict[int, _Processes] = {}
        self._fork_server = multiprocessing.get_context("forkserver")
        self._fork_server.set_forkserver_preload(["torch", "legroom.tuning.preloaded", *job.function.imports])

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
        pipes, processes = [], []
        for order in orders:
            ours, theirs = self._fork_server.Pipe()
            process = self._fork_server.Process(target=live, args=(order, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        self._running[orders[0].number] = _Processes(orders[0].number, pipes, processes)

    def _listen(self) -> None:
        """What trials say, as it comes."""
        owners = {
            pipe: (trial, rank)
            for trial in self._running.values()
            for rank, pipe in enumerate(trial.pipes)
            if rank not in trial.ends
        }
        if not owners:
            self._conductor.wait(LOOK)
            return
        left = self._conductor.seconds_left
        for pipe in wait(list(owners), LOOK if left is None else min(LOOK, left)):
            assert isinstance(pipe, Connection)
            trial, rank = owners[pipe]
            if trial.number not in self._running:
                continue  # it ended with what another rank said
            try:
                told = pipe.recv()
            except (EOFError, OSError):
                told = _died(trial, rank)
            if isinstance(told, Reported):
                self._reported(trial, rank, told)
            else:
                self._ended(trial, rank, told)

    def _reported(self, trial: _Processes, rank: int, told: Reported) -> None:
        """Rank 0's report decides; the others wait for that decision about the same step, so that all stop together."""
        ranks = [rank]
        if rank == 0:
            trial.decided[told.step] = self._stage.reported(trial.number, told)
            ranks += trial.waiting.pop(told.step, [])
        elif told.step not in trial.decided:
            trial.waiting.setdefault(told.step, []).append(rank)
            return
        for each in ranks:
            with contextlib.suppress(OSError):  # its end comes next
                trial.pipes[each].send(trial.decided[told.step])

    def _ended(self, trial: _Processes, rank: int, end: TrialEnd) -> None:
        """A trial is over when all ranks are, or one went wrong: the others would wait for it for ever."""
        trial.ends[rank] = end
        went_wrong = end.state in (TrialState.FAILED, TrialState.OUT_OF_MEMORY)
        if went_wrong or len(trial.ends) == len(trial.processes):
            trial.kill()
            del self._running[trial.number]
            self._stage.ended(trial.number, end if went_wrong else trial.ends[0])

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
