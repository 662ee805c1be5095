"""A `ray.tune.Tuner` that someone has already, read as what `legroom.tune` is asked.

Its function runs unchanged (with `ray.tune.report`), its space, metric, number of samples, search and scheduler are taken over; Legroom's
own searcher and scheduler of the same name then do the work, because Ray's learn nothing from what cannot fit. Settings that ours do not have
are named and left aside.
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
    """Whether something is a Tuner."""
    return isinstance(given, Tuner)


def unpacked(tuner: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function, and keyword arguments for `legroom.tune`: space, metric, mode, trials, search, scheduler, ..."""
    inside = getattr(tuner, "_local_tuner", None)
    settings = getattr(inside, "_tune_config", None)
    written = getattr(inside, "param_space", None)
    function = getattr(inside, "trainable", None)
    if settings is None or function is None:
        raise UsageError(
            "this Tuner cannot be read (another version of Ray): give its function and its space instead"
        )
    if isinstance(function, type) or not callable(function):
        raise UsageError(
            "the Tuner trains a class: give a function that calls tune.report, as legroom.tune(function, space)"
        )
    if not isinstance(written, dict) or not written:
        raise UsageError(
            "the Tuner has no param_space: legroom.tune needs the space, Tuner(..., param_space={...})"
        )
    if settings.metric is None or settings.mode is None:
        raise UsageError("the Tuner does not say what is better: give TuneConfig(metric=..., mode=...)")
    asked: dict[str, Any] = {
        "space": space_of(written),
        "metric": settings.metric,
        "mode": settings.mode,
        "search": _search(settings.search_alg, written),
    }
    grid = asked["search"] == "grid"
    if not grid:
        asked["trials"] = max(1, settings.num_samples)
    if settings.time_budget_s is not None:
        asked["time_budget"] = _seconds(settings.time_budget_s)
    if settings.max_concurrent_trials:
        asked["parallel"] = settings.max_concurrent_trials
    return function, asked | _schedule(settings.scheduler)


def _search(given: Any, written: dict[str, Any]) -> str:
    while type(given).__name__ in _WRAPPERS:
        given = given.searcher
    if given is None or type(given).__name__ == "BasicVariantGenerator":
        return "grid" if is_grid(written) else "random"
    name = given if isinstance(given, str) else type(given).__name__
    known = {**_SEARCHES, "optuna": "optuna", "hyperopt": "hyperopt", "bayesopt": "bayes", "random": "random"}
    if name not in known:
        raise UsageError(
            f"the Tuner searches with {name}, which is not known here: use OptunaSearch, HyperOptSearch or BayesOptSearch"
        )
    return known[name]


def _schedule(given: Any) -> dict[str, Any]:
    if given is None:
        return {"scheduler": None}
    names = [kind.__name__ for kind in type(given).__mro__ if kind.__name__ in _SCHEDULERS]
    if not names or (names[0] == "FIFOScheduler" and type(given).__name__ != "FIFOScheduler"):
        raise UsageError(
            f"the Tuner's scheduler, {type(given).__name__}, is not known here: use ASHAScheduler, MedianStoppingRule or PopulationBasedTraining"
        )
    asked: dict[str, Any] = {"scheduler": _SCHEDULERS[names[0]]}
    if asked["scheduler"] == "asha":
        rungs = [milestone for bracket in given._brackets for milestone, _ in bracket._rungs]
        asked |= {
            "grace": max(1, round(min(rungs, default=1))),
            "reduction": given._reduction_factor,
            "most_steps": round(given._max_t),
        }
    return asked


def _seconds(budget: Any) -> float:
    return float(budget.total_seconds()) if hasattr(budget, "total_seconds") else float(budget)
