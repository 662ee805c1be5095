"""The command `legroom tune`: output, files, resuming after a kill, and errors."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from legroom.cli import main
from legroom.tuning.space.space import read_space
from legroom.tuning.study import Study
from legroom.tuning.trial.records import Report, TrialRecord, TrialState

TRAIN = """
import pathlib, time

def train(config, trial):
    for step in range(trial.step, 3):
        time.sleep(config["pause"])
        trial.report(loss=abs(config["x"] - 3) + 1 / (step + 1), checkpoint={"step": step})
    with open(pathlib.Path(__file__).with_name("ended.txt"), "a") as file:
        file.write(f"{trial.number}\\n")
"""
SPACE = """
x = {int = [0, 9]}
pause = 0.0

[study]
metric = "loss"
engine = "local"
gpu = "cpu"
parallel = 2
trials = 6
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "space.toml").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_search_prints_the_best_trial_and_writes_its_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "train.py:train", "space.toml"]) == 0
    output = capsys.readouterr().out
    best = Study.load("train-study").best_trial
    assert output.startswith(f"Best loss {best.value('loss', 'min'):.4g}, trial {best.number}: ")
    assert "6 trials in" in output
    assert max(map(len, output.splitlines())) <= 80
    written = {path.name for path in (folder / "train-study").iterdir()}
    assert {"study.csv", "study.json", "report.html", "study.db", "trials"} <= written


@pytest.mark.parametrize(
    ("modes", "expected"), [([], None), (["max"], "max"), (["min", "max"], ["min", "max"])]
)
def test_several_metrics_are_passed_as_repeated_options(
    folder: Path, monkeypatch: pytest.MonkeyPatch, modes: list[str], expected: object
) -> None:
    given: dict[str, Any] = {}

    def stop(*_: object, **options: Any) -> None:
        given.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("legroom.tuning.api.tune", stop)
    options = ["--metric", "loss", "--metric", "speed", *(f"--mode={mode}" for mode in modes)]
    assert main(["tune", "train.py:train", "space.toml", *options]) == 130
    assert given["metric"] == ["loss", "speed"]
    assert given.get("mode") == expected


def test_stdout_contains_only_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "train.py:train", "space.toml", "--trials", "2", "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == "legroom.tune/1"
    assert [trial["state"] for trial in content["trials"]] == ["finished", "finished"]


def test_a_trial_at_max_steps_is_finished(folder: Path) -> None:
    assert (
        main(
            [
                "tune",
                "train.py:train",
                "space.toml",
                "--trials",
                "1",
                "--scheduler",
                "asha",
                "--max-steps",
                "2",
            ]
        )
        == 0
    )
    (trial,) = Study.load("train-study").trials
    assert (str(trial.state), trial.step) == ("finished", 2)
    assert not _ended(folder), "it was stopped at its second report"


def test_a_trial_that_ran_out_of_memory_changes_the_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = read_space({"x": [1, 2]})
    reports = [Report(1, {"loss": 1.0})]
    lost = TrialRecord(number=0, config={"x": 1}, state=TrialState.OUT_OF_MEMORY, reports=reports)
    sound = TrialRecord(number=1, config={"x": 2}, state=TrialState.FINISHED, reports=reports)
    (folder / "train-study").mkdir()
    for trials, code in (([sound], 0), ([lost, sound], 3), ([lost], 1)):
        study = Study(metric="loss", mode="min", trials=trials, folder=Path("train-study"), space=space)
        monkeypatch.setattr("legroom.tuning.api.tune", lambda *_, study=study, **__: study)
        assert main(["tune", "train.py:train", "space.toml"]) == code


def test_a_killed_search_resumes_without_repeating_completed_trials(folder: Path) -> None:
    (folder / "space.toml").write_text(SPACE.replace("pause = 0.0", "pause = 0.1"))
    command = [sys.executable, "-m", "legroom", "tune", "train.py:train", "space.toml"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(_ended(folder)) < 2:
            assert process.poll() is None, "it exited"
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    before = {trial.number: trial for trial in Study.load("train-study").trials if trial.state.is_final}
    assert main(["tune", "train.py:train", "space.toml", "--resume"]) == 0
    after = Study.load("train-study").trials
    assert len(after) == 6
    assert all(str(trial.state) == "finished" for trial in after)
    assert all(after[number] == trial for number, trial in before.items())
    assert all(_ended(folder).count(number) == 1 for number in before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train.py:train", "space.toml", "--search", "anneal"],
            "Unknown search `anneal`. Choose `random`, `grid`",
        ),
        (
            ["train.py:fit", "space.toml"],
            "train.py has no function `fit`. Functions in this file: train.",
        ),
        (["absent.py:train", "space.toml"], "The script `absent.py` does not exist."),
        (["train.py:train", "absent.toml"], "The space file `absent.toml` does not exist."),
        (["train.py:train", "space.toml", "--mode", "best"], "Unknown mode `best`. Choose `min` or `max`."),
        (["train.py:train", "space.toml", "--time-budget", "soon"], "`soon` is not a valid duration."),
        (
            ["train.py:train", "space.toml", "--scheduler", "halving"],
            "Choose `asha`, `median`, `pbt` or `none`",
        ),
    ],
)
def test_invalid_arguments_are_one_line_errors(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["tune", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "train-study").exists()


def test_an_unsupported_space_suggests_another_search(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "space.toml").write_text("batch_size = [2, 4]\n[study]\nmetric = 'loss'\nsearch = 'bayes'\n")
    assert main(["tune", "train.py:train", "space.toml"]) == 2
    assert "Use the search `optuna` or `hyperopt`" in capsys.readouterr().err


def test_a_search_without_a_metric_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "space.toml").write_text("x = [1, 2]\n")
    assert main(["tune", "train.py:train", "space.toml"]) == 2
    assert "No metric given. Add `--metric loss`" in capsys.readouterr().err


def test_a_misspelled_option_in_the_file_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "space.toml").write_text("x = [1, 2]\n[study]\nmetrik = 'loss'\n")
    assert main(["tune", "train.py:train", "space.toml"]) == 2
    assert "unknown option `metrik`" in capsys.readouterr().err


def _ended(folder: Path) -> list[int]:
    file = folder / "ended.txt"
    return [int(line) for line in file.read_text().split()] if file.exists() else []
