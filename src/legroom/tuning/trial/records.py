"""The records of trials that engines, searchers, schedulers, the storage and reports share.

States of a trial:

    waiting → running → finished | stopped | failed | out-of-memory
       │         └→ paused → running                (population-based training with more trials than can run)
       └→ never-fits                                 (rejected before it started)

`finished`, `stopped`, `failed`, `out-of-memory` and `never-fits` are final states. A resumed study does not change
them.
"""

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from legroom.tuning.space.space import Config

Mode = Literal["min", "max"]


class TrialState(StrEnum):
    """The state of a trial."""

    WAITING = "waiting"
    """Proposed. Its memory is being estimated, or it waits for free memory."""
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    """The function returned."""
    STOPPED = "stopped"
    """Stopped by the scheduler, by the time budget or because the metric was NaN. Its reports are used."""
    FAILED = "failed"
    """The function raised an exception, or its process died."""
    OUT_OF_MEMORY = "out-of-memory"
    """It started and ran out of memory, even with the largest GPU to itself."""
    NEVER_FITS = "never-fits"
    """Not started: not even its smallest micro-batch fits any GPU."""

    @property
    def is_final(self) -> bool:
        return self not in (TrialState.WAITING, TrialState.RUNNING, TrialState.PAUSED)


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a trial at one step. Steps start at 1."""

    step: int
    metrics: dict[str, float]
    seconds: float = 0.0
    """Seconds since the start of the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMemory:
    """GPU memory of a trial in bytes, including the CUDA context, or None if unknown."""

    predicted: int | None = None
    safe: int | None = None
    """The upper bound: memory was reserved for it."""
    actual: int | None = None
    """The measured peak."""
    batch_size: int | None = None
    micro_batch: int | None = None
    """Samples per micro-batch, or None if the batch was not split."""
    ooms: int = 0
    """The number of out-of-memory errors from which the trial recovered."""
    shortage: float = 0.0
    """For a trial that never fits: the missing memory as a fraction of the largest GPU."""
    used_by_others: int = 0
    """Bytes used by other programs, if the batch was split only for that reason."""

    @property
    def bound(self) -> int | None:
        """The predicted upper bound, or None if the estimate failed and the trial ran alone on a GPU."""
        return self.safe if self.predicted else None


@dataclass(slots=True, kw_only=True)
class TrialRecord:
    """The current state of one trial."""

    number: int
    config: Config
    known_results: int = 0
    """Number of results that the searcher knew when it proposed this configuration."""
    state: TrialState = TrialState.WAITING
    reason: str = ""
    """One line with the reason why it stopped, failed, was split or never started."""
    reports: list[Report] = field(default_factory=list)
    memory: TrialMemory = field(default_factory=TrialMemory)
    gpu: str = ""
    """Where it ran: `cuda:1`, `virtual 0`, `cpu`."""
    started: float | None = None
    ended: float | None = None
    """Seconds since the start of the study."""
    attempts: int = 0
    """Number of starts: 1, unless it was interrupted, paused or ran out of memory."""
    checkpoint: str | None = None
    """Path of the checkpoint of its best report."""
    last_checkpoint: str | None = None
    """Path of the latest checkpoint, from which it continues."""
    checkpoint_step: int = 0
    """The step of the latest checkpoint."""
    parent: int | None = None
    """The trial whose checkpoint it last copied (population-based training)."""
    earlier: list[tuple[int, Config]] = field(default_factory=list)
    """Previous configurations, each with its last step (population-based training)."""

    def value(self, metric: str, mode: Mode) -> float | None:
        """Return the best reported value, or None if there is no finite one."""
        best = self.best_report(metric, mode)
        return None if best is None else best.metrics[metric]

    def best_report(self, metric: str, mode: Mode) -> Report | None:
        choose = min if mode == "min" else max
        return choose(self._told(metric), key=lambda report: report.metrics[metric], default=None)

    def last_report(self, metric: str) -> Report | None:
        """Return the latest report with a finite value of the metric."""
        return next(reversed(self._told(metric)), None)

    def _told(self, metric: str) -> list[Report]:
        return [report for report in self.reports if math.isfinite(report.metrics.get(metric, math.nan))]

    def config_at(self, step: int) -> Config:
        """Return the configuration that was used at a step."""
        return next((config for last, config in self.earlier if step <= last), self.config)

    @property
    def step(self) -> int:
        """The latest reported step."""
        return self.reports[-1].step if self.reports else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How a trial ended, as decided by the dispatcher."""

    state: TrialState
    reason: str = ""
    affects_all_trials: bool = False
    """True if every other trial would end in the same way."""
