"""The settings of a study, and the protocol of callbacks that show or log a study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from legroom.tuning.memory.admission import TrialGpu
from legroom.tuning.schedule.schedulers import SchedulerOptions
from legroom.tuning.space.space import Space
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.records import Mode, Objectives, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneJob:
    """The arguments of `legroom.tune`."""

    function: TrainFunction
    space: Space
    metric: str
    mode: Mode
    more_objectives: Objectives = ()
    """The second and further metrics of a study with several metrics."""
    search: str = "random"
    sampler: Any = None
    """The Optuna sampler for the search `optuna`, if the user passed a sampler."""
    scheduler: str | None = None
    scheduler_options: SchedulerOptions = field(default_factory=SchedulerOptions)
    trials: int = 10
    """The number of trials to start. Configurations that can never fit are not started and are not included in this
    number."""
    gpus: Sequence[TrialGpu] = ()
    """The real or virtual GPUs, or an empty tuple for the CPU."""
    parallel: int | None = None
    """The maximum number of trials that run at the same time. If None, only memory and CPU cores limit the number."""
    ranks: int = 1
    time_budget: float | None = None
    seed: int = 0
    folder: Path
    points: Sequence[Mapping[str, Any]] = ()
    """Configurations to try first. The searcher chooses the values of parameters that a configuration does not set."""
    shape_parameters: frozenset[str] | None = None
    """The parameters that affect memory. If None, tracing determines these parameters."""

    @property
    def objectives(self) -> Objectives:
        return ((self.metric, self.mode), *self.more_objectives)


@runtime_checkable
class StudyCallback(Protocol):
    """The protocol of objects that show or log a study while it runs, such as the live table and the loggers for
    TensorBoard and wandb. The methods are called from the engine's thread.
    """

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None:
        """Handle the start of a new or resumed study. `records` contains the trials of the study so far."""

    def on_trial_update(self, record: TrialRecord) -> None: ...

    def on_message(self, message: str) -> None: ...

    def on_study_end(self) -> None: ...
