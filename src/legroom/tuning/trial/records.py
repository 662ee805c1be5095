"""The records of trials, which engines, searchers, schedulers, the storage and reports share.

States of a trial:

    waiting → running → finished | stopped | failed | out-of-memory
       │         └→ paused → running                (population-based training with more trials than can run)
       └→ never-fits                                 (rejected before it started)

`finished`, `stopped`, `failed`, `out-of-memory` and `never-fits` are final states. A resumed study does not change
final states.
"""

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from legroom.tuning.space.space import Config

Mode = Literal["min", "max"]
Objectives = tuple[tuple[str, Mode], ...]
"""The metrics of a study, each with its mode."""


class TrialState(StrEnum):
    WAITING = "waiting"
    """The trial was proposed, and waits for its memory estimate or for free memory."""
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    STOPPED = "stopped"
    """The trial was stopped by the scheduler, by the time budget, or because the metric was NaN. The reports of a
    stopped trial still count as results.
    """
    FAILED = "failed"
    """The function raised an exception, or its process died."""
    OUT_OF_MEMORY = "out-of-memory"
    """The trial started and ran out of memory, even with the largest GPU to itself."""
    NEVER_FITS = "never-fits"
    """The trial was not started, because not even its smallest micro-batch fits any GPU."""

    @property
    def has_failed(self) -> bool:
        """True if the trial raised an exception, died or ran out of memory. A failed trial is never the best trial."""
        return self in (TrialState.FAILED, TrialState.OUT_OF_MEMORY)

    @property
    def is_final(self) -> bool:
        return self not in (TrialState.WAITING, TrialState.RUNNING, TrialState.PAUSED)


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a trial at one step. Steps start at 1."""

    step: int
    metrics: dict[str, float]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMemory:
    """The GPU memory of a trial in bytes, including the CUDA context. A value is None if it is unknown."""

    predicted: int | None = None
    safe: int | None = None
    """The upper bound, which is reserved for the trial."""
    actual: int | None = None
    batch_size: int | None = None
    micro_batch: int | None = None
    """The number of samples per micro-batch, or None if the batch was not split."""
    ooms: int = 0
    """The number of out-of-memory errors from which the trial recovered."""
    shortage: float = 0.0
    """For a trial that never fits, the missing memory as a fraction of the memory of the largest GPU."""
    used_by_others: int = 0
    """The number of bytes that other programs use, if the batch is split because of these programs. Otherwise 0."""

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
    """The number of results that the searcher had received when it proposed this configuration."""
    state: TrialState = TrialState.WAITING
    reason: str = ""
    """One line with the reason why the trial stopped, failed, was split or never started."""
    reports: list[Report] = field(default_factory=list)
    memory: TrialMemory = field(default_factory=TrialMemory)
    gpu: str = ""
    """The device of the trial, for example `cuda:1`, `virtual 0` or `cpu`."""
    started: float | None = None
    ended: float | None = None
    """The time when the trial ended, in seconds since the start of the study. `started` has the same unit."""
    attempts: int = 0
    """The number of starts. A trial starts again if it was interrupted or paused, or if it ran out of memory."""
    checkpoint: str | None = None
    """The path of the checkpoint of the best report."""
    last_checkpoint: str | None = None
    """The path of the latest checkpoint, from which the trial continues."""
    checkpoint_step: int = 0
    parent: int | None = None
    """The number of the trial whose checkpoint was last copied to this trial (population-based training)."""
    earlier: list[tuple[int, Config]] = field(default_factory=list)
    """The earlier configurations of the trial, each with its last step (population-based training)."""

    def value(self, metric: str, mode: Mode) -> float | None:
        """Return the best reported value, or None if there is no finite value."""
        best = self.best_report(metric, mode)
        return None if best is None else best.metrics[metric]

    def best_report(self, metric: str, mode: Mode) -> Report | None:
        choose = min if mode == "min" else max
        return choose(self._told(metric), key=lambda report: report.metrics[metric], default=None)

    def last_report(self, metric: str) -> Report | None:
        return next(reversed(self._told(metric)), None)

    def objective_values(self, objectives: Objectives) -> tuple[float, ...] | None:
        """Return the values of several metrics in the latest report that contains all of them, or None."""
        for report in reversed(self.reports):
            values = tuple(report.metrics.get(metric, math.nan) for metric, _ in objectives)
            if all(map(math.isfinite, values)):
                return values
        return None

    def _told(self, metric: str) -> list[Report]:
        return [report for report in self.reports if math.isfinite(report.metrics.get(metric, math.nan))]

    def config_at(self, step: int) -> Config:
        return next((config for last, config in self.earlier if step <= last), self.config)

    @property
    def step(self) -> int:
        return self.reports[-1].step if self.reports else 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The final state of a trial, as decided by the dispatcher."""

    state: TrialState
    reason: str = ""
    affects_all_trials: bool = False
