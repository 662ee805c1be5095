"""The results of a study: best trial, table, files and repr."""

import csv
import json
import math
from pathlib import Path

import pytest

from legroom.errors import UsageError
from legroom.show.common.terminal import render_to_string
from legroom.show.tune.html_report.page_writer import page
from legroom.show.tune.study_summary import summary
from legroom.show.tune.trial_table import best_of
from legroom.tuning.report.figures import figures_of
from legroom.tuning.space.space import read_space
from legroom.tuning.study import Study
from legroom.tuning.trial.records import Report, TrialMemory, TrialRecord, TrialState


def trial(
    number: int, *accuracies: float, state: TrialState = TrialState.FINISHED, **known: object
) -> TrialRecord:
    reports = [Report(step, {"accuracy": value}) for step, value in enumerate(accuracies, start=1)]
    return TrialRecord(number=number, config={"lr": 0.1 * number}, state=state, reports=reports, **known)  # type: ignore[arg-type]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    trials = [
        trial(0, 0.5, 0.9, 0.7, checkpoint="best.pt"),
        trial(1, 0.6, state=TrialState.STOPPED, reason="ASHA"),
        trial(2, state=TrialState.NEVER_FITS, memory=TrialMemory(batch_size=64, shortage=0.5)),
        trial(3, math.nan),
    ]
    return Study(
        metric="accuracy",
        mode="max",
        trials=trials,
        folder=tmp_path,
        space=read_space({"lr": {"uniform": [0, 1]}}),
    )


def test_a_trial_is_ranked_by_its_best_report(study: Study) -> None:
    assert study.best_trial.number == 0
    assert study.best_value == 0.9
    assert study.best_checkpoint == "best.pt"
    assert [trial.number for trial in study.ranked] == [0, 1]


def test_a_failed_trial_is_never_the_best(tmp_path: Path) -> None:
    trials = [
        trial(0, 0.9, state=TrialState.FAILED),
        trial(1, 0.5),
        trial(2, 0.8, state=TrialState.OUT_OF_MEMORY),
    ]
    study = Study(
        metric="accuracy",
        mode="max",
        trials=trials,
        folder=tmp_path,
        space=read_space({"lr": {"uniform": [0, 1]}, "n": 3}),
    )
    assert [one.number for one in study.ranked] == [1]
    assert study.best_params == {"lr": 0.1}
    assert figures_of(study).best is not None
    assert figures_of(study).best.number == 1  # type: ignore[union-attr]
    assert best_of(trials, "accuracy", "max") is trials[1]


def test_the_pareto_front_has_the_trials_that_no_other_trial_surpasses(tmp_path: Path) -> None:
    def both(number: int, loss: float, speed: float, state: TrialState = TrialState.FINISHED) -> TrialRecord:
        report = Report(1, {"loss": loss, "speed": speed})
        return TrialRecord(number=number, config={"lr": 0.1}, state=state, reports=[report], attempts=1)

    trials = [
        both(0, 1.0, 5.0),
        both(1, 2.0, 9.0),
        both(2, 2.0, 8.0),
        both(3, 0.5, 1.0),
        both(4, 0.1, 99.0, TrialState.FAILED),
    ]
    study = Study(
        metric="loss", mode="min", more_objectives=(("speed", "max"),), trials=trials, folder=tmp_path,
        space=read_space({"lr": {"uniform": [0, 1]}}),
    )  # fmt: skip
    assert [one.number for one in study.best_trials] == [0, 1, 3]
    text = render_to_string(*summary(study))
    assert "Pareto front  of loss and speed" in text
    assert "trial 1: loss 2, speed 9 (lr 0.1)" in text
    assert "<h2>Pareto front</h2>" in page(figures_of(study))


def test_the_repr_of_a_study_is_one_line(study: Study) -> None:
    assert repr(study) == "<Study: 2 finished, 1 stopped, 1 never-fits; best accuracy 0.9 in trial 0: lr=0.0>"


def test_the_csv_file_has_one_row_per_trial(study: Study, tmp_path: Path) -> None:
    study.to_csv(tmp_path / "study.csv")
    with open(tmp_path / "study.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["finished", "stopped", "never-fits", "finished"]
    assert [row["accuracy"] for row in rows] == ["0.9", "0.6", "", ""]
    assert rows[2]["batch_size"] == "64"
    assert rows[1]["reason"] == "ASHA"


def test_the_json_file_contains_the_learning_curves(study: Study, tmp_path: Path) -> None:
    study.to_json(tmp_path / "study.json")
    content = json.loads((tmp_path / "study.json").read_text())
    assert content["best"] == 0
    assert [report["metrics"]["accuracy"] for report in content["trials"][0]["reports"]] == [0.5, 0.9, 0.7]


def test_nan_is_null_in_the_json_file(study: Study, tmp_path: Path) -> None:
    """`NaN` is not valid JSON."""
    study.to_json(tmp_path / "study.json")
    assert "NaN" not in (tmp_path / "study.json").read_text()


def test_best_trial_raises_without_a_value(tmp_path: Path) -> None:
    study = Study(metric="loss", mode="min", trials=[], folder=tmp_path, space=read_space({"lr": [1, 2]}))
    with pytest.raises(UsageError, match="No trial reported `loss`"):
        _ = study.best_trial
