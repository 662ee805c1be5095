"""Runs a launch plan with torchrun's own agent, which handles the rendezvous, restarts ranks and terminates ranks.

`torch.distributed.elastic` starts one process per rank, monitors the processes, and connects to other nodes. Through
two extension points of torchrun, this module adds the output files of the ranks and a callback at the end of an
attempt. `LogsSpecs.reify` returns the files at the start of an attempt, and `_monitor_workers` returns the state of
the workers.
"""

import contextlib
import logging
import os
import signal
import socket
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
    dynamic_rendezvous,
)
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

from legroom.errors import LegroomError
from legroom.log import log
from legroom.processes import kill_with_children
from legroom.scale.launching.folder import LaunchFolder, read_exit
from legroom.scale.launching.host_oom import host_oom_kills
from legroom.scale.launching.outcome import LaunchAttempt, LaunchResult, OnEnd, OnStart, RankResult
from legroom.scale.launching.plan import LaunchPlan
from legroom.scale.launching.rank_settings import ATTEMPT_VARIABLE, environment, rank_command
from legroom.scale.launching.rendezvous import is_own_address, local_address

GRACE_SECONDS = 15
"""After the launcher terminates the ranks, they must exit within this time in seconds. torchrun's default is 30
seconds.
"""


def run_elastic(plan: LaunchPlan, folder: LaunchFolder, *, on_start: OnStart, on_end: OnEnd) -> LaunchResult:
    """Start the ranks on this node and wait until all of them have exited.

    Raises `LegroomError` if the nodes do not connect. If this function runs on the main thread, Ctrl-C stops all ranks.
    """
    _silence_torch()
    recorder = _AttemptRecorder(
        folder, on_start, on_end, reserves_port=not plan.rendezvous and plan.has_store_per_attempt
    )
    kills_before = host_oom_kills()
    existing = set(psutil.Process().children(recursive=True))
    interrupted = ""
    with _environment(plan, folder), _grace(GRACE_SECONDS), _fast_method_names(), _signals_restored():
        try:
            _run_agents(plan, recorder)
        except (SignalException, KeyboardInterrupt) as stop:
            interrupted = getattr(stop, "sigval", signal.SIGINT).name
            recorder.interrupted()
        except (RendezvousTimeoutError, RendezvousClosedError, RendezvousConnectionError) as error:
            raise _rendezvous_error(plan, error, is_lost=bool(recorder.attempts)) from None
        finally:
            _kill(set(psutil.Process().children(recursive=True)) - existing)
    return LaunchResult(
        attempts=tuple(recorder.attempts),
        interrupted=interrupted,
        host_oom_kills=host_oom_kills() - kills_before,
    )


def _run_agents(plan: LaunchPlan, recorder: "_AttemptRecorder") -> None:
    """Run the agent on this node. If the connection to the rendezvous node is lost, wait for that node and connect
    again, as long as restarts remain.
    """
    while True:
        before = len(recorder.attempts)
        try:
            agent = _Agent(_spec(plan, max(plan.max_restarts - before, 0)), recorder)
            try:
                agent.run()
            finally:
                agent.close_rendezvous()
            return
        except RendezvousConnectionError:
            recorder.finished({})
            if not before < len(recorder.attempts) <= plan.max_restarts:
                raise
            log.warning(
                "The launch at %s no longer responds. Waiting up to %.0f seconds for it to be restarted.",
                plan.rendezvous,
                plan.wait,
            )


class _AttemptRecorder(LogsSpecs):
    def __init__(
        self, folder: LaunchFolder, on_start: OnStart, on_end: OnEnd, *, reserves_port: bool = False
    ) -> None:
        super().__init__()
        self._reserves_port = reserves_port
        self._port: socket.socket | None = None
        self._folder = folder
        self._on_start = on_start
        self._on_end = on_end
        self._ranks: dict[int, int] = {}
        self._number = 0
        self._start_time = 0.0
        self._running = False
        self.attempts: list[LaunchAttempt] = []

    @property
    def root_log_dir(self) -> str:
        return str(self._folder.path)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self._ranks = {local: int(values["RANK"]) for local, values in envs.items()}
        self._number = len(self.attempts)
        self._start_time = time.monotonic()
        self._running = True
        if self._reserves_port:
            self._release_port()
            self._port = reserved_port()
        for values in envs.values():
            values[ATTEMPT_VARIABLE] = str(self._number)
            if self._port is not None:
                values["MASTER_PORT"] = str(self._port.getsockname()[1])
        files = {local: self._folder.files(rank, self._number) for local, rank in self._ranks.items()}
        for each in files.values():
            each.out.parent.mkdir(exist_ok=True)
            each.out.touch()
            each.err.touch()
        self._on_start(self._number, self._ranks)
        return LogsDest(
            stdouts={local: str(each.out) for local, each in files.items()},
            stderrs={local: str(each.err) for local, each in files.items()},
            error_files={local: str(each.exit_record.with_suffix(".error")) for local, each in files.items()},
        )

    def finished(self, exit_codes: Mapping[int, int], first: Collection[int] = ()) -> None:
        """Record that all ranks of the attempt have exited.

        `exit_codes` contains the exit codes of failed ranks. `first` contains the ranks that exited before the others
        were terminated.
        """
        if not self._running:
            return
        self._running = False
        self._release_port()
        attempt = LaunchAttempt(
            number=self._number,
            seconds=time.monotonic() - self._start_time,
            ranks=tuple(
                self._result(rank, exit_codes.get(rank, 0), rank in first)
                for rank in sorted(self._ranks.values())
            ),
        )
        self.attempts.append(attempt)
        self._on_end(attempt)

    def _release_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def interrupted(self) -> None:
        self.finished(dict.fromkeys(self._ranks.values(), -signal.SIGTERM))

    def _result(self, rank: int, exit_code: int, died_first: bool) -> RankResult:
        files = self._folder.files(rank, self._number)
        exit_record = read_exit(files.exit_record)
        return RankResult(
            rank=rank, exit_code=exit_code, exit_record=exit_record, files=files, died_first=died_first
        )


