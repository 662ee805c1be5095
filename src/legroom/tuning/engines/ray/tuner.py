"""Converts a `ray.tune.Tuner` into arguments of `legroom.tune`.

The Tuner's function, which calls `ray.tune.report`, runs unchanged. The space, metric, number of samples, search
algorithm and scheduler come from the Tuner. Ray's searcher and scheduler are replaced by Legroom's searcher and
scheduler of the same name, because Ray's searchers learn nothing from configurations that cannot fit. Other settings
of Ray's searchers are ignored.
"""

from collections.abc import Callable
from typing import Any

from ray.tune import Tuner

from legroom.errors import UsageError
from legroom.tuning.search.searchers import optuna_sampler
from legroom.tuning.space.ray_spaces import is_grid, is_ray_space, space_of
from legroom.tuning.trial.function import reject_class

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
    return isinstance(given, Tuner)


def tuner_arguments(tuner: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the training function of the Tuner, and the keyword arguments for `legroom.tune`."""
    inside = getattr(tuner, "_local_tuner", None)
    settings = getattr(inside, "_tune_config", None)
    written = getattr(inside, "param_space", None)
    function = getattr(inside, "trainable", None)
    if settings is None or function is None:
        raise UsageError(
            "The Tuner in this Ray version is not supported. Pass its function and space to `legroom.tune` instead."
        )
    reject_class(function)
    if not callable(function):
        raise UsageError(
            f"The trainable {function!r} is a name, not a function. Pass a function that calls `tune.report`: `legroom.tune(function, space)`."
        )
    if not isinstance(written, dict) or not written:
        raise UsageError(
            "The Tuner has no `param_space`. Pass the search space: `Tuner(..., param_space={...})`."
        )
    arguments: dict[str, Any] = {
        "space": space_of(written),
        **search_arguments(settings.search_alg, written),
        **scheduler_arguments(settings.scheduler),
    }
    arguments |= {"metric": settings.metric} if settings.metric else {}
    arguments |= {"mode": settings.mode} if settings.mode else {}
    if "metric" not in arguments:
        raise UsageError("The Tuner sets no metric. Add `TuneConfig(metric=..., mode=...)`.")
    grid = arguments["search"] == "grid"
    if not grid:
        arguments["trials"] = max(1, settings.num_samples)
    if settings.time_budget_s is not None:
        arguments["time_budget"] = _seconds(settings.time_budget_s)
    if settings.max_concurrent_trials:
        arguments["parallel"] = settings.max_concurrent_trials
    return function, arguments


def search_arguments(given: Any, written: Any) -> dict[str, Any]:
    while type(given).__name__ in _WRAPPERS:
        given = given.searcher
    if given is None or type(given).__name__ == "BasicVariantGenerator":
        arguments = {"search": "grid" if is_ray_space(written) and is_grid(written) else "random"}
        return arguments | _metric(given) | _points(given)
    name = given if isinstance(given, str) else type(given).__name__
    known = {**_SEARCHES, "optuna": "optuna", "hyperopt": "hyperopt", "bayesopt": "bayes", "random": "random"}
    if name not in known:
        raise UsageError(
            f"The search algorithm {name} is not supported. Use OptunaSearch, HyperOptSearch or BayesOptSearch."
        )
    return {"search": _own_sampler(given) or known[name]} | _metric(given) | _points(given)


def _own_sampler(given: Any) -> Any:
    """Return the sampler of an `OptunaSearch`, or None if it is the default sampler, TPE."""
    sampler = getattr(given, "_sampler", None)
    return None if type(sampler).__name__ == "TPESampler" else optuna_sampler(sampler)


def _points(given: Any) -> dict[str, Any]:
    points = getattr(given, "_points_to_evaluate", None)
    return {"points_to_evaluate": points} if points else {}


def _metric(given: Any) -> dict[str, Any]:
    found = {"metric": getattr(given, "_metric", None), "mode": getattr(given, "_mode", None)}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def scheduler_arguments(given: Any) -> dict[str, Any]:
    if given is None:
        return {"scheduler": None}
    names = [kind.__name__ for kind in type(given).__mro__ if kind.__name__ in _SCHEDULERS]
    if not names or (names[0] == "FIFOScheduler" and type(given).__name__ != "FIFOScheduler"):
        raise UsageError(
            f"The scheduler {type(given).__name__} is not supported. Use ASHAScheduler, MedianStoppingRule or PopulationBasedTraining."
        )
    arguments: dict[str, Any] = {"scheduler": _SCHEDULERS[names[0]], **_metric(given)}
    counts_steps = getattr(given, "_time_attr", "") == "training_iteration"
    if arguments["scheduler"] == "median" and counts_steps:
        arguments["grace_period"] = max(1, round(given._grace_period))
    if arguments["scheduler"] == "pbt" and counts_steps:
        arguments["interval"] = max(1, round(given._perturbation_interval))
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
