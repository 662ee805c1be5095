"""A study as plain figures: everything that the report, the loggers and the exports show, and nothing that they would have to work out.

Made once from the records; the page then needs no engine, no storage and no torch, and computes nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from legroom.tuning.report.importance import importance
from legroom.tuning.space.domains import AnyDomain, Choice, FloatRange, IntRange, PowerRange
from legroom.tuning.trial.records import Mode, TrialRecord, TrialState

if TYPE_CHECKING:
    from legroom.tuning.study import Study

Look = Literal["good", "split", "stopped", "rejected", "failed", "lost", "open"]
"""How a trial ended, as far as it is drawn differently: done, done in micro-batches, stopped early, never started because
it cannot fit, failed by its own error, lost to memory, not over yet."""
LONGEST_CURVE = 200
"""Points kept of a learning curve: more than a screen has room for between two trials' ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """One trial."""

    number: int
    config: Mapping[str, Any]
    look: Look
    state: str
    """The same for people: `finished`, `stopped early`, ..."""
    why: str = ""
    """Why it ended as it did; empty where it simply finished."""
    value: float | None = None
    """The metric by which it counts; None where it never had one."""
    curve: Sequence[tuple[int, float]] = ()
    """(report, metric), in order, finite figures only."""
    predicted: int | None = None
    """The safe bound that was foretold, in bytes."""
    peak: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    """Rows at once, where the batch was split."""
    device: str = ""
    seconds: float | None = None

    @property
    def splits(self) -> bool:
        return self.micro_batch is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFigures:
    """One parameter, as an axis."""

    name: str
    kind: Literal["linear", "log", "category"]
    values: Sequence[Any] = ()
    """Of a category, in the space's own order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFigures:
    """The whole study."""

    title: str
    metric: str
    mode: Mode
    search: str
    scheduler: str
    engine: str
    seconds: float
    parameters: Sequence[ParameterFigures]
    trials: Sequence[TrialFigures]
    capacities: Sequence[int] = ()
    """What the GPUs have, in bytes, each size once."""
    importance: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> TrialFigures | None:
        valued = [trial for trial in self.trials if trial.value is not None]
        pick = min if self.mode == "min" else max
        return pick(valued, key=lambda trial: trial.value or 0.0) if valued else None

    def count(self, *looks: Look) -> int:
        return sum(trial.look in looks for trial in self.trials)


def figures_of(study: "Study") -> StudyFigures:
    """Of a study as it stands, over or not."""
    parameters = [_axis(parameter.name, parameter.domain) for parameter in study.space.parameters]
    trials = [_trial(record, study.metric, study.mode) for record in study.trials]
    return StudyFigures(
        title=f"Study of {study.name}",
        metric=study.metric,
        mode=study.mode,
        search=study.search,
        scheduler=study.scheduler or "none",
        engine=study.engine,
        seconds=study.seconds,
        parameters=parameters,
        trials=trials,
        capacities=sorted({place.memory for place in study.places if place.memory}),
        importance=shares_of(parameters, trials),
    )


def shares_of(parameters: Sequence[ParameterFigures], trials: Sequence[TrialFigures]) -> dict[str, float]:
    """How much each parameter mattered, over the trials that have a value."""
    valued = [trial for trial in trials if trial.value is not None]
    return importance(
        [trial.config for trial in valued],
        [trial.value for trial in valued if trial.value is not None],
        [parameter.name for parameter in parameters],
    )


def thinned(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Finite points only, at most LONGEST_CURVE of them, the first and the last always."""
    finite = [(step, float(value)) for step, value in curve if math.isfinite(value)]
    if len(finite) <= LONGEST_CURVE:
        return finite
    last = len(finite) - 1
    return [finite[round(index * last / (LONGEST_CURVE - 1))] for index in range(LONGEST_CURVE)]


def _axis(name: str, domain: AnyDomain) -> ParameterFigures:
    if isinstance(domain, Choice):
        return ParameterFigures(name=name, kind="category", values=domain.options)
    is_log = isinstance(domain, PowerRange) or (isinstance(domain, FloatRange | IntRange) and domain.log)
    return ParameterFigures(name=name, kind="log" if is_log else "linear")


_LOOKS: dict[TrialState, tuple[Look, str]] = {
    TrialState.FINISHED: ("good", "finished"),
    TrialState.STOPPED: ("stopped", "stopped early"),
    TrialState.NEVER_FITS: ("rejected", "cannot fit"),
    TrialState.FAILED: ("failed", "failed"),
    TrialState.OUT_OF_MEMORY: ("lost", "lost to memory"),
}


def _trial(record: TrialRecord, metric: str, mode: Mode) -> TrialFigures:
    look, state = _LOOKS.get(record.state, ("open", str(record.state)))
    memory = record.memory
    if look == "good" and memory.micro_batch is not None:
        look = "split"
    curve = [(report.step, report.metrics[metric]) for report in record.reports if metric in report.metrics]
    took = None if record.started is None or record.ended is None else record.ended - record.started
    return TrialFigures(
        number=record.number,
        config=record.config,
        look=look,
        state=state,
        why=record.why,
        value=record.value(metric, mode),
        curve=thinned(curve),
        predicted=memory.foretold,
        peak=memory.actual,
        batch=memory.batch_size,
        micro_batch=memory.micro_batch,
        device=record.gpu,
        seconds=took,
    )
