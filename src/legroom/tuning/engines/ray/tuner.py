"""Converts a `ray.tune.Tuner` into arguments of `legroom.tune`.

The function of the Tuner runs unchanged and calls `ray.tune.report`. The space, metric, number of samples, search
algorithm and scheduler come from the Tuner. Legroom's searcher and scheduler of the same name replace Ray's searcher
and scheduler, because Ray's searchers learn nothing from configurations that cannot fit. Further settings of Ray's
searchers are ignored.
"""

from collections.abc import Callable
from typing import Any

from ray.tune import Tuner

from legroom.errors import UsageError
from legroom.tuning.space.ray_spaces import is_grid, space_of

_SEARCHES = {
    "OptunaSearch": "optuna",
    "HyperOptSearch": "hyperopt",
    "BayesOptSearch": "bayes",
    "BasicVariantGenerator": "random",
}
_WRAPPERS = ("ConcurrencyLimiter", "SearchGenerator")
_SCHEDULERS = {
    "AsyncHyperBandScheduler": "asha",
    "MedianStoppingRule": "median",
    "PopulationBasedTraining": "pbt",
    "FIFOScheduler": None,
}


def is_tuner(given: Any) -> bool:
    """Return True if an object is a Ray Tuner."""
    return isinstance(given, Tuner)


def tuner_arguments(tuner: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the training function and the keyword arguments for `legroom.tune`, such as space, metric, mode, trials,
    search and scheduler."""
    inside = getattr(tuner, "_local_tuner", None)
    settings = getattr(inside, "_tune_config", None)
    written = getattr(inside, "param_space", None)
    function = getattr(inside, "trainable", None)
    if settings is None or function is None:
        raise UsageError(
            "The Tuner of this version of Ray is not supported. Pass its function and space to `legroom.tune` instead."
        )
    if isinstance(function, type) or not callable(function):
        raise UsageError(
            "Class trainables are not supported. Pass a function that calls `tune.report`: `legroom.tune(function, space)`."
        )
    if not isinstance(written, dict) or not written:
        raise UsageError(
            "The Tuner has no `param_space`. Pass the search space: `Tuner(..., param_space={...})`."
        )
    if settings.metric is None or settings.mode is None:
        raise UsageError("The Tuner sets no metric. Add `TuneConfig(metric=..., mode=...)`.")
    arguments: dict[str, Any] = {
        "space": space_of(written),
        "metric": settings.metric,
        "mode": settings.mode,
        "search": _search(settings.search_alg, written),
    }
    grid = arguments["search"] == "grid"
    if not grid:
        arguments["trials"] = max(1, settings.num_samples)
    if settings.time_budget_s is not None:
        arguments["time_budget"] = _seconds(settings.time_budget_s)
    if settings.max_concurrent_trials:
        arguments["parallel"] = settings.max_concurrent_trials
    return function, arguments | _schedule(settings.scheduler)


def _search(given: Any, written: dict[str, Any]) -> str:
    while type(given).__name__ in _WRAPPERS:
        given = given.searcher
    if given is None or type(given).__name__ == "BasicVariantGenerator":
        return "grid" if is_grid(written) else "random"
    name = given if isinstance(given, str) else type(given).__name__
    known = {**_SEARCHES, "optuna": "optuna", "hyperopt": "hyperopt", "bayesopt": "bayes", "random": "random"}
    if name not in known:
        raise UsageError(
            f"The Tuner's search algorithm {name} is not supported. Use OptunaSearch, HyperOptSearch or BayesOptSearch."
        )
    return known[name]


def _schedule(given: Any) -> dict[str, Any]:
    if given is None:
        return {"scheduler": None}
    names = [kind.__name__ for kind in type(given).__mro__ if kind.__name__ in _SCHEDULERS]
    if not names or (names[0] == "FIFOScheduler" and type(given).__name__ != "FIFOScheduler"):
        raise UsageError(
            f"The Tuner's scheduler {type(given).__name__} is not supported. Use ASHAScheduler, MedianStoppingRule or PopulationBasedTraining."
        )
    arguments: dict[str, Any] = {"scheduler": _SCHEDULERS[names[0]]}
    if arguments["scheduler"] == "asha":
        rungs = [milestone for bracket in given._brackets for milestone, _ in bracket._rungs]
        arguments |= {
            "grace_period": max(1, round(min(rungs, default=1))),
            "reduction_factor": given._reduction_factor,
            "max_steps": round(given._max_t),
        }
    return arguments


def _seconds(budget: Any) -> float:
    return float(budget.total_seconds()) if hasattr(budget, "total_seconds") else float(budget)
