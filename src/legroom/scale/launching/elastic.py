"""Runs a plan on torchrun's own agent: its rendezvous, its restarts, its way of ending all ranks when one fails.

`torch.distributed.elastic` starts one process per rank, watches them, and meets other nodes. What is added: where the
ranks' output goes, and what is said when an attempt is over. Those are the agent's own seams: `LogsSpecs.reify` is asked
for files when an attempt starts, `_monitor_workers` is what every agent overrides to say how its workers are.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import psutil
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, PContext, SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

from legroom.errors import LegroomError
from legroom.scale.launching.folder import RunFolder, read_ending
from legroom.scale.launching.host_kills import kernel_kills
from legroom.scale.launching.outcome import Attempt, LaunchEnd, Over, RankResult, Starting
from legroom.scale.launching.plan import LaunchPlan
from legroom.scale.launching.rank_settings import ATTEMPT, environment, rank_command

GRACE_SECONDS = 15
"""How long ranks that are told to end may take. torchrun gives 30, so a launch whose rank died could take longer than that."""


def run_elastic(plan: LaunchPlan, folder: RunFolder, *, starting: Starting, over: Over) -> LaunchEnd:
    """Start the ranks of this node and stay until all of them have ended, one way or another.

    Raises `LegroomError` where nodes do not meet. Ctrl-C ends all ranks if this runs on the main thread.
    """
    _silence_torch()
    watched = _Watched(folder, starting, over)
    killed_before = kernel_kills()
    known = set(psutil.Process().children(recursive=True))
    interrupted = ""
    with _environment(plan, folder), _grace(GRACE_SECONDS), _signals_restored():
        try:
            agent = _Agent(_spec(plan), watched)
            try:
                agent.run()
            finally:
                agent.meet_no_more()
        except (SignalException, KeyboardInterrupt) as stop:
            interrupted = getattr(stop, "sigval", signal.SIGINT).name
            watched.interrupted()
        except (RendezvousTimeoutError, RendezvousClosedError, RendezvousConnectionError) as error:
            raise _not_met(plan, error) from None
        finally:
            _end(set(psutil.Process().children(recursive=True)) - known)
    return LaunchEnd(
        attempts=tuple(watched.attempts),
        interrupted=interrupted,
        kernel_kills=kernel_kills() - killed_before,
    )


class _Watched(LogsSpecs):
    """Gives each rank its files, and keeps the attempts."""

    def __init__(self, folder: RunFolder, starting: Starting, over: Over) -> None:
        super().__init__()
        self._folder = folder
        self._starting = starting
        self._over = over
        self._ranks: dict[int, int] = {}
        self._number = 0
        self._began = 0.0
        self._running = False
        self.attempts: list[Attempt] = []

    @property
    def root_log_dir(self) -> str:
        return str(self._folder.path)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self._ranks = {local: int(values["RANK"]) for local, values in envs.items()}
        self._number = len(self.attempts)
        self._began = time.monotonic()
        self._running = True
        for values in envs.values():
            values[ATTEMPT] = str(self._number)
        files = {local: self._folder.files(rank, self._number) for local, rank in self._ranks.items()}
        for each in files.values():
            each.out.parent.mkdir(exist_ok=True)
            each.out.touch()
            each.err.touch()
        self._starting(self._number, self._ranks)
        return LogsDest(
            stdouts={local: str(each.out) for local, each in files.items()},
            stderrs={local: str(each.err) for local, each in files.items()},
            error_files={local: str(each.ending.with_suffix(".error")) for local, each in files.items()},
        )

    def finished(self, exit_codes: Mapping[int, int], first: Collection[int] = ()) -> None:
        """All ranks of the attempt are gone. `exit_codes`, by rank: of those that failed. `first`: of those, which were seen
        dead before the others were told to end."""
        if not self._running:
            return
        self._running = False
        attempt = Attempt(
            number=self._number,
            seconds=time.monotonic() - self._began,
            ranks=tuple(
                self._result(rank, exit_codes.get(rank, 0), rank in first)
                for rank in sorted(self._ranks.values())
            ),
        )
        self.attempts.append(attempt)
        self._over(attempt)

    def interrupted(self) -> None:
        """The launcher was told to end, and has ended the ranks."""
        self.finished(dict.fromkeys(self._ranks.values(), -signal.SIGTERM))

    def _result(self, rank: int, exit_code: int, fell_first: bool) -> RankResult:
        files = self._folder.files(rank, self._number)
        ending = read_ending(files.ending)
        return RankResult(rank=rank, exit_code=exit_code, ending=ending, files=files, fell_first=fell_first)


class _Agent(LocalElasticAgent):
    """torchrun's agent, which also says when an attempt is over."""

    def __init__(self, spec: WorkerSpec, watched: _Watched) -> None:
        super().__init__(spec, watched)
        self._shutdown_timeout = GRACE_SECONDS
        self._watched = watched
        self._handler = spec.rdzv_handler

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        dead = {worker.global_rank for worker in worker_group.workers if _is_dead(worker.id)}
        result: RunResult = super()._monitor_workers(worker_group)  # ends the others if one has failed
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY, WorkerState.SUCCEEDED):
            codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
            self._watched.finished(codes, dead)
        return result

    def _stop_workers(self, *arguments: Any, **options: Any) -> None:
        super()._stop_workers(*arguments, **options)
        # Another node came or went: the ranks were healthy and are about to start anew.
        self._watched.finished({})

    def _shutdown(self, *arguments: Any, **options: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            # Whoever presses Ctrl-C while ranks take their time to end means it.
            signal.signal(signal.SIGINT, lambda *_: self._kill())
        super()._shutdown(*arguments, **options)

    def _kill(self) -> None:
        for worker in self.get_worker_group().workers:
            with contextlib.suppress(OSError, TypeError):  # gone, or never there
                os.killpg(worker.id, signal.SIGKILL)

    def meet_no_more(self) -> None:
        """Let the other nodes know that this launch is over."""
        with contextlib.suppress(Exception):
            self._handler.shutdown()


def _spec(plan: LaunchPlan) -> WorkerSpec:
    command = rank_command(plan)
    fewest, most = plan.nodes
    patience = int(plan.wait)
    settings: dict[str, Any] = (
        {"join_timeout": patience, "read_timeout": patience} if plan.rendezvous else {"is_host": True}
    )
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=plan.rendezvous or "localhost:0",
        run_id=plan.run_id,
        min_nodes=fewest,
        max_nodes=most,
        **settings,
    )
    return WorkerSpec(
        role="legroom",
        local_world_size=plan.nproc,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=rendezvous_registry.get_rendezvous_handler(parameters),
        max_restarts=plan.max_restarts,
        monitor_interval=0.1,
        local_addr=None if plan.rendezvous else "localhost",
    )


