"""The study runner: proposals, admission, early stopping, results, storage and resuming."""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import optuna
import pytest

from legroom.errors import UsageError
from legroom.tuning.job import TuneJob
from legroom.tuning.memory.admission import NO_GPU, Admission, AdmissionVerdict, Fit, TrialGpu
from legroom.tuning.schedule.protocol import Action, Decision
from legroom.tuning.schedule.schedulers import Asha
from legroom.tuning.search.protocol import Result
from legroom.tuning.search.searchers import RandomSearcher
from legroom.tuning.space.space import Config, read_space
from legroom.tuning.store import FILE, StudyStore, read_study
from legroom.tuning.study_runner import StudyRunner
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.records import TrialOutcome, TrialRecord, TrialState

SPACE = read_space({"x": {"int": [1, 100]}})
FINISHED = TrialOutcome(TrialState.FINISHED)


class RecordingSearcher(RandomSearcher):
    """A searcher that records the results passed to `learn`."""

    def __init__(self) -> None:
        super().__init__(SPACE, seed=1)
        self.results: dict[int, Result] = {}

    def learn(self, number: int, config: Config, result: Result) -> None:
        self.results[number] = result


class CallRecorder(RecordingSearcher):
    """A searcher that records all calls in order. Only its first two proposals are random."""

    startup_trials: int | None = 2

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def propose(self, number: int) -> Config | None:
        self.calls.append(f"propose {number}")
        return super().propose(number)

    def learn(self, number: int, config: Config, result: Result) -> None:
        self.calls.append(f"learn {number}")
        super().learn(number, config, result)


class RuleGate:
    """A gate that rejects configurations above `most`."""

    has_unseen_configs = False

    def __init__(self, most: int = 100) -> None:
        self.most = most
        self.corrections: list[int] = []

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        too_large = Admission(
            verdict=AdmissionVerdict.NEVER, fits={}, reason="Too large", shortage=0.5, needed=150
        )
        answer.set_result(too_large if config["x"] > self.most else NO_GPU)
        return answer

    def record_oom(self, config: Config, fit: Fit, needed: int) -> None:
        self.corrections.append(needed)

    def close(self) -> None: ...


class RecordingCallback:
    """A callback that records states and messages."""

    def __init__(self) -> None:
        self.states: list[tuple[int, TrialState]] = []
        self.messages: list[str] = []

    def on_trial_update(self, record: TrialRecord) -> None:
        self.states.append((record.number, record.state))

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None: ...

    def on_message(self, message: str) -> None:
        self.messages.append(message)

    def on_study_end(self) -> None: ...


def make_runner(
    folder: Path,
    *,
    resume: bool = False,
    gate: Any = None,
    scheduler: Any = None,
    callbacks: Any = (),
    searcher: Any = None,
    **job: Any,
) -> StudyRunner:
    asked = TuneJob(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=folder, **job
    )
    store = StudyStore(folder, resume=resume, mode="min", facts={"metric": "loss"})
    return StudyRunner(
        asked, searcher or RecordingSearcher(), scheduler, gate or RuleGate(), store, callbacks
    )


def run(runner: StudyRunner, number: int, *losses: float) -> None:
    """Run a trial from its start to its end, as an engine does."""
    runner.started(number, "cpu", None)
    for loss in losses:
        decision = runner.reported(number, {"loss": loss})
        if decision.action is Action.STOP:
            return runner.ended(number, TrialOutcome(TrialState.STOPPED, decision.reason))
    return runner.ended(number, FINISHED)


def start_all(runner: StudyRunner) -> list[int]:
    numbers = []
    while (ready := runner.next()) is not None:
        numbers.append(ready.number)
    return numbers


def test_the_requested_number_of_trials_starts(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=3)
    assert start_all(runner) == [0, 1, 2]
    assert runner.is_over


@pytest.mark.slow
def test_a_configuration_that_never_fits_is_learned_but_not_started_or_counted(tmp_path: Path) -> None:
    callback = RecordingCallback()
    runner = make_runner(tmp_path, trials=4, gate=RuleGate(most=40), callbacks=[callback])
    numbers = start_all(runner)
    rejected = [record for record in runner.records if record.state is TrialState.NEVER_FITS]
    assert len(numbers) == 4
    assert rejected
    assert all(record.config["x"] > 40 for record in rejected)
    assert all(runner._searcher.results[record.number] == Result(shortage=0.5) for record in rejected)  # type: ignore[attr-defined]
    assert (rejected[0].number, TrialState.NEVER_FITS) in callback.states
    assert rejected[0].memory.bound == 150


