"""Starts the processes of a study (trials and the tracing process).

On systems that can fork, a server process forks the processes of the study. The server has already imported the modules
that these processes need, so a fork takes a fraction of a second. On other systems, each process starts from scratch
and imports its modules.

Each process that runs a search has one server. The server imports modules while the study is prepared, and is reused
for further studies. The local engine and Ray's workers use the server. The server listens on a Unix socket. Each
connection is either the pipe to one forked process or a query about a forked process. When the process that runs the
search exits, the server kills the forked processes and exits. `multiprocessing.forkserver` is not used, because its
server serves only the process that started it. With `multiprocessing.forkserver`, each of Ray's workers would have to
import all modules again.
"""

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from legroom.errors import LegroomError
from legroom.processes import KILLED, SpawnedProcess, can_fork
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import TrialExit, TrialTask
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage

BACKLOG = 128
MAX_FOLDER_LENGTH = 70
"""The maximum length of the path of the temporary folder. The path of a Unix socket is limited to about 100 characters."""
POLL_SECONDS = 0.005
SECONDS_TO_END = 60
"""The maximum number of seconds to wait for a killed process to exit and release its GPU memory."""


@dataclass(frozen=True, slots=True)
class ExitQuery:
    """A query for the exit code of a process. The server answers None while the process runs."""

    process: int
    kill: bool = False


class ServerGone(LegroomError):  # noqa: N818
    pass


def fork_server(function: TrainFunction) -> str | None:
    """Return the socket path of this process's server, and start the server if needed. Return None if processes cannot
    fork.
    """
    global _server
    if not can_fork():
        return None
    if _server is None or not _server.is_usable:
        _server = _ForkServer(function)
        atexit.register(_server.close)
    return _server.address


class _ForkServer:
    def __init__(self, function: TrainFunction) -> None:
        self._owner, self._path = os.getpid(), list(sys.path)
        folder = tempfile.gettempdir()
        self._folder = tempfile.TemporaryDirectory(
            prefix="legroom-", dir="/tmp" if len(folder) > MAX_FOLDER_LENGTH else folder
        )
        self.address = str(Path(self._folder.name) / "trials")
        with socket.socket(socket.AF_UNIX) as listening:
            # Bound here, so that clients can connect while the server still imports.
            listening.bind(self.address)
            listening.listen(BACKLOG)
            setup = {
                "path": self._path,
                "imports": ["torch", "legroom.tuning.engines.preloaded", *function.imports],
            }
            number = listening.fileno()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "legroom.tuning.engines.fork_server_process",
                    json.dumps(setup),
                    str(number),
                ],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # output of imports would corrupt the live table
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the study handles Ctrl-C
            )

    @property
    def is_usable(self) -> bool:
        """True if the server runs, belongs to this process and has the same `sys.path`. A forked process must not use
        the server of its parent.
        """
        return self._owner == os.getpid() and self._process.poll() is None and self._path == sys.path

    def close(self) -> None:
        if self._owner == os.getpid():
            self._process.terminate()
            self._process.wait()


_server: _ForkServer | None = None


@dataclass
class StudyProcess:
    """A handle with which the requesting process controls a study process."""

    server: str | None
    """The socket path of the server that forked the process, or None if the process was not forked."""
    number: int
    pipe: Connection
    spawned: SpawnedProcess | None = None

    @classmethod
    def start(cls, server: str | None, task: Any) -> Self:
        """Start a process that runs the task. If there is a server, this call waits until the server has imported its
        modules and forked the process."""
        if server is None:
            return cls._spawn(task)
        try:
            pipe = _connect(server)
        except OSError:
            raise ServerGone(
                "The process that starts trials has exited, and its exit code is unknown. Check that enough host memory is free. "
                "Completed trials are saved. Resume the study to continue."
            ) from None
        number = 0
        with contextlib.suppress(EOFError, OSError):  # the server has exited: the next receive reports it
            pipe.send(task)
            number = pipe.recv()
        return cls(server, number, pipe)

    @classmethod
    def _spawn(cls, task: Any) -> Self:
        process = SpawnedProcess("legroom.tuning.engines.study_process:run")
        try:
            pipe = process.pipe
            pipe.send((list(sys.path), task))
        except (EOFError, OSError):
            process.close()
            raise ServerGone(
                "A study process could not be started. Check that enough host memory is free."
            ) from None
        return cls(None, process.pid, pipe, process)

    def exit_code(self, *, kill: bool = False) -> int | None:
        if self.spawned is not None:
            if kill:
                self.spawned.kill()
            return self.spawned.wait(SECONDS_TO_END)
        assert self.server is not None
        return wait_for_exit(self.server, self.number, kill=kill)

    def kill(self) -> None:
        """Kill the process. The memory of the process has been freed when this method returns."""
        self.exit_code(kill=True)
        self.pipe.close()


@dataclass
class TrialProcess(StudyProcess):
    """The process that runs one rank of a trial."""

    name: str = "The process"

    @classmethod
    def start(cls, server: str | None, task: TrialTask) -> Self:
        process = super().start(server, task)
        if task.ranks > 1:
            process.name = f"The process of rank {task.rank}"
        return process

    def receive(self) -> ReportMessage | TrialExit:
        try:
            message: ReportMessage | TrialExit = self.pipe.recv()
        except (EOFError, OSError):
            return self._exit_of_dead_process()
        return message

    def answer(self, action: Action) -> None:
        with contextlib.suppress(OSError):  # its exit is received next
            self.pipe.send(action)

    def _exit_of_dead_process(self) -> TrialExit:
        code = self.exit_code()
        if code == KILLED:
            reason = f"{self.name} was killed (signal 9), possibly because the host ran out of memory"
        else:
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            reason = f"{self.name} exited without a result ({how})"
        return TrialExit(state=TrialState.FAILED, reason=reason)


def wait_for_exit(server: str, process: int, *, kill: bool = False) -> int | None:
    deadline = time.monotonic() + SECONDS_TO_END
    while time.monotonic() < deadline:
        try:
            with _connect(server) as connection:
                connection.send(ExitQuery(process, kill))
                code: int | None = connection.recv()
        except (EOFError, OSError):  # the server has exited, and its children with it
            return None
        if code is not None:
            return code
        time.sleep(POLL_SECONDS)
    return None


def _connect(server: str) -> Connection:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(server)
    except OSError:
        connection.close()
        raise
    return Connection(connection.detach())
