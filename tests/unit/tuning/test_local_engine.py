"""Trials as processes: each ends in its own way, and the study goes on."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from legroom.errors import UsageError
from legroom.tuning.api import tune
from legroom.tuning.engines.engine import Job
from legroom.tuning.store import StoreError
from legroom.tuning.study import Study
from legroom.tuning.study_runner import Conductor
from legroom.tuning.trial.records import TrialRecord, TrialState

FILE = Path(__file__).with_name("tuned_functions.py")


def search(function: str, space: dict[str, Any], folder: Path, **options: Any) -> Study:
    return tune(
        f"{FILE}:{function}",
        space,
        storage=folder,
        **{"engine": "local", "gpu": "cpu", "parallel": 2, **options},
    )


class Watch:
    """Calls a function whenever a trial changes."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def changed(self, record: TrialRecord) -> None:
        self._function(record)

    def begun(self, job: Job, records: Sequence[TrialRecord]) -> None: ...
    def said(self, sentence: str) -> None: ...
    def closed(self) -> None: ...


def test_every_trial_runs_and_the_best_is_found_with_its_checkpoint(tmp_path: Path) -> None:
    study = search("quadratic", {"x": {"int": [0, 5]}}, tmp_path, search="grid")
    assert [trial.state for trial in study.trials] == [TrialState.FINISHED] * 6
    assert study.best_config == {"x": 3}
    assert study.best_value == pytest.approx(1 / 3)
    assert study.best_checkpoint == str(tmp_path / "trials/0003/checkpoint-3.pt")
    assert Path(study.best_checkpoint).is_file()


def test_trials_that_raise_are_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    study = search("raises_in_some", {"x": {"int": [0, 3]}}, tmp_path, search="grid")
    assert [trial.state for trial in study.trials] == [TrialState.FINISHED, TrialState.FAILED] * 2
    assert study.trials[1].why.startswith("ValueError: an odd configuration, tuned_functions.py:")
    assert "an odd configuration" in (tmp_path / "trials/0001/output.txt").read_text()
    assert study.best_config == {"x": 0}  # what a function returns is a report too


def test_a_process_that_dies_without_a_word_is_a_failed_trial(tmp_path: Path) -> None:
    study = search("dies", {"x": {"int": [0, 3]}}, tmp_path, trials=1)
    assert study.trials[0].why == "its process ended without a word (exit code 3)"


def test_a_metric_that_no_trial_reports_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="never reported 'accuracy', only loss"):
        search("quadratic", {"x": {"int": [0, 3]}}, tmp_path, trials=2, metric="accuracy")


def test_a_function_that_cannot_be_loaded_ends_the_study_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import not_there\ndef train(config, trial): ...\n")
    with pytest.raises(UsageError, match=r"script\.py could not be imported: .* No module named 'not_there'"):
        tune(f"{script}:train", {"x": [1, 2, 3]}, engine="local", gpu="cpu", storage=tmp_path / "study")


def test_asha_cuts_trials_short(tmp_path: Path) -> None:
    study = search(
        "quadratic", {"x": {"int": [3, 8]}, "steps": 8}, tmp_path, search="grid", scheduler="asha", parallel=1
    )
    assert study.trials[0].state is TrialState.FINISHED
    assert [trial.state for trial in study.trials[1:]] == [TrialState.STOPPED] * 5
    assert all(trial.step == 1 for trial in study.trials[1:])


