"""Runs a script that was written for Ray Tune. The script's calls to `ray.tune.run` and `Tuner.fit` use Legroom's
search.

The script is not changed. A trial starts when its memory fits, so `resources_per_trial` is not needed. The results have
the methods of Ray's `ExperimentAnalysis` and `ResultGrid` that scripts use most.
"""

import contextlib
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from legroom.errors import MissingExtra, UsageError
from legroom.log import say
from legroom.observe.virtual.patching import Replacement, replaced
from legroom.show.tune.tune import tune
from legroom.tuning.study import Study
from legroom.tuning.trial.function import TrainFunction, unwrap_parameters
from legroom.tuning.trial.records import Mode, TrialRecord

USED = (
    "run_or_experiment", "name", "metric", "mode", "stop", "time_budget_s", "config", "num_samples", "search_alg",
    "scheduler", "storage_path", "local_dir", "resume", "max_concurrent_trials",
)  # fmt: skip
SILENT = ("progress_reporter", "verbose", "resources_per_trial", "raise_on_failed_trial", "log_to_file")
"""Arguments of `ray.tune.run` that have no effect, because Legroom has its own live table, memory estimates and log
files."""


def run_ray_script(path: Path, options: Mapping[str, Any]) -> list[Study]:
    """Run a script, and return its studies. `options` are arguments of `legroom.tune` that override the arguments in
    the script.
    """
    try:
        from ray import tune as ray_tune
    except ImportError:
        raise MissingExtra("Ray", "tune") from None
    studies: list[Study] = []
    original_fit = ray_tune.Tuner.fit

    def search(function: Any, arguments: Mapping[str, Any]) -> "RayResults":
        given = TrainFunction.of(unwrap_parameters(function), by_value=True)
        with replaced([Replacement(ray_tune.Tuner, "fit", original_fit)]):  # called by the Ray engine
            study = tune(given, **{**arguments, **options})
        studies.append(study)
        return RayResults(study)

    def run(run_or_experiment: Any, **arguments: Any) -> "RayResults":
        return search(run_or_experiment, _run_arguments(ray_tune, run_or_experiment, arguments))

    def fit(tuner: Any) -> "RayResults":
        from legroom.tuning.engines.ray.tuner import tuner_arguments

        return search(*tuner_arguments(tuner))

    with (
        replaced([Replacement(ray_tune, "run", run), Replacement(ray_tune.Tuner, "fit", fit)]),
        _old_module_names(ray_tune),
        _as_main(path),
    ):
        runpy.run_path(str(path), run_name="__main__")
    if not studies:
        raise UsageError(
            f"{path} did not call `tune.run` or `Tuner.fit`. To tune a function, pass `{path}:FUNCTION` and a search space."
        )
    return studies


@contextlib.contextmanager
def _old_module_names(ray_tune: Any) -> Iterator[None]:
    """Make `ray.tune.suggest` an alias of the module `ray.tune.search`, as before Ray 2.0. Submodules such as
    `ray.tune.suggest.optuna` are loaded from the folder of `ray.tune.search`.
    """
    old = f"{ray_tune.__name__}.suggest"
    if old in sys.modules:
        yield
        return
    sys.modules[old] = ray_tune.search
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name == old or name.startswith(f"{old}.")]:
            del sys.modules[name]


