"""What is known of a trial: the vocabulary that engines, searchers, schedulers, the store and reports share.

A trial goes

    waiting → running → finished | stopped | failed | out-of-memory
       │         └→ paused → running                (population-based training with fewer places than trials)
       └→ never-fits                                 (rejected before it started)

`finished`, `stopped`, `failed`, `out-of-memory` and `never-fits` are final: a resumed study does not touch them.
"""

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from legroom.tuning.space.space import Config

Mode = Literal["min", "max"]


class TrialState(StrEnum):
    """Where a trial stands."""

    WAITING = "waiting"
    """Proposed; its memory is being estimated, or there is no room for it yet."""
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    """The function returned."""
    STOPPED = "stopped"
    """By the scheduler, the time budget or a metric that is no number; what it reported counts."""
    FAILED = "failed"
    """The function raised, or its process died."""
    OUT_OF_MEMORY = "out-of-memory"
    """It started and was lost to memory, whatever was tried."""
    NEVER_FITS = "never-fits"
    """Not started: not even its smallest micro-batch fits any GPU."""

    @property
    def is_final(self) -> bool:
        return self not in (TrialState.WAITING, TrialState.RUNNING, TrialState.PAUSED)


@dataclass(frozen=True, slots=True)
class Report:
    """What a trial said at one step (1 is the first)."""

    step: int
    metrics: dict[str, float]
    seconds: float = 0.0
    """Since the study began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMemory:
    """Device memory of a trial, in bytes on one GPU, CUDA's context included; None where it is not known."""

    predicted: int | None = None
    safe: int | None = None
    """The bound that it was given room for."""
    actual: int | None = None
    """The highest that was seen."""
    batch_size: int | None = None
    micro_batch: int | None = None
    """Rows at once, where the batch was split; None where it was taken whole."""
    ooms: int = 0
    """How often memory ran out and was survived."""
    shortage: float = 0.0
    """Of a trial that never fits: by which share of the largest GPU it is too large."""
    held: int = 0
    """What other programs had of the GPU, where the batch was split for that reason alone."""

    @property
    def foretold(self) -> int | None:
        """What it was foretold to need at most; None where nothing could be foretold, and it got a GPU to itself."""
        return self.safe if self.predicted else None


@dataclass(slots=True, kw_only=True)
class TrialRecord:
    """One trial, as it stands now."""

    number: int
    config: Config
    knew: int = 0
    """How many results the searcher had been told when it proposed this."""
    state: TrialState = TrialState.WAITING
    why: str = ""
    """One sentence: why it stopped, failed, was split or never started."""
    reports: list[Report] = field(default_factory=list)
    memory: TrialMemory = field(default_factory=TrialMemory)
    gpu: str = ""
    """Where it ran: `cuda:1`, `virtual 0`, `cpu`."""
    started: float | None = None
    ended: float | None = None
    """Seconds since the study began."""
    attempts: int = 0
    """How often it was started: once, unless it was interrupted, paused or met a full GPU."""
    checkpoint: str | None = None
    """Path of the checkpoint of its best report."""
    last_checkpoint: str | None = None
    """Path of the latest one, from which it goes on."""
    checkpoint_step: int = 0
    """Its own step at which that one was taken; after an interruption it goes on from there."""
    parent: int | None = None
    """The trial whose checkpoint it last took over (population-based training)."""
    earlier: list[tuple[int, Config]] = field(default_factory=list)
    """Configurations that it had before, each with the last step that was made with it."""

    def value(self, metric: str, mode: Mode) -> float | None:
        """The best that was reported; None where there is no number."""
        best = self.best_report(metric, mode)
        return None if best is None else best.metrics[metric]

    def best_report(self, metric: str, mode: Mode) -> Report | None:
        choose = min if mode == "min" else max
        return choose(self._told(metric), key=lambda report: report.metrics[metric], default=None)

    def last_report(self, metric: str) -> Report | None:
        """The latest with a number for the metric."""
        return next(reversed(self._told(metric)), None)

    def _told(self, metric: str) -> list[Report]:
        return [report for report in self.reports if math.isfinite(report.metrics.get(metric, math.nan))]

    def config_at(self, step: int) -> Config:
        """The configuration with which a step was made."""
        return next((config for last, config in self.earlier if step <= last), self.config)

    @property
    def step(self) -> int:
        """The latest that was reported."""
        return self.reports[-1].step if self.reports else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trial ended, as an engine tells it."""

    state: TrialState
    why: str = ""
    is_in_vain: bool = False
    """Every other trial would end so, too."""
