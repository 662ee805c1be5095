"""Searcher and scheduler objects of Ray that are passed to `legroom.tune`."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from ray import tune as ray_tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.bayesopt import BayesOptSearch
from ray.tune.search.hyperopt import HyperOptSearch

from legroom.tuning.api import tune


def plain(config: dict[str, Any], data: Any = None) -> None:
    ray_tune.report({"loss": numpy.float64((config["x"] - data) ** 2)})


@pytest.mark.parametrize("searcher", [BayesOptSearch, HyperOptSearch])
def test_searcher_and_scheduler_objects_set_the_metric_and_the_first_points(
    searcher: Any, tmp_path: Path
) -> None:
    study = tune(
        ray_tune.with_parameters(plain, data=2.0) if searcher is BayesOptSearch else partial(plain, data=2.0),
        {"x": ray_tune.uniform(-4.0, 4.0)},
        search=searcher(points_to_evaluate=[{"x": 2.0}]),
        scheduler=ASHAScheduler(metric="loss", mode="min"),
        trials=2, parallel=1, engine="local", gpu="cpu", storage=tmp_path / "study",
    )  # fmt: skip
    assert (study.best_params, study.best_value, study.best_trial.number) == ({"x": 2.0}, 0.0, 0)
    assert (study.name, study.scheduler) == ("plain", "asha")
    assert list(study.trials_dataframe()["config.x"]) == [trial.config["x"] for trial in study.trials]
