"""The settings of a study, and the protocol of callbacks that show or log a study."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from legroom.tuning.memory.admission import TrialGpu
from legroom.tuning.schedule.schedulers import SchedulerOptions
from legroom.tuning.space.space import Space
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.records import Mode, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneJob:
    """The arguments of `legroom.tune`."""

    function: TrainFunction
    space: Space
    metric: str
    mode: Mode
    search: str = "random"
    scheduler: str | None = None
    scheduler_options: SchedulerOptions = field(default_factory=SchedulerOptions)
    trials: int = 10
    """The number of trials to start. Configurations that can never fit are not included."""
    gpus: Sequence[TrialGpu] = ()
    """Real or virtual GPUs, or empty for the CPU."""
    parallel: int | None = None
    """The maximum number of trials that run at the same time. None: only memory and CPU cores limit the number."""
    ranks: int = 1
    """Processes per trial."""
    time_budget: float | None = None
    """Seconds."""
    seed: int = 0
    folder: Path
    """The folder of the study."""
    shape_parameters: frozenset[str] | None = None
    """The parameters that affect memory, if the user sets them. None means that they are determined by tracing."""


class StudyCallback(Protocol):
    """Shows or logs a study while it runs (the live table, TensorBoard, wandb). The methods are called from the
    engine's thread."""

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None:
        """Called when the study starts or is resumed. `records` are the trials of the study so far."""

    def on_trial_update(self, record: TrialRecord) -> None:
        """Called when a trial has a new state or a new report."""

    def on_message(self, message: str) -> None:
        """Called with a message for the user, once per message."""

    def on_study_end(self) -> None:
        """Called when the study has ended or was interrupted."""
