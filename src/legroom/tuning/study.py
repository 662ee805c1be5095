"""The result of a search: the best trial, a table of all trials, and files with the results."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom import schemas
from legroom.arguments import check_path
from legroom.errors import MissingExtra, UsageError
from legroom.tuning.job import TuneJob
from legroom.tuning.memory.admission import TrialGpu
from legroom.tuning.space.space import Config, Space, read_space
from legroom.tuning.store import read_study
from legroom.tuning.trial.records import Mode, Objectives, TrialRecord, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A finished or unfinished study. The `repr` of a study is a one-line summary."""

    metric: str
    mode: Mode
    more_objectives: Objectives = ()
    """The second and further metrics of a study with several metrics."""
    trials: Sequence[TrialRecord]
    folder: Path
    space: Space
    name: str = "train"
    """The name of the training function."""
    search: str = "random"
    scheduler: str | None = None
    engine: str = "local"
    gpus: Sequence[TrialGpu] = ()
    seconds: float = 0.0
    """The total running time in seconds. For a resumed study, the time before the interruption is included."""
    interrupted: bool = False

    @classmethod
    def load(cls, folder: str | Path) -> "Study":
        """Load a study from its folder."""
        facts, trials = read_study(check_path("folder", folder))
        ends = [trial.ended for trial in trials if trial.ended is not None]
        return cls(
            metric=facts["metric"],
            mode=facts["mode"],
            more_objectives=tuple((metric, mode) for metric, mode in facts.get("more_objectives", [])),
            name=facts["function"],
            search=facts["search"],
            scheduler=facts["scheduler"],
            trials=trials,
            folder=Path(folder),
            space=read_space(facts["space"]),
            seconds=max(ends, default=0.0),
        )

    @classmethod
    def of(cls, job: TuneJob, trials: Sequence[TrialRecord], seconds: float = 0.0) -> "Study":
        return cls(
            metric=job.metric,
            mode=job.mode,
            more_objectives=job.more_objectives,
            trials=trials,
            folder=job.folder,
            name=job.function.name,
            search=job.search,
            scheduler=job.scheduler,
            space=job.space,
            gpus=job.gpus,
            seconds=seconds,
        )

    @property
    def best_trial(self) -> TrialRecord:
        """The trial with the best value. Raises `UsageError` if no trial reported a value."""
        ranked = self.ranked
        if not ranked:
            raise UsageError(
                f"No trial reported `{self.metric}`. For the reasons, see `study.trials` and the output in "
                f"{self.folder}."
            )
        return ranked[0]

    @property
    def ranked(self) -> list[TrialRecord]:
        """The trials that have a value and did not fail, best first."""
        sound = [trial for trial in self.trials if not trial.state.has_failed]
        values = [(trial.value(self.metric, self.mode), trial) for trial in sound]
        sign = 1.0 if self.mode == "min" else -1.0
        known = [(sign * value, trial.number, trial) for value, trial in values if value is not None]
        return [trial for _, _, trial in sorted(known, key=lambda one: one[:2])]

    @property
    def objectives(self) -> Objectives:
        """The metrics, each with its mode."""
        return ((self.metric, self.mode), *self.more_objectives)

    @property
    def best_trials(self) -> list[TrialRecord]:
        """The Pareto front. A trial is on the front if no other trial is at least as good in all metrics and better in
        at least one metric. With one metric, the front contains the trials with the best value."""
        signs = [1.0 if mode == "min" else -1.0 for _, mode in self.objectives]
        scores: dict[int, tuple[float, ...]] = {}
        for trial in self.ranked:
            values = (
                trial.objective_values(self.objectives) if self.more_objectives else (self._value(trial),)
            )
            if values is not None and trial.state is TrialState.FINISHED:
                scores[trial.number] = tuple(sign * value for sign, value in zip(signs, values, strict=True))
        return [
            self.trials[number]
            for number, score in sorted(scores.items())
            if not any(_dominates(other, score) for other in scores.values())
        ]

    def _value(self, trial: TrialRecord) -> float:
        value = trial.value(self.metric, self.mode)
        assert value is not None
        return value

    @property
    def best_config(self) -> Config:
        return self.best_trial.config

    @property
    def best_params(self) -> Config:
        """The best values of the parameters that were searched, without constants, as in Optuna."""
        best = self.best_config
        return {name: best[name] for name in self.space.parameter_names if name in best}

    def trials_dataframe(self) -> Any:
        """Return the table as a pandas DataFrame, with one row per trial."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise MissingExtra("pandas", "tune") from None
        return pandas.DataFrame(self.table)

    @property
    def best_value(self) -> float:
        return self._value(self.best_trial)

    @property
    def best_checkpoint(self) -> str | None:
        """The path of the best trial's checkpoint at its best report."""
        return self.best_trial.checkpoint

    def state_counts(self) -> dict[TrialState, int]:
        """Return the number of trials in each state that occurs."""
        counts = {state: sum(trial.state is state for trial in self.trials) for state in TrialState}
        return {state: count for state, count in counts.items() if count}

    @property
    def table(self) -> list[dict[str, Any]]:
        """One flat dict per trial, as in the CSV file. The table can be passed to pandas, as in
        `pandas.DataFrame(study.table)`."""
        return [self._row(trial) for trial in self.trials]

    @property
    def report_path(self) -> Path:
        """The path of the HTML report, which is written when the search ends."""
        return self.folder / "report.html"

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file with one row per trial. A row contains configuration, value, steps, state, memory and reason."""
        rows = self.table
        names = list(dict.fromkeys(name for row in rows for name in row))
        with open(check_path("path", path), "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)

    def to_json(self, path: str | Path) -> None:
        check_path("path", path).write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """Return all results, including the learning curves, for JSON output. NaN and infinity become None, because
        JSON cannot represent them."""
        ranked = self.ranked
        content = {
            "schema": schemas.TUNE,
            "metric": self.metric,
            "mode": self.mode,
            "best": ranked[0].number if ranked else None,
            "trials": [
                {**trial.as_dict(), "value": trial.value(self.metric, self.mode)} for trial in self.trials
            ],
        }
        return {name: _plain(value) for name, value in content.items()}

    def _row(self, trial: TrialRecord) -> dict[str, Any]:
        memory = trial.memory
        last = trial.reports[-1].metrics if trial.reports else {}
        return {
            "trial": trial.number,
            "state": str(trial.state),
            self.metric: trial.value(self.metric, self.mode),
            **{f"config.{name}": value for name, value in trial.config.items()},
            **{f"last.{name}": value for name, value in last.items()},
            "steps": trial.step,
            "batch_size": memory.batch_size,
            "micro_batch": memory.micro_batch,
            "predicted_bytes": memory.predicted,
            "safe_bytes": memory.safe,
            "actual_bytes": memory.actual,
            "ooms": memory.ooms,
            "gpu": trial.gpu,
            "started_seconds": trial.started,
            "ended_seconds": trial.ended,
            "checkpoint": trial.checkpoint,
            "reason": trial.reason,
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.state_counts().items())
        ranked = self.ranked
        if not ranked:
            return f"<Study: {counts}; no value of {self.metric} yet>"
        config = ", ".join(f"{name}={value!r}" for name, value in ranked[0].config.items())
        return f"<Study: {counts}; best {self.metric} {self.best_value:.4g} in trial {ranked[0].number}: {config}>"


def _dominates(other: tuple[float, ...], score: tuple[float, ...]) -> bool:
    return other != score and all(a <= b for a, b in zip(other, score, strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
