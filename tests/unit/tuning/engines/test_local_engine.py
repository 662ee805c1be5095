"""Trials that run as processes on this machine."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

import legroom
from legroom.errors import UsageError
from legroom.tuning.api import tune
from legroom.tuning.job import TuneJob
from legroom.tuning.space.domains import Categorical, FloatRange, IntRange
from legroom.tuning.store import FILE as FILE_OF_STUDY
from legroom.tuning.store import StoreError
from legroom.tuning.study import Study
from legroom.tuning.study_runner import StudyRunner
from legroom.tuning.trial.records import TrialRecord, TrialState

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[1] / "tuned_functions.py"


def search(function: str, space: dict[str, Any] | None, folder: Path, **options: Any) -> Study:
    return tune(
        f"{FILE}:{function}",
        space,
        storage=folder,
        **{"engine": "local", "gpu": "cpu", "parallel": 2, **options},
    )


class OnUpdate:
    """A callback that calls a function whenever a trial changes."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def on_trial_update(self, record: TrialRecord) -> None:
        self._function(record)

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None: ...
    def on_message(self, message: str) -> None: ...
    def on_study_end(self) -> None: ...


def test_every_trial_runs_and_the_best_one_has_its_checkpoint(tmp_path: Path) -> None:
    study = search("quadratic", {"x": {"int": [0, 5]}}, tmp_path, search="grid")
    assert [trial.state for trial in study.trials] == [TrialState.FINISHED] * 6
    assert study.best_config == {"x": 3}
    assert study.best_value == pytest.approx(1 / 3)
    assert study.best_checkpoint == str(tmp_path / "trials/0003/checkpoint-3.pt")
    assert Path(study.best_checkpoint).is_file()


def test_the_pareto_front_of_several_metrics_is_that_of_optuna(
    tmp_path: Path,
) -> None:
    sampler = optuna.samplers.NSGAIISampler(population_size=4, seed=0)
    study = search(
        "two_metrics", {"x": {"int": [0, 9]}}, tmp_path, search=sampler, metric=["loss", "speed"], mode=["min", "max"], trials=12
    )  # fmt: skip
    assert [trial.state for trial in study.trials] == [TrialState.FINISHED] * 12
    stored = optuna.load_study(study_name=None, storage=f"sqlite:///{tmp_path / FILE_OF_STUDY}")
    assert [trial.number for trial in stored.best_trials] == [trial.number for trial in study.best_trials]
    assert Study.load(tmp_path).best_trials == study.best_trials
    with pytest.raises(UsageError, match="Several metrics require the search `optuna`"):
        search(
            "two_metrics",
            {"x": {"int": [0, 9]}},
            tmp_path / "bayes",
            search="bayes",
            metric=["loss", "speed"],
        )


def test_a_function_can_suggest_its_parameters_as_in_optuna(tmp_path: Path) -> None:
    study = search(
        "suggests",
        None,
        tmp_path,
        trials=6,
        points_to_evaluate=[{"kind": "large", "extra": 8}, {"layers": 1, "kind": "plain"}],
    )
    assert {parameter.name: parameter.domain for parameter in study.space.parameters} == {
        "layers": IntRange(1, 3),
        **{f"width_{layer}": FloatRange(0.0, 1.0) for layer in range(3)},
        "kind": Categorical(("plain", "large")),
        "extra": Categorical((2, 4, 6, 8)),
    }
    pruned, first, *_ = study.trials
    assert (pruned.state, pruned.reason) == (TrialState.STOPPED, "Pruned")
    assert [report.metrics for report in pruned.reports] == [{"loss": 100.0}]
    assert first.state is TrialState.FINISHED
    assert first.value("loss", "min") == first.config["width_0"]
    optuna_study = optuna.load_study(study_name=None, storage=f"sqlite:///{tmp_path / FILE_OF_STUDY}")
    assert optuna_study.best_params == study.best_params  # shown by optuna-dashboard
    assert optuna_study.best_value == study.best_value
    assert len(optuna_study.trials_dataframe()) == 6


def test_a_trial_that_raises_fails_and_the_others_continue(tmp_path: Path) -> None:
    study = search("raises_in_some", {"x": {"int": [0, 3]}}, tmp_path, search="grid")
    assert [trial.state for trial in study.trials] == [TrialState.FINISHED, TrialState.FAILED] * 2
    assert study.trials[1].reason.startswith("ValueError: an odd configuration, tuned_functions.py:")
    assert "an odd configuration" in (tmp_path / "trials/0001/output.txt").read_text()
    assert study.best_config == {"x": 0}  # returned metrics count as a report


