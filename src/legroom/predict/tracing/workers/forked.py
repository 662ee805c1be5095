"""Workers that are forks of a server process. The server (see `server`) imports torch once.

An estimate starts a script more than once, and importing torch takes longer than most traces. This module does not
import torch, so the caller continues while the server imports it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

from legroom.predict.tracing.running_line import running_line
from legroom.predict.tracing.terminal import open_terminal

MAX_TRACES = 4
"""The maximum number of traces that run at the same time. Each trace needs several hundred MiB of host memory."""


class ForkedWorkers:
    """A server process that imports a module once, and forks a worker for each request.

    The worker calls a function in that module. `multiprocessing.forkserver` is not used, because its workers import the
    `__main__` of this process.
    """

    def __init__(self, function: str) -> None:
        """Start the server. `function` has the form `module:name`. A worker calls the function with the job and the
        worker's end of a pipe.
        """
        self.settings = startup_settings()
        self._ours, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile("w+b")  # noqa: SIM115  (open as long as the process runs)
        module = "legroom.predict.tracing.workers.server"
        self._process = subprocess.Popen(
            # -u: output and errors appear in the order in which they were printed.
            [sys.executable, "-u", "-m", module, str(theirs.fileno()), function],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        theirs.close()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._requests = 0
        self._received = b""
        self._started: list[int] = []
        self._exited: dict[int, int] = {}

    def is_usable(self) -> bool:
        """Return whether the server is running, and this process started it with the current settings."""
        return (
            self._owner == os.getpid()
            and self._process.poll() is None
            and self.settings == startup_settings()
        )

    def start(self, job: dict[str, Any], environment: Mapping[str, str] | None = None) -> "ForkedWorker":
        """Start a worker with the environment variables of this process, updated with `environment`."""
        folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
        output = tempfile.TemporaryFile("w+b")  # noqa: SIM115  (open as long as the process runs)
        ours, theirs = Pipe()
        terminal = open_terminal()
        stdin = os.open(os.devnull, os.O_RDONLY) if terminal is None else terminal[1]
        cwd = os.open(".", os.O_RDONLY)
        with self._lock:
            number = self._requests
            self._requests += 1
            with contextlib.suppress(OSError):  # it has exited; receiving the first reply raises EOFError
                socket.send_fds(self._ours, [b"."], [theirs.fileno(), stdin, output.fileno(), cwd])
        theirs.close()
        os.close(stdin)
        os.close(cwd)
        our_end = None if terminal is None else open(terminal[0], "rb", 0)  # noqa: SIM115
        worker = ForkedWorker(self, number, ours, output, folder, our_end)
        with contextlib.suppress(EOFError):
            worker.send(
                {
                    **job, "folder": os.path.realpath(folder.name),
                    "environment": {**os.environ, **(environment or {})},
                }
            )  # fmt: skip
        return worker

    def pid(self, request: int, *, wait: bool = True) -> int | None:
        """Return the id of the process that the server started for a request, or None if the server has exited. With
        `wait=False`, also return None if the server has not started the process yet.
        """
        with self._lock:
            while len(self._started) <= request and self._read(wait):
                pass
            return self._started[request] if request < len(self._started) else None

    def exit_code(self, pid: int | None) -> int:
        """Wait until a worker exits, and return its exit code. If `pid` is None, return the exit code of the server."""
        with self._lock:
            while pid is not None and pid not in self._exited and self._read(wait=True):
                pass
            return self._process.wait() if pid is None else self._exited.get(pid, -signal.SIGKILL)

    @property
    def output(self) -> str:
        return _content(self._output)

    def close(self) -> None:
        if self._owner != os.getpid():
            return
        self._ours.close()
        self._process.wait()
        self._output.close()

    def _read(self, wait: bool) -> bool:
        try:
            received = self._ours.recv(4096, 0 if wait else socket.MSG_DONTWAIT)
        except OSError:
            return False
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            kind, *numbers = line.split()
            if kind == b"started":
                self._started.append(int(numbers[0]))
            else:
                self._exited[int(numbers[0])] = int(numbers[1])
        return bool(received)


@dataclass(frozen=True, slots=True)
class ForkedWorker:
    """A process that receives requests and sends replies."""

    _server: ForkedWorkers
    _number: int
    _pipe: "Connection[Any, Any]"
    _output: IO[bytes]
    folder: tempfile.TemporaryDirectory[str]
    _terminal: IO[bytes] | None = None
    """Legroom's end of the worker's pseudo-terminal, which must stay open as long as the worker runs."""

    def running_line(self, pid: int | None = None) -> str:
        pid = pid or self._server.pid(self._number, wait=False)
        return "" if pid is None else running_line(pid, self.folder.name)

    def send(self, request: object) -> None:
        try:
            self._pipe.send(request)
        except OSError:
            raise EOFError from None

    def receive(self, timeout: float) -> Any:
        try:
            return self._pipe.recv() if self._pipe.poll(timeout) else None
        except OSError:  # the process was killed before it read a request
            raise EOFError from None

    @property
    def output(self) -> str:
        return self._server.output + _content(self._output)

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines else ""

    @property
    def exit_code(self) -> int:
        return self._server.exit_code(self._server.pid(self._number))

    def kill(self) -> None:
        pid = self._server.pid(self._number, wait=False)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._server.exit_code(pid)

    def close(self) -> None:
        self._pipe.close()
        self.kill()
        self._output.close()
        if self._terminal is not None:
            self._terminal.close()
        with contextlib.suppress(OSError):
            self.folder.cleanup()


def _content(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


_STARTUP_PREFIXES = ("PYTHON", "TORCH", "PYTORCH", "OMP", "MKL", "LD")


def startup_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_STARTUP_PREFIXES)}