@pytest.fixture
def ctrl_c_heard() -> Iterator[None]:
    """Processes that run tests side by side ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_heard")
def test_ctrl_c_ends_cleanly_and_resuming_repeats_nothing_that_ended(tmp_path: Path) -> None:
    def interrupt(record: TrialRecord) -> None:
        if record.number == 2 and record.state is TrialState.FINISHED:
            os.kill(os.getpid(), signal.SIGINT)

    space = {"x": {"int": [0, 30]}}
    first = search("resumes", space, tmp_path, trials=8, watchers=[Watch(interrupt)])
    assert first.interrupted
    done = {trial.number: trial for trial in first.trials if trial.state.is_final}
    assert len(done) < 8
    second = search("resumes", space, tmp_path, trials=8, resume=True)
    assert not second.interrupted
    assert [trial.state for trial in second.trials] == [TrialState.FINISHED] * 8
    assert all(second.trials[number] == trial for number, trial in done.items())
    assert all(trial.step == 4 for trial in second.trials)


def test_a_time_budget_ends_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def up_after_the_first_report(conductor: Conductor) -> float:
        return 0.0 if any(record.reports for record in conductor.records) else 3600.0

    monkeypatch.setattr(Conductor, "seconds_left", property(up_after_the_first_report))
    study = search("quadratic", {"x": {"int": [0, 9]}, "steps": 10**9}, tmp_path, trials=50, time_budget="1h")
    ran = [trial for trial in study.trials if trial.reports]
    assert [(trial.state, trial.why) for trial in ran] == [(TrialState.STOPPED, "the time was up")] * len(ran)
    left = [trial for trial in study.trials if not trial.reports]
    assert {(trial.state, trial.why) for trial in left} <= {(TrialState.WAITING, "the time was up")}
    assert study.best_value < 100


def test_a_population_takes_over_weights_and_all_come_to_the_end(tmp_path: Path) -> None:
    study = search("resumes", {"x": {"uniform": [0.0, 9.0]}}, tmp_path, trials=4, scheduler="pbt", seed=3)
    assert [trial.state for trial in study.trials] == [TrialState.FINISHED] * 4
    assert all(trial.step == 4 for trial in study.trials)
    heirs = [trial for trial in study.trials if trial.parent is not None]
    assert heirs
    assert all(trial.attempts > 1 for trial in heirs)


def test_a_trial_of_two_ranks_reports_once_and_stops_together(tmp_path: Path) -> None:
    study = search(
        "ranks_agree", {"x": {"int": [0, 2]}}, tmp_path, search="grid", scheduler="asha", ranks=2, parallel=1
    )
    assert study.trials[0].state is TrialState.FINISHED
    assert [report.metrics["loss"] for report in study.trials[0].reports] == [3.0, 2.0, 1.0, 0.0]
    assert [trial.state for trial in study.trials[1:]] == [TrialState.STOPPED] * 2


def test_memory_decides_who_runs_how(tmp_path: Path) -> None:
    """On a virtual GPU: whole, split, rejected; nothing is lost, and no more than the bound is taken."""
    space = {"width": [256, 16384, 1 << 20], "batch_size": [512], "lr": 0.01}
    study = search("network", space, tmp_path, search="grid", gpu="24MiB")
    whole, split, never = study.trials
    assert (whole.state, whole.memory.micro_batch) == (TrialState.FINISHED, None)
    assert split.state is TrialState.FINISHED
    assert split.memory.micro_batch is not None
    assert split.memory.batch_size == 512
    assert never.state is TrialState.NEVER_FITS
    for trial in (whole, split):
        assert trial.memory.actual is not None
        assert trial.memory.safe is not None
        assert trial.memory.actual <= trial.memory.safe
        assert trial.memory.ooms == 0


def test_a_share_that_was_too_small_is_made_good_with_the_whole_gpu(tmp_path: Path) -> None:
    space = {"width": [256], "batch_size": [64], "lr": 0.01, "extra": 6 << 20}
    study = search("evaluates_too_much", space, tmp_path, search="grid", gpu="24MiB")
    trial = study.trials[0]
    assert trial.state is TrialState.FINISHED
    assert trial.attempts == 2


def test_what_fills_a_small_gpu_is_tried_on_a_larger_one(tmp_path: Path) -> None:
    space = {"width": [256], "batch_size": [64], "lr": 0.01, "extra": 30 << 20}
    study = search("evaluates_too_much", space, tmp_path, search="grid", gpu="24MiB,48MiB")
    trial = study.trials[0]
    assert trial.state is TrialState.FINISHED
    assert trial.gpu == "virtual 1"


def test_a_full_disk_ends_the_study_and_no_trial_is_lost_to_it(tmp_path: Path) -> None:
    space = {"x": {"int": [0, 2]}}
    with pytest.raises(StoreError) as caught:
        search("finds_the_disk_full_once", space, tmp_path, search="grid", parallel=1)
    folder = tmp_path / "trials/0001"
    assert str(caught.value) == (
        f"trial 1 had to stop: its checkpoint cannot be written to {folder}: the disk is full. "
        "What had ended is kept: make room, then resume"
    )
    assert [path.name for path in folder.iterdir()] == ["output.txt"], "what was written in part is gone"
    study = search("finds_the_disk_full_once", space, tmp_path, search="grid", parallel=1, resume=True)
    assert [(t.state, t.attempts) for t in study.trials] == [
        (TrialState.FINISHED, attempts) for attempts in (1, 2, 1)
    ]


def test_a_study_runs_in_a_thread(tmp_path: Path) -> None:
    """Where signals cannot be caught."""
    found: list[Study] = []
    thread = threading.Thread(
        target=lambda: found.append(search("quadratic", {"x": [3]}, tmp_path, search="grid"))
    )
    thread.start()
    thread.join(120)
    assert found[0].best_config == {"x": 3}
