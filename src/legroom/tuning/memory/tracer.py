"""The client of the tracing process (`tracing_process`), which traces the memory requests of a configuration."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution.cudnn_process import check_setting
from legroom.tuning.engines.fork_server import ServerGone, StudyProcess, fork_server
from legroom.tuning.memory.admission import TrialGpu
from legroom.tuning.space.domains import AnyDomain
from legroom.tuning.space.space import Config
from legroom.tuning.trial.function import TrainFunction

OUTPUT = "output.txt"
"""The file for the output of the tracing process. If the process dies, the last line of this file is reported."""
SUGGESTED = "suggested:"
TIMEOUT, BACKGROUND_TIMEOUT = 120.0, 600.0
"""The maximum duration in seconds of an urgent trace, and of a trace in the background. After a timeout, the trial
runs without an estimate.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceResult:
    """The result of one trace. Sizes are the bytes that PyTorch reserves, without the CUDA context."""

    reserved: int
    safe: int
    fits: tuple[bool, ...]
    """Whether the memory requests, plus a margin for uncertain allocations, fit on each GPU."""
    batch_size: int | None
    min_micro_batch: int
    """The smallest micro-batch, in samples, that the function accepts."""
    can_split: bool
    request_hash: str
    """A hash of the memory requests. Two configurations have the same hash if they request the same memory in the same
    order.
    """
    seconds: float


class CannotEstimate(Exception):  # noqa: N818
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerSetup:
    """The settings of the tracing process, as plain data that can be pickled."""

    function: TrainFunction
    capacities: list[int]
    gpu: GpuSpec
    virtual: bool
    ranks: int
    folder: str
    """A temporary folder for the output of the tracing process and for all files that the training function writes."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request for one trace."""

    config: Config
    micro_batch: int | None
    checkpoint: str | None
    urgent: bool

    @property
    def timeout(self) -> float:
        return TIMEOUT if self.urgent else BACKGROUND_TIMEOUT


class Tracer:
    def __init__(self, function: TrainFunction, gpus: Sequence[TrialGpu], ranks: int) -> None:
        if not gpus[0].virtual:
            check_setting()
        self.gpus = list(gpus)
        self._folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
        self._setup = TracerSetup(
            function=function,
            capacities=[gpu.available for gpu in gpus],
            gpu=gpus[0].spec,
            virtual=gpus[0].virtual,
            ranks=ranks,
            folder=self._folder.name,
        )
        self._server = fork_server(function)  # the server starts importing now
        self._process: StudyProcess | None = None
        self._is_ready = False
        self._is_killed = False

    def trace(
        self, config: Config, micro_batch: int | None, checkpoint: str | None = None, *, urgent: bool
    ) -> TraceResult:
        """Trace two steps of a configuration. Raises `CannotEstimate` if the trace fails. Running trials have priority
        unless `urgent` is set.
        """
        reply = self._traced(TraceRequest(config, micro_batch, checkpoint, urgent))
        reply = {name: value for name, value in reply.items() if not name.startswith(SUGGESTED)}
        if "error" in reply or "reserved" not in reply:
            raise CannotEstimate(reply.get("error", "the tracing process failed"))
        del reply["done"]
        return TraceResult(**reply)

    def suggestions(self, config: Config) -> dict[str, AnyDomain]:
        reply = self._traced(TraceRequest(config, None, None, True))
        found = {name: value for name, value in reply.items() if name.startswith(SUGGESTED)}
        if not found and "error" in reply:
            raise CannotEstimate(reply["error"])
        return {name.removeprefix(SUGGESTED): domain for name, domain in found.items()}

    def _traced(self, request: TraceRequest) -> dict[str, Any]:
        pipe, reply = self._ready_process().pipe, dict[str, Any]()
        try:
            try:
                pipe.send(request)
            except OSError:
                raise self._process_ended() from None
            while "done" not in reply:
                reply.update(self._reply(pipe, request.timeout + 10))
        finally:
            if self._server is None:
                self._replace_process()
        return reply

    def _replace_process(self) -> None:
        """Start the process of the next trace. A process that was not forked can trace only once. The new process
        imports its modules while the study continues.
        """
        if self._process is not None:
            self._process.kill()
            self._process, self._is_ready = None, False
        if not self._is_killed:
            self._start_process()

    def kill(self) -> None:
        """Kill the process and its children. If a trace is running, the trace fails."""
        self._is_killed = True
        if self._process is not None:
            self._process.exit_code(kill=True)

    def close(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.pipe.close()
        self._folder.cleanup()

    def _ready_process(self) -> StudyProcess:
        process = self._process or self._start_process()
        if not self._is_ready:
            self._reply(process.pipe, TIMEOUT)
            self._is_ready = True
        if self._is_killed:
            raise self._process_ended()
        return process

    def _start_process(self) -> StudyProcess:
        try:
            self._process = StudyProcess.start(self._server, self._setup)
        except ServerGone as gone:
            raise CannotEstimate(str(gone)) from None
        return self._process

    def _reply(self, pipe: Connection, timeout: float) -> dict[str, Any]:
        try:
            if not pipe.poll(timeout):
                raise CannotEstimate(f"the tracing process did not respond for {timeout:.0f} s")
            reply: dict[str, Any] = pipe.recv()
        except (EOFError, OSError):
            raise self._process_ended() from None
        return reply

    def _process_ended(self) -> CannotEstimate:
        output = Path(self._folder.name) / OUTPUT
        lines = output.read_text(errors="replace").strip().splitlines() if output.exists() else []
        return CannotEstimate(lines[-1].strip() if lines else "the tracing process exited")