@contextlib.contextmanager
def _as_main(path: Path) -> Iterator[None]:
    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(path)], [str(path.resolve().parent)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def _run_arguments(ray_tune: Any, function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from legroom.tuning.engines.ray.tuner import tuner_arguments

    ignored = [name for name, value in arguments.items() if value and name not in (*USED, *SILENT)]
    if ignored:
        say(f"Ignored arguments of `tune.run`: {', '.join(ignored)}.")
    given = arguments.get
    settings = ray_tune.TuneConfig(
        metric=given("metric"),
        mode=given("mode"),
        search_alg=given("search_alg"),
        scheduler=given("scheduler"),
        num_samples=given("num_samples", 1),
        time_budget_s=given("time_budget_s"),
        max_concurrent_trials=given("max_concurrent_trials"),
    )
    tuner = SimpleNamespace(
        _local_tuner=SimpleNamespace(
            _tune_config=settings, param_space=given("config"), trainable=function, _run_config=None
        )
    )
    converted = tuner_arguments(tuner)[1]
    converted |= _stop_arguments(given("stop"), converted)
    folder = given("storage_path") or given("local_dir")
    if folder or given("name"):
        converted["storage"] = Path(folder or ".") / (given("name") or "study")
    if given("resume"):
        converted["resume"] = True
    return converted


def _stop_arguments(stop: Any, converted: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the argument `stop` of `ray.tune.run` to arguments of `legroom.tune`. No stopping condition other than
    `training_iteration` is supported."""
    if not stop:
        return {}
    if not isinstance(stop, Mapping) or set(stop) != {"training_iteration"}:
        raise UsageError(
            'Only `stop={"training_iteration": N}` is supported. For other conditions, return from the training function.'
        )
    steps = int(stop["training_iteration"])
    if converted.get("scheduler") is None:  # no trial is stopped before its last step
        return {"scheduler": "asha", "grace_period": steps, "max_steps": steps}
    if converted["scheduler"] != "asha":
        raise UsageError(
            "`stop` is supported only with ASHAScheduler or without a scheduler. Return from the training function instead."
        )
    return {"max_steps": min(steps, converted.get("max_steps") or steps)}


class RayTrial:
    def __init__(self, record: TrialRecord, folder: Path) -> None:
        last = record.reports[-1] if record.reports else None
        self.config = record.config
        self.last_result = {
            **({} if last is None else last.metrics),
            "training_iteration": 0 if last is None else last.step,
            "config": record.config,
        }
        self.metrics = self.last_result
        self.trial_id = f"{record.number:04d}"
        self.path = self.local_path = str(folder)
        self.checkpoint = _checkpoint(record)
        self.error = RuntimeError(record.reason) if record.state.has_failed else None
        self.status = "ERROR" if record.state.has_failed else "TERMINATED"

    @property
    def metrics_dataframe(self) -> Any:
        import pandas

        return pandas.DataFrame([self.last_result])


def _checkpoint(record: TrialRecord) -> Any:
    from ray.tune import Checkpoint

    return None if record.checkpoint is None else Checkpoint.from_directory(record.checkpoint)


class RayResults:
    def __init__(self, study: Study) -> None:
        self.study = study

    @property
    def trials(self) -> list[RayTrial]:
        return [self._trial(record) for record in self.study.trials if record.attempts]

    def get_best_trial(
        self, metric: str | None = None, mode: Mode | None = None, scope: str = "last", **_: Any
    ) -> RayTrial | None:
        """Return the best trial. With the scope "all", trials are compared by their best reported value, otherwise by
        their last reported value.
        """
        metric, sign = metric or self.study.metric, 1.0 if (mode or self.study.mode) == "min" else -1.0
        ranked = []
        for record in self.study.trials:
            best = record.value(metric, mode or self.study.mode)
            last = record.last_report(metric)
            if best is not None and last is not None and not record.state.has_failed:
                value = best if scope == "all" else last.metrics[metric]
                ranked.append((sign * value, record.number, record))
        return self._trial(min(ranked, key=lambda one: one[:2])[2]) if ranked else None

    def get_best_config(self, *arguments: Any, **options: Any) -> Any:
        best = self.get_best_trial(*arguments, **options)
        return None if best is None else best.config

    def get_best_checkpoint(self, trial: RayTrial, *_: Any, **__: Any) -> Any:
        return trial.checkpoint

    def get_best_result(
        self, metric: str | None = None, mode: Mode | None = None, **options: Any
    ) -> RayTrial:
        best = self.get_best_trial(metric, mode, **options)
        if best is None:
            raise RuntimeError(f"No trial reported `{metric or self.study.metric}`.")
        return best

    @property
    def best_trial(self) -> RayTrial:
        return self.get_best_result()

    @property
    def best_config(self) -> Any:
        return self.best_trial.config

    @property
    def best_result(self) -> Any:
        return self.best_trial.last_result

    @property
    def best_checkpoint(self) -> Any:
        return self.best_trial.checkpoint

    def dataframe(self, *_: Any, **__: Any) -> Any:
        """Return a DataFrame with the last metrics of each trial. As in Ray, the configuration is in columns named
        `config/NAME`.
        """
        import pandas

        return pandas.DataFrame(
            {**trial.last_result, **{f"config/{name}": value for name, value in trial.config.items()}}
            for trial in self.trials
        ).drop(columns="config", errors="ignore")

    get_dataframe = dataframe

    @property
    def results_df(self) -> Any:
        return self.dataframe()

    @property
    def errors(self) -> list[Exception]:
        return [trial.error for trial in self.trials if trial.error is not None]

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    def __len__(self) -> int:
        return len(self.trials)

    def __getitem__(self, index: int) -> RayTrial:
        return self.trials[index]

    def _trial(self, record: TrialRecord) -> RayTrial:
        return RayTrial(record, self.study.folder / "trials" / f"{record.number:04d}")