@pytest.mark.slow
def test_a_space_in_which_nothing_fits_ends_with_a_message(tmp_path: Path) -> None:
    callback = RecordingCallback()
    runner = make_runner(tmp_path, trials=1, gate=RuleGate(most=0), callbacks=[callback])
    assert start_all(runner) == []
    assert runner.is_over
    assert any("can never fit" in message for message in callback.messages)


def test_the_result_of_a_stopped_trial_is_partial(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=2, scheduler=Asha("min"))
    start_all(runner)
    run(runner, 0, 0.1)
    run(runner, 1, 0.9)
    assert runner.records[1].state is TrialState.STOPPED
    assert "ASHA at step 1" in runner.records[1].reason
    result: Result = runner._searcher.results[1]  # type: ignore[attr-defined]
    assert (result.value, result.is_partial, result.step) == (0.9, True, 1)


def test_a_nan_metric_stops_the_trial_with_the_reason(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=1)
    start_all(runner)
    run(runner, 0, 0.5, math.nan)
    record = runner.records[0]
    assert record.state is TrialState.STOPPED
    assert record.reason == "`loss` was NaN at step 2"
    assert record.value("loss", "min") == 0.5


def test_the_error_for_a_missing_metric_lists_the_reported_ones(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=2)
    start_all(runner)
    runner.started(0, "cpu", None)
    runner.reported(0, {"accuracy": 0.5})
    with pytest.raises(UsageError, match="Never reported `loss`, only accuracy"):
        runner.ended(0, FINISHED)


def test_a_misspelled_metric_is_an_error_at_the_first_report(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=1)
    start_all(runner)
    runner.started(0, "cpu", None)
    with pytest.raises(
        UsageError, match="reported `losss`, but not the metric `loss`. Did you mean `losss`?"
    ):
        runner.reported(0, {"losss": 0.5})


def test_a_report_without_the_metric_is_mentioned_once(tmp_path: Path) -> None:
    callback = RecordingCallback()
    runner = make_runner(tmp_path, trials=1, callbacks=[callback])
    start_all(runner)
    runner.started(0, "cpu", None)
    for metrics in ({"train_loss": 0.5}, {"train_loss": 0.4}, {"loss": 0.3}, {"train_loss": 0.2}):
        runner.reported(0, metrics)
    assert callback.messages == [
        "Trial 0 reported `train_loss`, but not the metric `loss`. Each trial must report this metric at least once."
    ]


def test_a_study_whose_first_trials_fail_alike_ends(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=9)
    start_all(runner)
    for number in range(3):
        runner.started(number, "cpu", None)
    for number, reason in enumerate(["ValueError: size 4, train.py:7", "ValueError: size 16, train.py:7"]):
        runner.ended(number, TrialOutcome(TrialState.FAILED, reason))
    with pytest.raises(
        UsageError, match="The first 3 trials failed in the same way: ValueError: size 8, train.py:7"
    ):
        runner.ended(2, TrialOutcome(TrialState.FAILED, "ValueError: size 8, train.py:7"))


def test_failures_after_a_report_do_not_end_the_study(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=9)
    start_all(runner)
    for number in range(4):
        runner.started(number, "cpu", None)
    runner.reported(3, {"loss": 1.0})
    for number in range(3):
        runner.ended(number, TrialOutcome(TrialState.FAILED, "ValueError"))


def test_a_requeued_trial_that_no_longer_fits_keeps_its_reports(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=1)
    start_all(runner)
    runner.started(0, "cpu", None)
    runner.reported(0, {"loss": 0.5})
    runner.records[0].config = {"x": 1000}
    runner.records[0].checkpoint_step = 1
    runner.requeue(0, TrialState.PAUSED, "")
    assert runner.next() is None
    record = runner.records[0]
    assert (record.state, record.reason) == (TrialState.STOPPED, "Cannot continue: Too large")
    assert record.value("loss", "min") == 0.5


def test_a_failed_trial_does_not_affect_the_others(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=2)
    start_all(runner)
    run(runner, 0, 0.5)
    runner.started(1, "cpu", None)
    runner.ended(1, TrialOutcome(TrialState.FAILED, "ValueError: no"))
    assert [record.state for record in runner.records] == [TrialState.FINISHED, TrialState.FAILED]


@pytest.mark.slow
def test_a_resumed_study_keeps_completed_trials_and_restarts_the_others(tmp_path: Path) -> None:
    first = make_runner(tmp_path, trials=4, gate=RuleGate(most=60))
    started = start_all(first)
    run(first, started[0], 0.7)
    first.started(started[1], "cpu", None)
    first.reported(started[1], {"loss": 0.3})
    configs = [record.config for record in first.records]
    first.close()

    second = make_runner(tmp_path, trials=4, resume=True, gate=RuleGate(most=60))
    assert [record.config for record in second.records] == configs
    assert second._searcher.results == first._searcher.results  # type: ignore[attr-defined]
    assert start_all(second) == started[1:]
    # Without a checkpoint, the interrupted trial restarts and its reports are discarded.
    assert second.records[started[1]].reports == []


