"""Starts the processes that trace scripts, and exchanges messages with them.

A trace patches torch and cannot undo everything that a script does, so each trace runs in a separate process. Each
process prints to a file, so its output does not mix with Legroom's output and can be shown if the process fails. On
systems that can fork, workers are forks (see `workers.forked`). On other systems, each worker is a new process (see
`workers.spawned`).
"""

import atexit
import threading
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution.cudnn_process import check_setting
from legroom.observe.script import Script
from legroom.predict.tracing.workers.forked import ForkedWorkers
from legroom.predict.tracing.workers.spawned import SpawnedWorkers
from legroom.processes import can_fork


class WorkerProcess(Protocol):
    @property
    def folder(self) -> "TemporaryDirectory[str]":
        """A scratch folder for the process and its replies. The folder is removed when the process is closed."""

    def running_line(self, pid: int | None = None) -> str:
        """Return the line of the user's code that is running in this process or in the process `pid` of a trace.
        Return "" if the line is unknown.
        """

    def send(self, request: dict[str, Any]) -> None:
        """Send a request. Raises `EOFError` if the process has exited."""

    def receive(self, timeout: float) -> Any:
        """Return the next reply, or None after `timeout` seconds. Raises `EOFError` if the process has exited."""

    @property
    def output(self) -> str: ...

    @property
    def last_line(self) -> str: ...

    @property
    def exit_code(self) -> int:
        """The exit code of the process. Reading the exit code waits until the process has exited."""

    def kill(self) -> None:
        """Kill the process and every process that it started. A caller that waits for a reply gets `EOFError`."""

    def close(self) -> None: ...


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
    seconds: float | None = None,
) -> WorkerProcess:
    """Run `script` up to its first batch in a process that then waits for requests (see `process`).

    `gpus` contains all GPUs that are visible to the script. The trace uses the GPU with the index `local_rank`. `edits`
    maps files of the script to their new content. Only the new process sees the new content, and the files on disk do
    not change. `seconds` is a time limit for a trace, in addition to the limits in `process`.
    """
    check_setting()
    job = {
        "script": script, "gpu": gpu, "mode": mode, "steps": steps, "gpus": tuple(gpus) or (gpu,),
        "local_rank": local_rank, "edits": dict(edits or {}), "seconds": seconds,
    }  # fmt: skip
    return _tracing_workers().start(job, environment)


_workers: dict[bool, ForkedWorkers | SpawnedWorkers] = {}
"""The workers of this process. The key is True for forks and False for new processes."""
_workers_lock = threading.Lock()


def _tracing_workers() -> ForkedWorkers | SpawnedWorkers:
    forks = can_fork()
    with _workers_lock:
        workers = _workers.get(forks)
        if workers is None or not workers.is_usable():
            workers = ForkedWorkers("legroom.predict.tracing.process:run_job") if forks else SpawnedWorkers()
            atexit.register(workers.close)
            _workers[forks] = workers
        return workers
