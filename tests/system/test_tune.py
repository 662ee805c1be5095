"""`legroom tune` as people run it: what it prints, what it keeps, how it goes on after a kill, what it says of mistakes."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from legroom.cli import main
from legroom.tuning.study import Study

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


def test_a_search_says_what_is_best_and_keeps_everything(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "train.py:train", "space.toml"]) == 0
    told = capsys.readouterr().out
    best = Study.load("train-study").best
    assert told.startswith(f"Best loss {best.value('loss', 'min'):.4g}, trial {best.number}: ")
    assert "6 trials in" in told
    assert max(map(len, told.splitlines())) <= 80
    kept = {path.name for path in (folder / "train-study").iterdir()}
    assert {"study.csv", "study.json", "report.html", "study.db", "trials"} <= kept


def test_json_is_alone_on_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "train.py:train", "space.toml", "--trials", "2", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "legroom.tune/1"
    assert [trial["state"] for trial in told["trials"]] == ["finished", "finished"]


def test_a_trial_that_comes_to_the_most_steps_is_finished(folder: Path) -> None:
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
                "--most-steps",
                "2",
            ]
        )
        == 0
    )
    (trial,) = Study.load("train-study").trials
    assert (str(trial.state), trial.step) == ("finished", 2)
    assert not _ended(folder), "it was ended at its second report"


def test_a_killed_search_goes_on_without_repeating_what_had_ended(folder: Path) -> None:
    (folder / "space.toml").write_text(SPACE.replace("pause = 0.0", "pause = 0.1"))
    command = [sys.executable, "-m", "legroom", "tune", "train.py:train", "space.toml"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(_ended(folder)) < 2:
            assert process.poll() is None, "it ended by itself"
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
    ("words", "told"),
    [
        (
            ["train.py:train", "space.toml", "--search", "anneal"],
            "the search 'anneal' is not known: choose random, grid",
        ),
        (["train.py:fit", "space.toml"], "train.py has no function 'fit': it has train"),
        (["absent.py:train", "space.toml"], "there is no script 'absent.py'"),
        (["train.py:train", "absent.toml"], "there is no space file 'absent.toml'"),
        (["train.py:train", "space.toml", "--mode", "best"], "the metric is to be 'min' or 'max'"),
        (["train.py:train", "space.toml", "--time-budget", "soon"], "'soon' is no time: write it like"),
        (["train.py:train", "space.toml", "--scheduler", "halving"], "choose asha, median, pbt"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["tune", *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not (folder / "train-study").exists()


def test_a_space_that_the_search_cannot_do_says_what_can(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "space.toml").write_text("batch_size = [2, 4]\n[study]\nmetric = 'loss'\nsearch = 'bayes'\n")
    assert main(["tune", "train.py:train", "space.toml"]) == 2
    assert "use the search optuna or hyperopt" in capsys.readouterr().err


def test_a_search_without_a_metric_asks_for_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "space.toml").write_text("x = [1, 2]\n")
    assert main(["tune", "train.py:train", "space.toml"]) == 2
    assert "No metric given. Add `--metric loss`" in capsys.readouterr().err


def test_an_option_that_the_file_misspells_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "space.toml").write_text("x = [1, 2]\n[study]\nmetrik = 'loss'\n")
    assert main(["tune", "train.py:train", "space.toml"]) == 2
    assert "'metrik' is none of them" in capsys.readouterr().err


def _ended(folder: Path) -> list[int]:
    file = folder / "ended.txt"
    return [int(line) for line in file.read_text().split()] if file.exists() else []