def test_a_resumed_study_repeats_the_calls_of_its_searcher_in_order(tmp_path: Path) -> None:
    before, after = CallRecorder(), CallRecorder()
    first = make_runner(tmp_path, trials=5, searcher=before)
    first.next()
    run(first, 1, 0.3)
    first.next()
    run(first, 0, 0.5)
    first.next()
    first.close()
    make_runner(tmp_path, trials=5, resume=True, searcher=after).close()
    assert after.calls == before.calls
    assert before.calls.index("learn 1") < before.calls.index("propose 2")


def test_a_learning_searcher_proposes_one_trial_at_a_time_after_the_random_ones(tmp_path: Path) -> None:
    searcher = CallRecorder()
    runner = make_runner(tmp_path, trials=9, searcher=searcher)
    assert not runner.learns
    runner.next(ahead=4)
    assert searcher.calls == ["propose 0", "propose 1"]
    assert runner.learns


def test_the_searcher_gets_the_last_value_and_the_record_contains_the_best(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=1)
    start_all(runner)
    run(runner, 0, 0.2, 0.4)
    result: Result = runner._searcher.results[0]  # type: ignore[attr-defined]
    assert (result.value, result.step, result.best) == (0.4, 2, 0.2)
    assert runner.records[0].value("loss", "min") == 0.2


def test_an_interrupted_trial_continues_from_its_checkpoint(tmp_path: Path) -> None:
    first = make_runner(tmp_path, trials=1)
    start_all(first)
    first.started(0, "cpu", None)
    checkpoint = tmp_path / "checkpoint-1.pt"
    checkpoint.write_text("weights")
    first.reported(0, {"loss": 0.5}, checkpoint=str(checkpoint))
    first.reported(0, {"loss": 0.4})
    first.close()

    second = make_runner(tmp_path, trials=1, resume=True)
    ready = second.next()
    assert ready is not None
    assert ready.checkpoint == str(checkpoint)
    assert ready.step == 1
    assert [report.metrics["loss"] for report in second.records[0].reports] == [0.5]


def test_only_the_best_and_the_latest_checkpoint_are_kept(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=1)
    start_all(runner)
    runner.started(0, "cpu", None)
    for step, loss in enumerate([0.5, 0.1, 0.3, 0.2], start=1):
        path = tmp_path / f"checkpoint-{step}.pt"
        path.write_text("weights")
        runner.reported(0, {"loss": loss}, checkpoint=str(path))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-2.pt",
        "checkpoint-4.pt",
    ]
    assert runner.records[0].checkpoint == str(tmp_path / "checkpoint-2.pt")