def reserved_port() -> socket.socket:
    """Return a socket that reserves a free port for rank 0. PyTorch selects a port and releases it seconds before rank
    0 uses it, so another launch may get the same port.

    The socket does not listen, so rank 0 can use the port. The operating system does not assign a reserved port to
    other programs.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


class _Agent(LocalElasticAgent):
    def __init__(self, spec: WorkerSpec, recorder: _AttemptRecorder) -> None:
        super().__init__(spec, recorder)
        self._shutdown_timeout = GRACE_SECONDS
        self._recorder = recorder
        self._handler = spec.rdzv_handler

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        exited = {worker.global_rank for worker in worker_group.workers if _has_exited(worker.id)}
        # If a rank has failed, this call terminates the others.
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY, WorkerState.SUCCEEDED):
            codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
            self._recorder.finished(codes, exited)
        return result

    def _stop_workers(self, *arguments: Any, **options: Any) -> None:
        super()._stop_workers(*arguments, **options)
        # A node was added or removed: the ranks had no error and will be restarted.
        self._recorder.finished({})

    def _shutdown(self, *arguments: Any, **options: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            # A second Ctrl-C kills ranks that do not exit.
            signal.signal(signal.SIGINT, lambda *_: self._kill_ranks())
        super()._shutdown(*arguments, **options)

    def _kill_ranks(self) -> None:
        for worker in self.get_worker_group().workers:
            if worker.id is not None:  # the process was started
                kill_with_children(worker.id)

    def close_rendezvous(self) -> None:
        with contextlib.suppress(Exception):
            self._handler.shutdown()


def _spec(plan: LaunchPlan, max_restarts: int) -> WorkerSpec:
    command = rank_command(plan)
    minimum, maximum = plan.nodes
    timeout = int(plan.wait)
    address = local_address(plan.rendezvous) if plan.rendezvous else "localhost"

    def handler(*, is_host: bool) -> Any:
        settings: dict[str, Any] = (
            {"join_timeout": timeout, "read_timeout": timeout} if plan.rendezvous else {}
        )
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=plan.rendezvous or "localhost:0",
            run_id=plan.run_id,
            min_nodes=minimum,
            max_nodes=maximum,
            local_addr=address,
            is_host=is_host,
            **settings,
        )
        return rendezvous_registry.get_rendezvous_handler(parameters)

    try:
        rendezvous = handler(is_host=not plan.rendezvous or is_own_address(plan.rendezvous))
    except RendezvousConnectionError:
        rendezvous = handler(is_host=False)  # another node of this launch on this machine is the host
    return WorkerSpec(
        role="legroom",
        local_world_size=plan.nproc,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=rendezvous,
        max_restarts=max_restarts,
        monitor_interval=0.1,
        local_addr=address,
    )


def _rendezvous_error(plan: LaunchPlan, error: Exception, *, is_lost: bool) -> LegroomError:
    if isinstance(error, RendezvousTimeoutError):
        return LegroomError(
            f"Too few nodes connected to {plan.rendezvous} within {plan.wait:.0f} s (minimum: {plan.nodes[0]}). Run the same command "
            "on each node, and check that all nodes can reach the host and the port."
        )
    if isinstance(error, RendezvousClosedError):
        return LegroomError(
            f"The launch at {plan.rendezvous} has ended, or already has all its nodes. Restart all nodes "
            "together."
        )
    if is_lost:
        return LegroomError(
            f"The launch at {plan.rendezvous} no longer responds. Restart the launch on all nodes. "
            "With `--max-restarts`, restart only the node at this address; the other nodes wait for this node."
        )
    return LegroomError(
        f"Cannot connect to {plan.rendezvous}. Start the node at this address first, and check that the port is open."
    )


def _silence_torch() -> None:
    """Disable the agent's log messages about failures and signals, because Legroom reports each failure itself."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).disabled = True


@contextlib.contextmanager
def _environment(plan: LaunchPlan, folder: LaunchFolder) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment(plan, folder))
    os.environ.pop("LEGROOM", None)  # ranks are already recorded
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _grace(seconds: int) -> Iterator[None]:
    """Set the time within which ranks must exit after the launcher terminates them. Ranks that are still running after
    this time are killed.

    The time is a default argument of `PContext.close`, and torch passes no other value if a rank has failed. If a
    version of torch changes `PContext.close`, torch's default of 30 seconds applies.
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
def _fast_method_names() -> Iterator[None]:
    """Replace the function with which torch's rendezvous adds the names of its methods to its event records.

    PyTorch uses `inspect.stack`, which searches all loaded modules and reads the source files of all frames. In a
    process with a deep stack, such as a notebook, the search takes more than a second per launch.
    """
    before = getattr(dynamic_rendezvous, "get_method_name", None)
    if before is None:  # another version of torch
        yield
        return
    dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
    try:
        yield
    finally:
        dynamic_rendezvous.get_method_name = before


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers that the agent replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # Windows has only the first two
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _has_exited(pid: Any) -> bool:
    """Return whether a process does not exist or is a zombie. A zombie has exited, but its parent has not read its exit
    code yet.
    """
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, TypeError, ValueError):
        return False


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(processes), timeout=2)
