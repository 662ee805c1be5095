"""Workers for systems that cannot fork. Each worker is a new process that imports torch and runs the script.

A new process runs the script up to the first batch, and then traces it once. The first process that runs a script also
handles the first request. While a script runs, another process already imports torch, because nearly every estimate
needs more than one trace.
"""

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from legroom.gpus.machine import processors
from legroom.predict.tracing.pause_gc import gc_paused_during_imports
from legroom.predict.tracing.running_line import running_line
from legroom.predict.tracing.terminal import open_terminal
from legroom.predict.tracing.workers.forked import MAX_TRACES, startup_settings
from legroom.processes import SpawnedProcess


class SpawnedWorkers:
    """Starts the worker processes. One process is always started in advance."""

    def __init__(self) -> None:
        self.settings = startup_settings()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._outputs = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
        self._count = 0
        self._spare: _Spawned | None = self._spawn()

    def is_usable(self) -> bool:
        return self._owner == os.getpid() and self.settings == startup_settings()

    def start(self, job: dict[str, Any], environment: Mapping[str, str] | None = None) -> "RepeatedScript":
        """Start a worker with the environment variables of this process, updated with `environment`."""
        return RepeatedScript(
            self, {**job, "environment": {**os.environ, **(environment or {})}, "cwd": os.getcwd()}
        )

    def process(self) -> "_Spawned":
        with self._lock:
            process, self._spare = self._spare or self._spawn(), self._spawn()
            return process

    def close(self) -> None:
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._spare is not None:
                self._spare.close()
                self._spare = None
        self._outputs.cleanup()

    def _spawn(self) -> "_Spawned":
        self._count += 1
        return _Spawned(Path(self._outputs.name) / f"output-{self._count}")


class _Spawned:
    def __init__(self, output: Path) -> None:
        self._output = output
        terminal = open_terminal()
        self._terminal = None if terminal is None else terminal[0]
        """Legroom's end of the worker's pseudo-terminal, which must stay open as long as the worker runs."""
        stdin = subprocess.DEVNULL if terminal is None else terminal[1]
        self.process = SpawnedProcess(f"{__name__}:work", stdin=stdin, output=output)
        if terminal is not None:
            os.close(stdin)
        self.request: dict[str, Any] | None = None
        """The request that the process traces, or will trace when the script reaches its first batch."""

    def begin(self, job: dict[str, Any]) -> None:
        with contextlib.suppress(
            OSError, EOFError
        ):  # it has exited; receiving the first reply raises EOFError
            self.process.pipe.send(job)

    @property
    def output(self) -> str:
        return self._output.read_text("utf-8", "replace") if self._output.exists() else ""

    def close(self) -> None:
        self.process.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None


class RepeatedScript:
    """Traces a script by starting a new process for each trace. Requests and replies have the same format as those of a
    forked worker.
    """

    def __init__(self, workers: SpawnedWorkers, job: dict[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
        self._workers, self._job = workers, {**job, "folder": os.path.realpath(self.folder.name)}
        self._lock = threading.Lock()
        self._first = self._start()
        self._running = [self._first]
        self._is_ready = False
        self._shown = self._first
        self._requests: list[dict[str, Any]] = []
        self._replies: deque[dict[str, Any]] = deque()
        self._is_killed = False

    def _start(self) -> _Spawned:
        process = self._workers.process()
        process.begin(self._job)
        return process

    def running_line(self, pid: int | None = None) -> str:
        return running_line(pid or self._first.process.pid, self.folder.name)

    def send(self, request: dict[str, Any]) -> None:
        if self._is_killed:
            raise EOFError
        self._requests.append(request)
        self._dispatch()

    def receive(self, timeout: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + timeout
        while not self._replies:
            running = {}
            for each in list(self._running):
                try:
                    running[each.process.pipe] = each
                except EOFError:
                    self._exited(each)
            if not running and not self._replies:
                raise EOFError
            left = deadline - time.monotonic()
            ready = wait(list(running), max(0.0, left))
            for pipe in ready:
                self._read(running[pipe])  # type: ignore[index]
            if not ready and left <= 0 and not self._replies:
                return None
        return self._replies.popleft()

    def _read(self, process: _Spawned) -> None:
        try:
            message = process.process.pipe.recv()
        except (EOFError, OSError):
            self._exited(process)
            return
        if process is self._first:
            self._replies.append(message)
            self._is_ready = message["event"] == "ready"
            self._dispatch()
        elif message["event"] == "ready" and process.request is not None:
            self._trace(process, process.request)

    def _trace(self, process: _Spawned, request: dict[str, Any]) -> None:
        process.request = request
        self._replies.append({"event": "started", "number": request["number"], "pid": process.process.pid})
        with contextlib.suppress(OSError, EOFError):  # its exit is received next
            process.process.pipe.send(request)

    def _exited(self, process: _Spawned) -> None:
        self._running.remove(process)
        self._shown = process
        if process.request is not None:
            self._replies.append({"event": "done", "number": process.request["number"]})
        process.close()
        self._dispatch()

    def _dispatch(self) -> None:
        self._requests.sort(key=lambda request: not request["urgent"])
        if self._requests and self._is_ready:
            self._is_ready = False
            self._trace(self._first, self._requests.pop(0))
        while self._requests and len(self._running) < min(MAX_TRACES, processors()) and not self._is_killed:
            process = self._start()
            process.request = self._requests.pop(0)
            with self._lock:
                self._running.append(process)
                if self._is_killed:  # by another thread
                    process.process.kill()

    @property
    def output(self) -> str:
        return self._shown.output

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines else ""

    @property
    def exit_code(self) -> int:
        return self._first.process.wait() or 0

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            for process in list(self._running):
                process.process.kill()

    def close(self) -> None:
        self.kill()
        for process in self._running:
            process.close()
        with contextlib.suppress(OSError):
            self.folder.cleanup()


def work(pipe: "Connection[Any, Any]") -> None:
    with gc_paused_during_imports(lambda: True):
        from legroom.predict.tracing.process import run_job
    try:
        job = pipe.recv()
    except (EOFError, OSError):
        return
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    run_job(job, pipe)