def test_a_process_that_dies_is_a_failed_trial(tmp_path: Path) -> None:
    study = search("dies", {"x": {"int": [0, 3]}}, tmp_path, trials=1)
    assert study.trials[0].reason == "The process exited without a result (exit code 3)"


def test_a_metric_that_no_trial_reports_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Never reported `accuracy`, only loss"):
        search("quadratic", {"x": {"int": [0, 3]}}, tmp_path, trials=2, metric="accuracy")


def test_a_function_that_cannot_be_loaded_ends_the_study(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import not_there\ndef train(config, trial): ...\n")
    with pytest.raises(UsageError, match=r"script\.py could not be imported: .* No module named 'not_there'"):
        tune(f"{script}:train", {"x": [1, 2, 3]}, engine="local", gpu="cpu", storage=tmp_path / "study")


def test_asha_stops_trials_early(tmp_path: Path) -> None:
    study = search(
        "quadratic", {"x": {"int": [3, 8]}, "steps": 8}, tmp_path, search="grid", scheduler="asha", parallel=1
    )
    assert study.trials[0].state is TrialState.FINISHED
    assert [trial.state for trial in study.trials[1:]] == [TrialState.STOPPED] * 5
    assert all(trial.step == 1 for trial in study.trials[1:])


@pytest.fixture
def ctrl_c_enabled() -> Iterator[None]:
    """Enable Ctrl-C, which parallel test processes ignore by default."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_enabled")
def test_after_ctrl_c_a_resumed_study_repeats_no_completed_trial(tmp_path: Path) -> None:
    def interrupt(record: TrialRecord) -> None:
        if record.number == 2 and record.state is TrialState.FINISHED:
            os.kill(os.getpid(), signal.SIGINT)

    space = {"x": {"int": [0, 30]}}
    first = search("resumes", space, tmp_path, trials=8, callbacks=[OnUpdate(interrupt)])
    assert first.interrupted
    done = {trial.number: trial for trial in first.trials if trial.state.is_final}
    assert len(done) < 8
    second = search("resumes", space, tmp_path, trials=8, resume=True)
    assert not second.interrupted
    assert [trial.state for trial in second.trials] == [TrialState.FINISHED] * 8
    assert all(second.trials[number] == trial for number, trial in done.items())
    assert all(trial.step == 4 for trial in second.trials)


@pytest.mark.usefixtures("ctrl_c_enabled")
@pytest.mark.parametrize(
    ("sent", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_ends_the_python_program_after_the_results_are_stored(
    sent: signal.Signals, raised: type[BaseException], tmp_path: Path
) -> None:
    def interrupt(record: TrialRecord) -> None:
        if record.reports and record.state is TrialState.RUNNING:
            os.kill(os.getpid(), sent)

    with pytest.raises(raised) as caught:
        legroom.tune(
            f"{FILE}:resumes", {"x": {"int": [0, 30]}}, storage=tmp_path, engine="local", gpu="cpu", parallel=1, trials=2,
            callbacks=[OnUpdate(interrupt)],
        )  # fmt: skip
    if raised is SystemExit:
        assert caught.value.code == 143  # type: ignore[attr-defined]
    trial = Study.load(tmp_path).trials[0]
    assert (trial.state, trial.step) == (TrialState.WAITING, 1)


def test_a_time_budget_ends_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_time_after_the_first_report(runner: StudyRunner) -> float:
        return 0.0 if any(record.reports for record in runner.records) else 3600.0

    monkeypatch.setattr(StudyRunner, "seconds_left", property(no_time_after_the_first_report))
    study = search("quadratic", {"x": {"int": [0, 9]}, "steps": 10**9}, tmp_path, trials=50, time_budget="1h")
    ran = [trial for trial in study.trials if trial.reports]
    assert [(trial.state, trial.reason) for trial in ran] == [
        (TrialState.STOPPED, "The time budget was used up")
    ] * len(ran)
    left = [trial for trial in study.trials if not trial.reports]
    assert {(trial.state, trial.reason) for trial in left} <= {
        (TrialState.WAITING, "The time budget was used up")
    }
    assert study.best_value < 100


def test_in_a_population_weights_are_copied_and_all_trials_finish(tmp_path: Path) -> None:
    study = search("resumes", {"x": {"uniform": [0.0, 9.0]}}, tmp_path, trials=4, scheduler="pbt", seed=3)
    assert [trial.state for trial in study.trials] == [TrialState.FINISHED] * 4
    assert all(trial.step == 4 for trial in study.trials)
    copies = [trial for trial in study.trials if trial.parent is not None]
    assert copies
    assert all(trial.attempts > 1 for trial in copies)


def test_a_trial_with_two_ranks_reports_once_and_stops_together(tmp_path: Path) -> None:
    study = search(
        "ranks_agree", {"x": {"int": [0, 2]}}, tmp_path, search="grid", scheduler="asha", ranks=2, parallel=1
    )
    assert study.trials[0].state is TrialState.FINISHED
    assert [report.metrics["loss"] for report in study.trials[0].reports] == [3.0, 2.0, 1.0, 0.0]
    assert [trial.state for trial in study.trials[1:]] == [TrialState.STOPPED] * 2


def test_trials_run_unsplit_split_or_not_at_all_depending_on_memory(tmp_path: Path) -> None:
    """The three widths run unsplit, run split, and are rejected. No trial exceeds its bound."""
    space = {"width": [256, 16384, 1 << 20], "batch_size": [512], "lr": 0.01}
    study = search("network", space, tmp_path, search="grid", gpu="24MiB")
    unsplit, split, never = study.trials
    assert (unsplit.state, unsplit.memory.micro_batch) == (TrialState.FINISHED, None)
    assert split.state is TrialState.FINISHED
    assert split.memory.micro_batch is not None
    assert split.memory.batch_size == 512
    assert never.state is TrialState.NEVER_FITS
    for trial in (unsplit, split):
        assert trial.memory.actual is not None
        assert trial.memory.safe is not None
        assert trial.memory.actual <= trial.memory.safe
        assert trial.memory.ooms == 0


def test_after_running_out_of_memory_a_trial_gets_the_gpu_to_itself(tmp_path: Path) -> None:
    space = {"width": [256], "batch_size": [64], "lr": 0.01, "extra": 6 << 20}
    study = search("evaluates_too_much", space, tmp_path, search="grid", gpu="24MiB")
    trial = study.trials[0]
    assert trial.state is TrialState.FINISHED
    assert trial.attempts == 2


def test_after_filling_a_small_gpu_a_trial_gets_a_larger_one(tmp_path: Path) -> None:
    space = {"width": [256], "batch_size": [64], "lr": 0.01, "extra": 30 << 20}
    study = search("evaluates_too_much", space, tmp_path, search="grid", gpu="24MiB,48MiB")
    trial = study.trials[0]
    assert trial.state is TrialState.FINISHED
    assert trial.gpu == "virtual 1"


def test_a_full_disk_ends_the_study_without_losing_a_trial(tmp_path: Path) -> None:
    space = {"x": {"int": [0, 2]}}
    with pytest.raises(StoreError) as caught:
        search("finds_the_disk_full_once", space, tmp_path, search="grid", parallel=1)
    folder = tmp_path / "trials/0001"
    assert str(caught.value) == (
        f"Trial 1 stopped: the checkpoint cannot be written to {folder} because the disk is full. "
        "Completed trials are saved. Free some space, then resume the study."
    )
    assert [path.name for path in folder.iterdir()] == ["output.txt"], "the incomplete file was deleted"
    study = search("finds_the_disk_full_once", space, tmp_path, search="grid", parallel=1, resume=True)
    assert [(t.state, t.attempts) for t in study.trials] == [
        (TrialState.FINISHED, attempts) for attempts in (1, 2, 1)
    ]


def test_a_study_runs_in_a_thread(tmp_path: Path) -> None:
    """Signals cannot be handled in a thread other than the main thread."""
    found: list[Study] = []
    thread = threading.Thread(
        target=lambda: found.append(search("quadratic", {"x": [3]}, tmp_path, search="grid"))
    )
    thread.start()
    thread.join(120)
    assert found[0].best_config == {"x": 3}


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork to compare with")
def test_a_study_has_the_same_results_without_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"width": [64], "batch_size": [16], "lr": [0.01]}
    studies = []
    for setting in ("on", "off"):
        monkeypatch.setenv("LEGROOM_FORK", setting)
        study = search("network", space, tmp_path / setting, search="grid", gpu="64MiB", parallel=1)
        studies.append(
            [
                (trial.state, trial.config, trial.memory, [report.metrics for report in trial.reports])
                for trial in study.trials
            ]
        )
    forked, spawned = studies
    assert [state for state, *_ in spawned] == [TrialState.FINISHED]
    assert all(memory.predicted for _, _, memory, _ in spawned)
    assert forked == spawned
