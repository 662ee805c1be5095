"""Traces an unmodified script in a separate process."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom.errors import LegroomError
from legroom.gpus.catalog import GpuSpec
from legroom.memory.capture.capture import read_capture
from legroom.observe.source.batch_setting import BatchSetting
from legroom.predict.options.names import MemoryOption
from legroom.predict.tracing.trace import NOT_TRACED, Mode, Trace
from legroom.predict.tracing.worker_process import WorkerProcess
from legroom.units import format_size

REPORT_SECONDS = 3.0


class CannotTrace(LegroomError):  # noqa: N818
    """Raised if a script could not be traced. `output` is the text that the script printed. `needs_data` means that the
    script may succeed with real values. `error` is the script's error. `reserved` is the number of bytes of device
    memory that the script needed before the error.
    """

    def __init__(
        self, message: str, *, output: str = "", needs_data: bool = False, error: str = "", reserved: int = 0
    ) -> None:
        super().__init__(message)
        self.output = output
        self.needs_data = needs_data
        self.error = error
        self.reserved = reserved


class OutOfTime(CannotTrace):
    pass


class TracedScript:
    """A script that has run up to its first batch, and can be traced several times from there, even in parallel."""

    def __init__(
        self,
        process: WorkerProcess,
        gpu: GpuSpec,
        *,
        mode: Mode = "fake",
        timeout: float = 300,
        on_wait: Callable[[float, str], None] = lambda seconds, line: None,
    ) -> None:
        """Trace the script that `process` runs. `on_wait(seconds, line)` is called every few seconds during a wait,
        with the line that the script is running.
        """
        self._process, self._gpu, self._mode, self._timeout = process, gpu, mode, timeout
        self._on_wait = on_wait
        self._count = 0
        self._done: set[int] = set()
        self._forks: dict[int, int] = {}
        """Maps the number of each trace (1, 2 and so on) to the process id of the fork that runs it."""
        reply = self._reply(waits_for="reach its first batch")
        self._ended = reply if reply["event"] == "ended" else None
        self.settings: list[BatchSetting] = reply.get("settings", [])
        self.shapes: list[tuple[int, ...]] = reply.get("shapes", [])
        """The shapes of the arguments of the first model call, if the script has no DataLoader."""
        self.batch_size: int | None = reply.get("batch_size")
        """The batch size of the DataLoader, or None if it is unknown."""

    def start(
        self,
        batch_size: int | None = None,
        options: Sequence[MemoryOption] = (),
        *,
        urgent: bool = True,
        with_uncertainty: bool = True,
    ) -> "PendingTrace":
        """Start a trace from the first batch. If a trace is not `urgent`, it starts after all urgent traces.

        With `with_uncertainty=False`, `Trace.uncertain_bytes` stays 0, because computing it takes time.
        """
        if self._ended is not None:
            raise self._failure(self._ended)
        self._count += 1
        path = Path(self._process.folder.name) / f"trace-{self._count}.legroom"
        request = {
            "number": self._count, "path": str(path), "batch_size": batch_size, "urgent": urgent,
            "options": list(options), "with_uncertainty": with_uncertainty,
        }  # fmt: skip
        try:
            self._process.send(request)
        except EOFError:
            raise self._exited() from None
        return PendingTrace(self, self._count, path)

    def trace(self, batch_size: int | None = None, options: Sequence[MemoryOption] = ()) -> Trace:
        """Start a trace and wait for its result. Raises `CannotTrace` if the trace fails."""
        return self.start(batch_size, options).result()

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> "TracedScript":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def await_trace(self, pending: "PendingTrace", timeout: float | None = None) -> Trace:
        while pending.number not in self._done:
            reply = self._reply(timeout, pending.number)
            if reply["event"] == "started":
                self._forks[reply["number"]] = reply["pid"]
            else:
                self._done.add(reply["number"])
                self._forks.pop(reply["number"], None)
        if not pending.path.exists():
            raise CannotTrace(
                "The process that runs the script exited unexpectedly during the trace.",
                output=self._process.output,
            )
        capture = read_capture(pending.path)
        pending.path.unlink()
        result = capture.run
        is_inference = (
            result["outcome"] in ("finished", "stopped")
            and (not result["trains"] or result["is_partial"])
            and result["reserved"]
        )
        if result["outcome"] in ("failed", "needs data") or not (result["steps"] or is_inference):
            raise self._failure(result)
        if not result["reserved"]:
            raise CannotTrace(
                "The script used no GPU memory, so there is nothing to estimate. "
                'Move the model to "cuda", or pass the script argument that selects the GPU.',
                output=self._process.output,
            )
        return Trace(
            gpu=self._gpu,
            mode=self._mode,
            events=capture.events,
            steps=result["steps"],
            trains=result["trains"],
            batch_size=result["batch_size"],
            uncertain_bytes=result["uncertain_bytes"],
            alternatives={int(id): tuple(sizes) for id, sizes in result["alternatives"].items()},
            optional=set(result["optional"]),
            values_substituted=result["values_substituted"],
            differing_versions=result["differing_versions"],
            notes=result["notes"],
            validation_starts=result["validation_starts"],
            first_batch=result["first_batch"],
            is_settled=result["is_settled"],
            is_finished=result["is_finished"],
            is_partial=result["is_partial"],
            untraced_evaluation=result["untraced_evaluation"],
            validates=result["validates"],
        )

    def _reply(
        self, timeout: float | None = None, number: int = 0, waits_for: str = "finish its steps"
    ) -> dict[str, Any]:
        timeout = self._timeout if timeout is None else max(0.0, timeout)
        started = time.monotonic()
        line = ""
        while True:
            seconds = time.monotonic() - started
            try:
                reply: dict[str, Any] | None = self._process.receive(
                    max(0.0, min(REPORT_SECONDS, timeout - seconds))
                )
            except EOFError:
                raise self._exited() from None
            if reply is not None:
                return reply
            seconds = time.monotonic() - started
            line = self._process.running_line(self._forks.get(number)) or line
            if seconds >= timeout:
                raise OutOfTime(
                    f"The script did not {waits_for} within {timeout:.0f} seconds.{f' The script was at {line}.' if line else ''}",
                    output=self._process.output,
                )
            self._on_wait(seconds, line)

    def _exited(self) -> CannotTrace:
        return CannotTrace(
            f"The script's process exited before the first batch (exit code {self._process.exit_code}).",
            output=self._process.output,
        )

    def _failure(self, result: dict[str, Any]) -> CannotTrace:
        error, needs_data = str(result["error"]), result["outcome"] == "needs data"
        memory = (
            f"The script needed {format_size(result['reserved'] + self._gpu.context)} up to that point."
            if result["reserved"]
            else "The script had used no GPU memory."
        )
        if needs_data:
            message = f"The script needs real tensor values, which tracing does not provide ({error})"
        elif result["outcome"] == "failed" and not result["is_own_failure"]:
            needs_data = True
            reason = error or self._process.last_line or f"exit code {result['exit_code']}"
            message = f"The script could not be traced ({reason.rstrip('.')})"
        elif result["outcome"] == "failed":
            after = _count(result["steps"], "step", "steps")
            reason = error or self._process.last_line or f"exit code {result['exit_code']}"
            message = f"The script failed after {after}: {reason.rstrip('.')}. {memory}"
            if _NEEDS_GPU.search(error):
                message += " This code requires a real GPU, so the code after it cannot be estimated."
            if "EOFError" in error:
                message += " Under `legroom estimate`, a script cannot read standard input."
            if not error and result["exit_code"] == 2:  # the exit code of argparse
                message += " Put the script's arguments after its name."
        else:
            batches = f"after {_count(result['batches'], 'batch', 'batches')} " if result["batches"] else ""
            message = f"The script ended {batches}without an optimizer step, so there is no step to estimate. {memory}"
            message += "".join(f" {note}." for note in result["notes"] if note.startswith(NOT_TRACED))
        return CannotTrace(
            message,
            output=self._process.output,
            needs_data=needs_data,
            error=error or f"exit code {result['exit_code']}",
            reserved=result["reserved"],
        )


@dataclass(frozen=True, slots=True)
class PendingTrace:
    """A trace that may still be running."""

    script: TracedScript
    number: int
    path: Path

    def result(self, timeout: float | None = None) -> Trace:
        """Wait for the trace. Raises `CannotTrace` if the trace fails, and `OutOfTime` after `timeout` seconds."""
        return self.script.await_trace(self, timeout)


_NEEDS_GPU = re.compile(r"CUDA tensor|is_cuda|active driver|No module named 'triton'", re.IGNORECASE)
"""Parts of the error messages that extensions and Triton raise on a machine without a GPU."""


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
