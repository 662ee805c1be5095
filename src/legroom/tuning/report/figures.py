"""A study as plain data: all values that the report and the exports show, computed once from the records."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from legroom.tuning.report.importance import importance
from legroom.tuning.space.domains import AnyDomain, Categorical, FloatRange, IntRange, PowerRange, Sampled
from legroom.tuning.trial.records import Mode, TrialRecord, TrialState

if TYPE_CHECKING:
    from legroom.tuning.study import Study

Outcome = Literal["good", "split", "stopped", "rejected", "failed", "lost", "open"]
"""The state of a trial in the charts. `split` means that the trial finished in micro-batches, `rejected` means that it
cannot fit, and `lost` means that it ran out of memory.
"""
MAX_TICKS = 64
"""If a range has at most this many values, the charts label each value. For a longer range, the charts choose the labels."""
MAX_CURVE_POINTS = 200
"""The maximum number of points of a learning curve. A screen cannot show more points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """The values of one trial that reports show."""

    number: int
    config: Mapping[str, Any]
    outcome: Outcome
    state: str
    reason: str = ""
    value: float | None = None
    curve: Sequence[tuple[int, float]] = ()
    predicted: int | None = None
    peak: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    device: str = ""
    seconds: float | None = None

    @property
    def is_split(self) -> bool:
        return self.micro_batch is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFigures:
    """One parameter, as an axis of a chart."""

    name: str
    kind: Literal["linear", "log", "category"]
    values: Sequence[Any] = ()
    """The options of a category, in the order of the space, or the values of a range with steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFigures:
    """All data of one study."""

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
    """The distinct GPU memory sizes, in bytes."""
    importance: Mapping[str, float] = field(default_factory=dict)
    metrics: Sequence[str] = ()
    front: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """A dict that maps the number of each trial on the Pareto front to the values of all metrics."""

    @property
    def best(self) -> TrialFigures | None:
        valued = [t for t in self.trials if t.value is not None and t.outcome not in ("failed", "lost")]
        pick = min if self.mode == "min" else max
        return pick(valued, key=lambda trial: trial.value or 0.0) if valued else None

    def count(self, *outcomes: Outcome) -> int:
        return sum(trial.outcome in outcomes for trial in self.trials)


def figures_of(study: "Study") -> StudyFigures:
    parameters = [
        _axis(parameter.name, parameter.domain, study.trials) for parameter in study.space.parameters
    ]
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
        capacities=sorted({gpu.memory for gpu in study.gpus if gpu.memory}),
        importance=importance_of(parameters, trials),
        metrics=[metric for metric, _ in study.objectives] if study.more_objectives else (),
        front=pareto_front(study),
    )


def pareto_front(study: "Study") -> dict[int, tuple[float, ...]]:
    if not study.more_objectives:
        return {}
    return {trial.number: trial.objective_values(study.objectives) or () for trial in study.best_trials}


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    def name_of(value: Any) -> str:
        return str(getattr(value, "__name__", type(value).__name__))

    return dict(json.loads(json.dumps(dict(config), default=name_of)))


def as_toml(config: Mapping[str, Any]) -> str:
    lines = []
    for name, value in plain_config(config).items():
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
        if value is not None:  # TOML has no null
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines)


def importance_of(parameters: Sequence[ParameterFigures], trials: Sequence[TrialFigures]) -> dict[str, float]:
    valued = [trial for trial in trials if trial.value is not None]
    return importance(
        [trial.config for trial in valued],
        [trial.value for trial in valued if trial.value is not None],
        [parameter.name for parameter in parameters],
    )


def thinned(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return a curve without non-finite values and with at most MAX_CURVE_POINTS points, including the first and the last."""
    finite = [(step, float(value)) for step, value in curve if math.isfinite(value)]
    if len(finite) <= MAX_CURVE_POINTS:
        return finite
    last = len(finite) - 1
    return [finite[round(index * last / (MAX_CURVE_POINTS - 1))] for index in range(MAX_CURVE_POINTS)]


def _distinct(name: str, trials: Sequence[TrialRecord]) -> list[Any]:
    values = list(dict.fromkeys(trial.config[name] for trial in trials if name in trial.config))
    try:
        return sorted(values)
    except TypeError:
        return values


def _axis(name: str, domain: AnyDomain, trials: Sequence[TrialRecord]) -> ParameterFigures:
    if isinstance(domain, Categorical):
        return ParameterFigures(name=name, kind="category", values=domain.options)
    if isinstance(domain, Sampled):
        return ParameterFigures(name=name, kind="category", values=_distinct(name, trials))
    is_log = isinstance(domain, PowerRange) or domain.log
    few = isinstance(domain, PowerRange) or domain.high - domain.low <= MAX_TICKS * (_step(domain) or 0)
    values = (domain.grid() or ()) if few else ()
    return ParameterFigures(name=name, kind="log" if is_log else "linear", values=values)


def _step(domain: FloatRange | IntRange) -> float | None:
    return 1 if isinstance(domain, IntRange) else domain.step


_OUTCOMES: dict[TrialState, tuple[Outcome, str]] = {
    TrialState.FINISHED: ("good", "finished"),
    TrialState.STOPPED: ("stopped", "stopped early"),
    TrialState.NEVER_FITS: ("rejected", "cannot fit"),
    TrialState.FAILED: ("failed", "failed"),
    TrialState.OUT_OF_MEMORY: ("lost", "out of memory"),
}


def _trial(record: TrialRecord, metric: str, mode: Mode) -> TrialFigures:
    outcome, state = _OUTCOMES.get(record.state, ("open", str(record.state)))
    memory = record.memory
    if outcome == "good" and memory.micro_batch is not None:
        outcome = "split"
    curve = [(report.step, report.metrics[metric]) for report in record.reports if metric in report.metrics]
    took = None if record.started is None or record.ended is None else record.ended - record.started
    return TrialFigures(
        number=record.number,
        config=record.config,
        outcome=outcome,
        state=state,
        reason=record.reason,
        value=record.value(metric, mode),
        curve=thinned(curve),
        predicted=memory.bound,
        peak=memory.actual,
        batch=memory.batch_size,
        micro_batch=memory.micro_batch,
        device=record.gpu,
        seconds=took,
    )
