"""Writes a study to Weights & Biases, with one run per trial and all runs in one group. The log is offline by
default, and `wandb sync` uploads it later."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from legroom.errors import MissingExtra
from legroom.tuning.loggers.common import Logger, memory_figures, plain_config
from legroom.tuning.trial.records import TrialRecord, TrialState

if TYPE_CHECKING:
    from wandb import Run


SECONDS_TO_START = 120.0
"""The timeout in seconds for the start of wandb's service process. The timeout is long because trials may use all CPU
cores."""


class WandbLog(Logger):
    """Writes the runs of `project` in the group `group` to `folder`/wandb. If `mode` is None, `WANDB_MODE` determines
    the mode. The default is offline."""

    name = "The wandb log"

    def __init__(
        self,
        project: str,
        folder: str | Path,
        *,
        group: str = "study",
        mode: Literal["offline", "online"] | None = None,
    ) -> None:
        super().__init__()
        try:
            import wandb  # noqa: F401  (fails early if it is missing)
        except ImportError:
            raise MissingExtra("wandb", "log") from None
        self._project, self._folder, self._group = project, Path(folder), group
        self._mode: Any = mode or os.environ.get("WANDB_MODE", "offline")
        self._runs: dict[int, Run] = {}

    def write_report(self, record: TrialRecord, index: int) -> None:
        report = record.reports[index]
        self._run(record).log({**report.metrics, **memory_figures(record)}, step=report.step)

    def end(self, record: TrialRecord) -> None:
        run = self._run(record)
        run.summary.update({"state": str(record.state), "reason": record.reason, **memory_figures(record)})
        failed = record.state in (TrialState.FAILED, TrialState.OUT_OF_MEMORY)
        self._runs.pop(record.number).finish(exit_code=int(failed))

    def close(self) -> None:
        while self._runs:
            self._runs.popitem()[1].finish()

    def _run(self, record: TrialRecord) -> "Run":
        """Return the wandb run of a trial. Several runs are open at the same time, so each run is created with
        `reinit="create_new"`."""
        import wandb

        if record.number not in self._runs:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._runs[record.number] = wandb.init(
                project=self._project,
                group=self._group,
                name=f"trial {record.number}",
                dir=str(self._folder),
                mode=self._mode,
                config=plain_config(record),
                reinit="create_new",
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    save_code=False,
                    x_service_wait=SECONDS_TO_START,
                ),
            )
        return self._runs[record.number]