def _not_met(plan: LaunchPlan, error: Exception) -> LegroomError:
    fewest = plan.nodes[0]
    if isinstance(error, RendezvousTimeoutError):
        return LegroomError(
            f"fewer than {fewest} nodes came to {plan.rendezvous} within {plan.wait:.0f} seconds: start the same command "
            "on each node, and see that the host and the port can be reached from all of them"
        )
    if isinstance(error, RendezvousClosedError):
        return LegroomError(
            f"the launch at {plan.rendezvous} is over or full: start all nodes anew, together"
        )
    return LegroomError(
        f"no connection to {plan.rendezvous}: start the node with that address first, and see that the port is open"
    )


def _silence_torch() -> None:
    """What its agent logs about failures and signals is said here, once and in other words."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).disabled = True


@contextlib.contextmanager
def _environment(plan: LaunchPlan, folder: RunFolder) -> Iterator[None]:
    """What every rank finds in its environment; the agent hands ours on."""
    before = dict(os.environ)
    os.environ.update(environment(plan, folder))
    os.environ.pop("LEGROOM", None)  # a rank is watched already
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _grace(seconds: int) -> Iterator[None]:
    """Ranks that are told to end have so long before they are killed.

    `PContext.close` has it as a default that no setting reaches when a rank has failed. Where that changes, torch's own
    half minute holds, so a launch with a rank that will not end takes that long.
    """
    close: Any = PContext.close
    before = getattr(close, "__defaults__", None)
    if before is None or before[-1] != 30:
        yield
        return
    close.__defaults__ = (*before[:-1], seconds)
    try:
        yield
    finally:
        close.__defaults__ = before


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    """The agent takes the signals that end a program; afterwards they are as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (
        signal.SIGTERM,
        signal.SIGINT,
        *((signal.SIGHUP, signal.SIGQUIT) if sys.platform != "win32" else ()),
    )
    before = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler if handler is not None else signal.SIG_DFL)


def _is_dead(pid: Any) -> bool:
    """Whether a process has ended, and nobody has asked yet how."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except (psutil.Error, TypeError, ValueError):
        return False


def _end(left: set[psutil.Process]) -> None:
    """Whatever is still there, for instance after a second Ctrl-C, goes now."""
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(left), timeout=2)
