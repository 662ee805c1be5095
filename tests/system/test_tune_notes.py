"""The tuning recipes of the notes run as they are written."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from ray import tune as ray_tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.bayesopt import BayesOptSearch
from ray.tune.search.hyperopt import HyperOptSearch

from legroom.cli import main
from legroom.tuning.api import tune
from legroom.tuning.study import Study

SCRIPT = Path(__file__).with_name("notes_tuning.py")


def test_the_script_of_the_notes_runs_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tune.run` with a partial function, `sample_from`, an ASHA scheduler with the metric, and a `CLIReporter`."""
    monkeypatch.chdir(tmp_path)
    assert main(["tune", str(SCRIPT), "--engine", "local", "--gpu", "64MiB"]) == 0
    output = capsys.readouterr().out
    assert "4 rows" in output
    study = Study.load("train_cifar-study")
    assert f"Best trial config: {study.best_config}" in output
    assert {trial.config["l1"] for trial in study.trials} <= {2**exponent for exponent in range(2, 9)}
    assert all(trial.memory.predicted for trial in study.trials), (
        "the memory of a plain Ray function is estimated"
    )
    assert (study.scheduler, max(trial.step for trial in study.trials)) == ("asha", 3)


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
