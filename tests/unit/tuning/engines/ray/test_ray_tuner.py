"""Conversion of a Ray Tuner to arguments of `legroom.tune`."""

from typing import Any

import pytest

pytest.importorskip("ray.tune")

from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule, PopulationBasedTraining
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.hyperopt import HyperOptSearch
from ray.tune.search.optuna import OptunaSearch

from legroom.errors import UsageError
from legroom.tuning.engines.ray.tuner import is_tuner, tuner_arguments

pytestmark = pytest.mark.ray


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": config["lr"]})


def tuner(space: Any = None, **settings: Any) -> tune.Tuner:
    arguments = {"metric": "loss", "mode": "min", "num_samples": 7, **settings}
    return tune.Tuner(
        train, param_space=space or {"lr": tune.uniform(0, 1)}, tune_config=tune.TuneConfig(**arguments)
    )


def test_function_and_settings_are_read_from_the_tuner() -> None:
    function, arguments = tuner_arguments(tuner())
    assert function is train
    assert (arguments["metric"], arguments["mode"], arguments["trials"], arguments["search"]) == (
        "loss",
        "min",
        7,
        "random",
    )
    assert arguments["space"].names == ["lr"]


@pytest.mark.parametrize(
    ("given", "name"), [(OptunaSearch, "optuna"), (HyperOptSearch, "hyperopt"), (lambda: "optuna", "optuna")]
)
def test_the_search_algorithm_is_matched_by_name(given: Any, name: str) -> None:
    assert tuner_arguments(tuner(search_alg=given()))[1]["search"] == name


def test_a_wrapped_search_algorithm_is_unwrapped() -> None:
    limited = ConcurrencyLimiter(OptunaSearch(), max_concurrent=2)
    assert tuner_arguments(tuner(search_alg=limited))[1]["search"] == "optuna"


def test_a_grid_search_space_uses_grid_search() -> None:
    arguments = tuner_arguments(tuner({"a": tune.grid_search([1, 2])}))[1]
    assert arguments["search"] == "grid"
    assert "trials" not in arguments


def test_the_options_of_asha_are_kept() -> None:
    arguments = tuner_arguments(tuner(scheduler=ASHAScheduler(max_t=50, grace_period=3, reduction_factor=4)))[
        1
    ]
    assert arguments["scheduler"] == "asha"
    assert (arguments["grace_period"], arguments["reduction_factor"], arguments["max_steps"]) == (3, 4, 50)


def test_median_stopping_is_supported() -> None:
    assert tuner_arguments(tuner(scheduler=MedianStoppingRule()))[1]["scheduler"] == "median"


def test_the_metric_can_be_set_in_the_scheduler_or_the_searcher() -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="accuracy",
        mode="max",
        perturbation_interval=4,
        hyperparam_mutations={"lr": [1]},
    )
    arguments = tuner_arguments(tuner(scheduler=scheduler, metric=None, mode=None))[1]
    assert (arguments["metric"], arguments["mode"], arguments["interval"]) == ("accuracy", "max", 4)
    search = OptunaSearch(metric="accuracy", mode="max", points_to_evaluate=[{"lr": 0.5}])
    arguments = tuner_arguments(tuner(search_alg=search, metric=None, mode=None))[1]
    assert (arguments["metric"], arguments["points_to_evaluate"]) == ("accuracy", [{"lr": 0.5}])


def test_an_unsupported_scheduler_is_an_error() -> None:
    with pytest.raises(UsageError, match="scheduler HyperBandScheduler is not supported. Use ASHAScheduler"):
        tuner_arguments(tuner(scheduler=HyperBandScheduler()))


def test_a_tuner_without_a_metric_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"TuneConfig\(metric=..., mode=...\)"):
        tuner_arguments(tuner(metric=None, mode=None))


def test_a_tuner_without_a_space_is_an_error() -> None:
    bare = tune.Tuner(train, tune_config=tune.TuneConfig(metric="loss", mode="min"))
    with pytest.raises(UsageError, match="no `param_space`"):
        tuner_arguments(bare)


def test_a_trainable_class_is_an_error() -> None:
    class Train(tune.Trainable):
        pass

    given = tune.Tuner(
        Train, param_space={"lr": tune.uniform(0, 1)}, tune_config=tune.TuneConfig(metric="loss", mode="min")
    )
    with pytest.raises(UsageError, match="The class Train cannot run as a trial. Pass a function"):
        tuner_arguments(given)


def test_only_a_tuner_is_recognized() -> None:
    assert is_tuner(tuner())
    assert not is_tuner(train)