def test_a_checkpoint_is_deleted_only_after_the_next_one_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a study is killed while it stores a report, it can still load the previous checkpoint."""
    runner = make_runner(tmp_path, trials=1)
    start_all(runner)
    runner.started(0, "cpu", None)
    stored: list[bool] = []
    store = runner._store.report

    def report(record: TrialRecord, *arguments: Any) -> None:
        (on_disk,) = read_study(tmp_path)[1]
        stored.append(on_disk.last_checkpoint is None or Path(on_disk.last_checkpoint).exists())
        store(record, *arguments)

    monkeypatch.setattr(runner._store, "report", report)
    for step in (1, 2, 3):
        path = tmp_path / f"checkpoint-{step}.pt"
        path.write_text("weights")
        runner.reported(0, {"loss": 1 / step}, checkpoint=str(path))
    assert stored == [True, True, True]
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3.pt"]


def test_a_trial_that_copied_weights_does_not_delete_the_best_checkpoint_of_the_other_trial(
    tmp_path: Path,
) -> None:
    runner = make_runner(tmp_path, trials=2)
    start_all(runner)
    paths = [tmp_path / f"checkpoint-{number}.pt" for number in range(4)]
    for path in paths:
        path.write_text("weights")
    for number in (0, 1):
        runner.started(number, "cpu", None)
        runner.reported(number, {"loss": float(number)}, checkpoint=str(paths[number]))
    runner.exploit(1, Decision(Action.EXPLOIT, parent=0, config={"x": 1}))
    runner.reported(0, {"loss": 5.0}, checkpoint=str(paths[2]))  # the first report of trial 0 stays its best
    runner.reported(1, {"loss": 2.0}, checkpoint=str(paths[3]))
    assert runner.records[0].checkpoint == str(paths[0])
    assert paths[0].exists()


def test_an_incomplete_final_state_is_completed_on_resuming(tmp_path: Path) -> None:
    first = make_runner(tmp_path, trials=1)
    start_all(first)
    first.started(0, "cpu", None)
    first.reported(0, {"loss": 0.25})
    first.records[0].state = TrialState.FINISHED
    first._store.change(first.records[0])  # the kill comes before the value is stored
    first.close()

    make_runner(tmp_path, trials=1, resume=True).close()
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / FILE}")
    study = optuna.load_study(study_name=None, storage=storage)
    assert [(trial.state.name, trial.value) for trial in study.trials] == [("COMPLETE", 0.25)]


def test_an_out_of_memory_error_corrects_the_gate(tmp_path: Path) -> None:
    gate = RuleGate()
    gpu = TrialGpu(index=0, memory=100, virtual=True)
    runner = make_runner(tmp_path, trials=1, gate=gate, gpus=[gpu])
    start_all(runner)
    runner.record_oom(0, Fit(predicted=50, safe=60), 60)
    assert gate.corrections == [60]


def test_without_resume_an_existing_study_is_not_overwritten(tmp_path: Path) -> None:
    make_runner(tmp_path, trials=1).close()
    with pytest.raises(UsageError, match="already contains a study"):
        make_runner(tmp_path, trials=1)


def test_a_running_study_cannot_be_opened_twice(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=1)
    with pytest.raises(UsageError, match="running in another process"):
        make_runner(tmp_path, trials=1, resume=True)
    runner.close()


def test_a_study_cannot_be_resumed_with_another_metric(tmp_path: Path) -> None:
    make_runner(tmp_path, trials=1).close()
    with pytest.raises(UsageError, match="started with a different metric"):
        StudyStore(tmp_path, resume=True, mode="min", facts={"metric": "accuracy"})


@pytest.mark.slow
def test_the_records_on_disk_equal_those_in_memory(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=3, gate=RuleGate(most=60))
    for number in start_all(runner):
        run(runner, number, 0.5 + number, 0.25 + number)
    runner.close()
    _, records = read_study(tmp_path)
    assert records == runner.records


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(Exception, match="could not be saved"):
        make_runner(blocked / "study", trials=1)


def test_a_full_disk_is_an_error_and_keeps_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from legroom.tuning.store import StoreError

    runner = make_runner(tmp_path, trials=2)
    start_all(runner)
    run(runner, 0, 0.5)

    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(runner._store._storage, "set_trial_user_attr", full)
    with pytest.raises(StoreError, match="the disk is full. Free some space"):
        runner.started(1, "cpu", None)
    monkeypatch.undo()
    runner.close()
    assert read_study(tmp_path)[1][0].state is TrialState.FINISHED


@pytest.mark.slow
def test_a_trial_that_copied_weights_is_recorded_with_the_configuration_of_its_best_value(
    tmp_path: Path,
) -> None:
    runner = make_runner(tmp_path, trials=2)
    start_all(runner)
    own = runner.records[1].config
    for number in (0, 1):
        runner.started(number, "cpu", None)
        runner.reported(number, {"loss": 1.0})
    runner.exploit(1, Decision(Action.EXPLOIT, "behind", parent=0, config={"x": 7}))
    runner.started(1, "cpu", None)
    runner.reported(1, {"loss": 5.0})
    runner.ended(1, FINISHED)
    runner.close()
    _, records = read_study(tmp_path)
    assert records[1].config == own
    assert [records[1].config_at(step) for step in (1, 2)] == [own, {"x": 7}]


def test_estimate_and_measured_peak_belong_to_the_same_start(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=1)
    start_all(runner)
    runner.started(0, "cpu", Fit(predicted=90, safe=100))
    runner.reported(0, {"loss": 1.0}, checkpoint="weights", actual_bytes=80)
    runner.exploit(0, Decision(Action.EXPLOIT, parent=0, config={"x": 1}))
    runner.started(0, "cpu", Fit(predicted=40, safe=50, micro_batch=2))
    runner.reported(0, {"loss": 0.9}, actual_bytes=30)
    memory = runner.records[0].memory
    assert (memory.safe, memory.micro_batch, memory.actual) == (50, 2, 30)


def test_steps_after_copying_weights_belong_to_the_new_configuration(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, trials=2)
    start_all(runner)
    own = runner.records[1].config
    runner.started(1, "cpu", None)
    runner.reported(1, {"loss": 5.0})
    runner.exploit(1, Decision(Action.EXPLOIT, "behind", parent=0, config={"x": 7}))
    runner.reported(1, {"loss": 1.0})
    runner.ended(1, FINISHED)
    record = runner.records[1]
    assert record.config == {"x": 7}
    assert record.config_at(1) == own
