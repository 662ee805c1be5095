"""Starts the process that traces a script, and exchanges messages with it.

A trace patches torch and forks, so it runs in a separate process. That process prints to a file, so that its output
does not mix with Legroom's and can be shown if it fails. This module does not import torch. The new process imports it
while the caller continues.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Literal

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution.cudnn_process import check_setting
from legroom.observe.script import Script
from legroom.predict.tracing.running_line import running_line
from legroom.predict.tracing.terminal import open_terminal

EXIT_TIMEOUT = 2.0
"""Seconds that a process has to exit before it is killed."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A process that receives requests and sends replies."""

    _process: subprocess.Popen[bytes]
    _pipe: "Connection[Any, Any]"
    _output: IO[bytes]
    folder: tempfile.TemporaryDirectory[str]
    """A scratch folder for the process and for its replies; removed when it is closed."""
    _terminal: IO[bytes] | None = None
    """Our end of its terminal, which exists as long as this is open."""

    def running_line(self, pid: int | None = None) -> str:
        """The line of the user's code that the process (or its fork `pid`) is running; "" if unknown."""
        return running_line(pid or self._process.pid, self.folder.name)

    def send(self, request: object) -> None:
        """Send a request. Raises `EOFError` if the process has exited."""
        try:
            self._pipe.send(request)
        except OSError:
            raise EOFError from None

    def start(self, job: dict[str, Any]) -> None:
        """Send the first message."""
        with contextlib.suppress(EOFError):  # it failed to start; the first reply raises
            self.send({**job, "folder": os.path.realpath(self.folder.name)})

    def receive(self, timeout: float) -> Any:
        """The next reply, or None after `timeout` seconds. Raises `EOFError` if the process has exited."""
        try:
            return self._pipe.recv() if self._pipe.poll(timeout) else None
        except OSError:  # the process was killed with a request unread
            raise EOFError from None

    @property
    def output(self) -> str:
        """Everything that the process has printed."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line that the process printed, or ""."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines else ""

    @property
    def exit_code(self) -> int:
        """The exit code of a process that has exited."""
        return self._process.wait()

    def kill(self) -> None:
        """Kill the process and every process that it started. A caller that waits for a reply gets `EOFError`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def close(self) -> None:
        """Close the pipe, which makes the process exit, and kill it if it does not."""
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=EXIT_TIMEOUT)
        self.kill()
        self._output.close()
        if self._terminal is not None:
            self._terminal.close()
        with contextlib.suppress(OSError):
            self.folder.cleanup()


def start_tracing(
    script: Script,
    gpu: GpuSpec,
    *,
    mode: Literal["fake", "cpu"] = "fake",
    steps: int = 2,
    environment: Mapping[str, str] | None = None,
    gpus: Sequence[GpuSpec] = (),
    local_rank: int = 0,
    edits: Mapping[str, str] | None = None,
    prepared: WorkerProcess | None = None,
    seconds: float | None = None,
) -> WorkerProcess:
    """Run `script` up to its first batch in a process that then waits for requests (see `process`).

    `gpus`: all GPUs that are visible to the script, if there are several. The GPU of `local_rank` is traced. `edits`: the
    new content of files of the script. Only the new process sees it. `prepared`: the process to use (see `prepare_tracing`).
    `seconds`: the time limit of a trace, in addition to that of `process`.
    """
    check_setting()
    job = {
        "script": script, "gpu": gpu, "mode": mode, "steps": steps, "gpus": tuple(gpus) or (gpu,),
        "local_rank": local_rank, "edits": dict(edits or {}), "environment": dict(environment or {}),
        "seconds": seconds,
    }  # fmt: skip
    if prepared is None:
        return start_worker(_TRACING, job, environment)
    prepared.start(job)
    return prepared


def prepare_tracing(environment: Mapping[str, str] | None = None) -> WorkerProcess:
    """Start a process for a later `start_tracing`. It imports torch meanwhile."""
    return _start(_TRACING, environment)


_TRACING = "legroom.predict.tracing.main"


def start_worker(
    module: str, job: dict[str, Any], environment: Mapping[str, str] | None = None
) -> WorkerProcess:
    """Run a module with the descriptor of a pipe as its argument. The first message is `job`, with a scratch `folder`.

    `environment`: variables in addition to those of this process.
    """
    worker = _start(module, environment)
    worker.start(job)
    return worker


def _start(module: str, environment: Mapping[str, str] | None) -> WorkerProcess:
    folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
    output = tempfile.TemporaryFile("w+b")  # noqa: SIM115  (open as long as the process runs)
    # Not `multiprocessing.Process`: the script must be `__main__` of an interpreter that imported nothing of ours.
    ours, theirs = Pipe()
    terminal = open_terminal()
    process = subprocess.Popen(
        # -u: output and errors appear in the order in which they were printed.
        [sys.executable, "-u", "-m", module, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL if terminal is None else terminal[1],
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    theirs.close()
    if terminal is not None:
        os.close(terminal[1])
    return WorkerProcess(
        process, ours, output, folder, None if terminal is None else open(terminal[0], "rb", 0)
    )
