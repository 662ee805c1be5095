"""A search whose trials run in the caller's own loop, as with Optuna's `ask` and `tell`.

    with AskTell({"lr": {"log": [1e-4, 1e-1]}}, metric="loss", search="optuna", storage="my-study") as search:
        for _ in range(20):
            trial = search.ask()
            search.tell(trial, train(**trial.config))
        print(search.study.best_params)

The storage is the same as for `legroom.tune`, so a study can be resumed and shown in the same way. Memory is not
estimated, because the trials do not run in processes that Legroom starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from legroom.arguments import check_path
from legroom.errors import UsageError
from legroom.tuning.api import EVERY, make_runner, read_any_space
from legroom.tuning.job import TuneJob
from legroom.tuning.search.searchers import optuna_sampler
from legroom.tuning.space.space import Config
from legroom.tuning.study import Study
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.records import Mode, TrialOutcome, TrialState


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """A trial that the caller runs."""

    number: int
    config: Config


class AskTell:
    """Proposes configurations (`ask`) and learns from their results (`tell`)."""

    def __init__(
        self,
        space: Any,
        *,
        metric: str = "loss",
        mode: Mode = "min",
        search: Any = "random",
        storage: str | Path = "ask-study",
        resume: bool = False,
        seed: int = 0,
        points_to_evaluate: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        read = read_any_space(space)
        sampler = optuna_sampler(search)
        read.check_points(points_to_evaluate)
        self._job = TuneJob(
            function=TrainFunction(name="ask"),
            space=read,
            metric=metric,
            mode=mode,
            search=search if sampler is None else "optuna",
            sampler=sampler,
            trials=EVERY,
            seed=seed,
            folder=check_path("storage", storage),
            points=tuple(points_to_evaluate),
        )
        self._runner = make_runner(self._job, resume, ())

    def ask(self) -> AskedTrial:
        """Return the next trial. In a resumed study, `ask` first returns the trials that have no result yet."""
        ready = self._runner.next(ahead=1)
        if ready is None:
            raise UsageError(
                "The search has no more configurations, because it has already proposed all points of the grid."
            )
        self._runner.started(ready.number, "cpu", None)
        return AskedTrial(ready.number, dict(ready.config))

    def tell(self, trial: AskedTrial, result: float | Mapping[str, float] | None) -> None:
        """Store the result of a trial: the value of the metric, a dict of metrics, or None if the trial failed."""
        record = self._runner.records[trial.number]
        if record.state is not TrialState.RUNNING:
            raise UsageError(f"Trial {trial.number} already has a result.")
        if result is not None:
            metrics = result if isinstance(result, Mapping) else {self._job.metric: result}
            self._runner.reported(trial.number, {name: float(value) for name, value in metrics.items()})
        state = TrialState.FAILED if result is None else TrialState.FINISHED
        self._runner.ended(
            trial.number, TrialOutcome(state, "The caller reported a failure" if result is None else "")
        )

    @property
    def study(self) -> Study:
        """The results so far."""
        return Study.of(self._job, self._runner.records, self._runner.seconds)

    def close(self) -> None:
        """Release the storage."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
