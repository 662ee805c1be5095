"""`legroom run --log`: logs the memory of each step to TensorBoard or Weights & Biases, and attaches the report.

The thread that writes the capture also writes the values, so steps are not slowed down. If a log cannot be written, one
warning is printed, and the script continues.
"""

import sys
import tempfile
import textwrap
import threading
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from legroom.diagnose.report.run_report import RunReport
from legroom.errors import UsageError
from legroom.memory.events import Event, Step
from legroom.show.common.terminal import render_to_string
from legroom.show.report.run_report import format_verdict, render_report
from legroom.tuning.loggers.packages import (
    FailSafeLog,
    check_tensorboard,
    check_wandb,
    start_wandb_run,
    summary_writer,
)
from legroom.units import MiB

TENSORBOARD, WANDB = "tensorboard", "wandb"


def check_log(value: str) -> None:
    """Check the value of `--log`. Raises UsageError or MissingExtra if the log cannot be written."""
    kind, separator, folder = value.partition(":")
    if kind not in (TENSORBOARD, WANDB) or (separator and (kind == WANDB or not folder)):
        raise UsageError(
            f"`{value}` is not a valid log. Use `--log tensorboard`, `--log tensorboard:DIR` or `--log wandb`."
        )
    if folder and Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"{folder} is not a directory. Specify another one: `--log tensorboard:DIR`.")
    check_tensorboard() if kind == TENSORBOARD else check_wandb()


def open_log(value: str, *, capture: Path, several_gpus: bool) -> "MemoryLog":
    """Return the log that the value of `--log` specifies. By default, the log is in the folder of the capture."""
    kind, _, folder = value.partition(":")
    if kind == WANDB:
        return WandbMemoryLog(capture.absolute(), several_gpus)
    return TensorBoardMemoryLog(Path(folder) if folder else capture.with_suffix(".tensorboard"), several_gpus)


class MemoryLog(FailSafeLog):
    """Logs the memory of each step. `add` may be called from any thread."""

    subject = "The script"
    sentence: str

    def __init__(self, several_gpus: bool) -> None:
        """With `several_gpus`, the name of each value contains the index of the GPU."""
        super().__init__()
        self._several_gpus = several_gpus
        self._started = time.time()
        self._pending: deque[Step] = deque()
        self._lock = threading.Lock()

    def add(self, events: Iterable[Event]) -> None:
        self._pending.extend(event for event in events if isinstance(event, Step))

    def write(self) -> None:
        """Write the steps that were collected so far. If another thread is already writing, the steps stay pending
        until the next call.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._write_pending()
            finally:
                self._lock.release()

    def _write_pending(self) -> None:
        while self._pending:
            self._try(partial(self.write_step, self._pending.popleft()))

    def close(self, report: RunReport | None, capture: Path | None) -> None:
        with self._lock:
            self._write_pending()
            if report is not None:
                self._try(partial(self.attach, report, capture))
            self._try(self.close_log)

    def write_step(self, step: Step) -> None:
        raise NotImplementedError

    def attach(self, report: RunReport, capture: Path | None) -> None:
        raise NotImplementedError

    def close_log(self) -> None:
        raise NotImplementedError

    def _values(self, step: Step) -> dict[str, float]:
        group = f"memory/gpu{step.device}" if self._several_gpus else "memory"
        return {
            f"{group}/allocated_mib": step.allocated / MiB,
            f"{group}/reserved_mib": step.reserved / MiB,
            f"{group}/peak_allocated_mib": step.peak_allocated / MiB,
            f"{group}/peak_reserved_mib": step.peak_reserved / MiB,
        }


class TensorBoardMemoryLog(MemoryLog):
    """Writes a TensorBoard log to `folder`, which is created when the first step ends."""

    name = "The TensorBoard log"

    def __init__(self, folder: Path, several_gpus: bool) -> None:
        super().__init__(several_gpus)
        self._folder = folder.absolute()  # the script may change the working directory
        self._writer: Any = None
        self.sentence = f"Logging to TensorBoard in {folder}."

    def write_step(self, step: Step) -> None:
        for name, value in self._values(step).items():
            self._open().add_scalar(name, value, step.step, walltime=self._started + step.time)

    def attach(self, report: RunReport, capture: Path | None) -> None:
        text = render_to_string(render_report(report))
        self._open().add_text("legroom report", textwrap.indent(text, "    "))  # Markdown: keeps the columns

    def close_log(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Any:
        if self._writer is None:
            self._writer = summary_writer(self._folder)
        return self._writer


class WandbMemoryLog(MemoryLog):
    """Adds the memory to the script's own wandb run. If the script has no run when its first step ends, a new run is
    started.

    The values are added to the next row that the script logs. A separate row would change the step numbers of the
    script.
    """

    name = "The wandb log"
    sentence = "Logging to wandb."

    def __init__(self, capture: Path, several_gpus: bool) -> None:
        super().__init__(several_gpus)
        self._capture = capture
        self._run: Any = None
        self._is_own = False
        """Whether Legroom started or resumed the run, and must finish it."""
        self._is_new = False

    def write_step(self, step: Step) -> None:
        run, values = self._open(), self._values(step)
        if self._is_new:
            run.log(values, step=step.step)
        else:
            run.log({**values, "memory/step": step.step}, commit=self._is_own)

    def attach(self, report: RunReport, capture: Path | None) -> None:
        run = self._open()
        run.summary["legroom"] = format_verdict(report)
        if capture is not None:
            import wandb

            with tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True) as folder:
                page = Path(folder, capture.with_suffix(".html").name)
                page.write_text(_page(capture), encoding="utf-8")
                artifact = wandb.Artifact("legroom-report", type="report")
                artifact.add_file(str(page))
                run.log_artifact(artifact)

    def close_log(self) -> None:
        if self._is_own:
            self._run.finish()

    def _open(self) -> Any:
        """Return the script's active run. If the script has already closed its run, open the run again."""
        if self._is_own:
            return self._run
        active, last = _run_of_script(), self._run
        if active is None:
            same = (
                {}
                if last is None
                else {"id": last.id, "project": last.project, "entity": last.entity, "resume": "allow"}
            )
            name = self._capture.stem if last is None else None
            active = start_wandb_run(self._capture.parent, name=name, **same)
            self._is_own, self._is_new = True, last is None
        self._run = active
        return active


def _run_of_script() -> Any:
    return getattr(sys.modules.get("wandb"), "run", None)


def _page(capture: Path) -> str:
    from legroom.diagnose.report.run_figures import figures_from_capture
    from legroom.memory.capture.capture import read_capture
    from legroom.show.report.html_report.page_writer import page

    return page(figures_from_capture(read_capture(capture), path=str(capture)))
