"""A Tuner read as what `legroom.tune` is asked."""

from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.hyperopt import HyperOptSearch
from ray.tune.search.optuna import OptunaSearch

from legroom.errors import UsageError
from legroom.tuning.engines.ray.tuner import is_tuner, unpacked


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": config["lr"]})


def tuner(space: Any = None, **settings: Any) -> tune.Tuner:
    asked = {"metric": "loss", "mode": "min", "num_samples": 7, **settings}
    return tune.Tuner(
        train, param_space=space or {"lr": tune.uniform(0, 1)}, tune_config=tune.TuneConfig(**asked)
    )


def test_the_function_and_what_it_is_searched_with() -> None:
    function, asked = unpacked(tuner())
    assert function is train
    assert (asked["metric"], asked["mode"], asked["trials"], asked["search"]) == ("loss", "min", 7, "random")
    assert asked["space"].names == ["lr"]


@pytest.mark.parametrize(
    ("given", "name"), [(OptunaSearch, "optuna"), (HyperOptSearch, "hyperopt"), (lambda: "optuna", "optuna")]
)
def test_the_search_is_the_one_of_the_same_name(given: Any, name: str) -> None:
    assert unpacked(tuner(search_alg=given()))[1]["search"] == name


def test_a_wrapped_search_is_looked_into() -> None:
    limited = ConcurrencyLimiter(OptunaSearch(), max_concurrent=2)
    assert unpacked(tuner(search_alg=limited))[1]["search"] == "optuna"


def test_a_space_of_grids_is_a_grid() -> None:
    asked = unpacked(tuner({"a": tune.grid_search([1, 2])}))[1]
    assert asked["search"] == "grid"
    assert "trials" not in asked


def test_asha_keeps_its_grace_and_its_reduction() -> None:
    asked = unpacked(tuner(scheduler=ASHAScheduler(max_t=50, grace_period=3, reduction_factor=4)))[1]
    assert asked["scheduler"] == "asha"
    assert (asked["grace"], asked["reduction"], asked["most_steps"]) == (3, 4, 50)


def test_median_stopping_is_known() -> None:
    assert unpacked(tuner(scheduler=MedianStoppingRule()))[1]["scheduler"] == "median"


def test_an_unknown_scheduler_is_a_sentence() -> None:
    with pytest.raises(
        UsageError, match="scheduler, HyperBandScheduler, is not known here: use ASHAScheduler"
    ):
        unpacked(tuner(scheduler=HyperBandScheduler()))


def test_a_tuner_without_a_metric_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"TuneConfig\(metric=..., mode=...\)"):
        unpacked(tuner(metric=None, mode=None))


def test_a_tuner_without_a_space_is_a_sentence() -> None:
    bare = tune.Tuner(train, tune_config=tune.TuneConfig(metric="loss", mode="min"))
    with pytest.raises(UsageError, match="no param_space"):
        unpacked(bare)


def test_a_class_is_a_sentence() -> None:
    class Train(tune.Trainable):
        pass

    given = tune.Tuner(
        Train, param_space={"lr": tune.uniform(0, 1)}, tune_config=tune.TuneConfig(metric="loss", mode="min")
    )
    with pytest.raises(UsageError, match="trains a class"):
        unpacked(given)


def test_only_a_tuner_is_one() -> None:
    assert is_tuner(tuner())
    assert not is_tuner(train)
