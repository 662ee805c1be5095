"""Writes a study to Weights & Biases, with one run per trial and all runs in one group. The log is offline by
default, and `wandb sync` uploads it later."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from legroom.tuning.loggers.common import Logger, memory_figures, plain_config
from legroom.tuning.loggers.packages import check_wandb, start_wandb_run
from legroom.tuning.trial.records import TrialRecord, TrialState

if TYPE_CHECKING:
    from wandb import Run


class WandbLog(Logger):
    """Writes one run per trial to `folder`/wandb. The runs belong to the group `group` of `project`. If `mode` is
    None, the environment variable `WANDB_MODE` determines the mode. If it is not set, the runs are offline."""

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
        check_wandb()
        self._project, self._folder, self._group = project, Path(folder), group
        self._mode = mode
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
        if record.number not in self._runs:
            self._runs[record.number] = start_wandb_run(
                self._folder,
                name=f"trial {record.number}",
                mode=self._mode,
                config=plain_config(record),
                project=self._project,
                group=self._group,
            )
        return self._runs[record.number]
