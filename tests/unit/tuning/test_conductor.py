"""The conductor: what is proposed, admitted, cut short, learned and written, and how it goes on after an interruption."""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from legroom.errors import UsageError
from legroom.tuning.engines.engine import Job
from legroom.tuning.memory.admission import NO_GPU, Admission, Fit, Place, Verdict
from legroom.tuning.schedule.schedulers import Action, Asha, Decision
from legroom.tuning.search.searchers import RandomSearcher, Result
from legroom.tuning.space.space import Config, read_space
from legroom.tuning.store import Store, read_study
from legroom.tuning.study_runner import Conductor
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.records import Ending, TrialRecord, TrialState

SPACE = read_space({"x": {"int": [1, 100]}})
FINISHED = Ending(TrialState.FINISHED)


class Learned(RandomSearcher):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(SPACE, seed=1)
        self.told: dict[int, Result] = {}

    def learn(self, number: int, config: Config, result: Result) -> None:
        self.told[number] = result


class InOrder(Learned):
    """Remembers what it was asked and told, in order, and draws without regard to it in its first two proposals only."""

    start_up: int | None = 2

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def propose(self, number: int) -> Config | None:
        self.heard.append(f"asked for {number}")
        return super().propose(number)

    def learn(self, number: int, config: Config, result: Result) -> None:
        self.heard.append(f"told of {number}")
        super().learn(number, config, result)


class RuleGate:
    """Configurations above a number never fit."""

    is_looking = False

    def __init__(self, most: int = 100) -> None:
        self.most = most
        self.corrections: list[int] = []

    def ask(self, config: Config) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        too_large = Admission(verdict=Verdict.NEVER, fits={}, why="far too large", shortage=0.5, needed=150)
        answer.set_result(too_large if config["x"] > self.most else NO_GPU)
        return answer

    def ran_out(self, config: Config, fit: Fit, needed: int) -> None:
        self.corrections.append(needed)

    def close(self) -> None: ...


class Notes:
    """A watcher."""

    def __init__(self) -> None:
        self.states: list[tuple[int, TrialState]] = []
        self.sentences: list[str] = []

    def changed(self, record: TrialRecord) -> None:
        self.states.append((record.number, record.state))

    def begun(self, job: Job, records: Sequence[TrialRecord]) -> None: ...

    def said(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def closed(self) -> None: ...


def conduct(
    folder: Path,
    *,
    resume: bool = False,
    gate: Any = None,
    scheduler: Any = None,
    watchers: Any = (),
    searcher: Any = None,
    **job: Any,
) -> Conductor:
    asked = Job(
        function=TrainFunction(name="train"), space=SPACE, metric="loss", mode="min", folder=folder, **job
    )
    store = Store(folder, resume=resume, mode="min", facts={"metric": "loss"})
    return Conductor(asked, searcher or Learned(), scheduler, gate or RuleGate(), store, watchers)


def run(conductor: Conductor, number: int, *losses: float) -> None:
    """A trial from its start to its end, as an engine tells it."""
    conductor.started(number, "cpu", None)
    for loss in losses:
        decision = conductor.reported(number, {"loss": loss})
        if decision.action is Action.STOP:
            return conductor.ended(number, Ending(TrialState.STOPPED, decision.why))
    return conductor.ended(number, FINISHED)


def hand_out_all(conductor: Conductor) -> list[int]:
    numbers = []
    while (ready := conductor.next()) is not None:
        numbers.append(ready.number)
    return numbers


def test_as_many_trials_are_handed_out_as_were_asked_for(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=3)
    assert hand_out_all(conductor) == [0, 1, 2]
    assert conductor.is_over


def test_what_never_fits_is_not_started_not_counted_and_learned(tmp_path: Path) -> None:
    notes = Notes()
    conductor = conduct(tmp_path, trials=4, gate=RuleGate(most=40), watchers=[notes])
    numbers = hand_out_all(conductor)
    rejected = [record for record in conductor.records if record.state is TrialState.NEVER_FITS]
    assert len(numbers) == 4
    assert rejected
    assert all(record.config["x"] > 40 for record in rejected)
    assert all(conductor._searcher.told[record.number] == Result(shortage=0.5) for record in rejected)  # type: ignore[attr-defined]
    assert (rejected[0].number, TrialState.NEVER_FITS) in notes.states
    assert rejected[0].memory.foretold == 150


def test_a_space_in_which_nothing_fits_ends_with_a_sentence(tmp_path: Path) -> None:
    notes = Notes()
    conductor = conduct(tmp_path, trials=1, gate=RuleGate(most=0), watchers=[notes])
    assert hand_out_all(conductor) == []
    assert conductor.is_over
    assert any("can never fit" in sentence for sentence in notes.sentences)


def test_a_trial_cut_short_is_learned_as_partial(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=2, scheduler=Asha("min"))
    hand_out_all(conductor)
    run(conductor, 0, 0.1)
    run(conductor, 1, 0.9)
    assert conductor.records[1].state is TrialState.STOPPED
    assert "ASHA at step 1" in conductor.records[1].why
    told: Result = conductor._searcher.told[1]  # type: ignore[attr-defined]
    assert (told.value, told.is_partial, told.step) == (0.9, True, 1)


def test_a_metric_that_is_no_number_ends_the_trial_with_the_reason(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=1)
    hand_out_all(conductor)
    run(conductor, 0, 0.5, math.nan)
    record = conductor.records[0]
    assert record.state is TrialState.STOPPED
    assert record.why == "loss was no number (NaN) at step 2"
    assert record.value("loss", "min") == 0.5


def test_a_metric_that_is_never_reported_ends_the_study_with_what_was(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=2)
    hand_out_all(conductor)
    conductor.started(0, "cpu", None)
    conductor.reported(0, {"accuracy": 0.5})
    with pytest.raises(UsageError, match="never reported 'loss', only accuracy"):
        conductor.ended(0, FINISHED)


def test_a_trial_that_ran_and_finds_no_room_any_more_keeps_what_it_reported(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=1)
    hand_out_all(conductor)
    conductor.started(0, "cpu", None)
    conductor.reported(0, {"loss": 0.5})
    conductor.records[0].config = {"x": 1000}
    conductor.records[0].checkpoint_step = 1
    conductor.put_back(0, TrialState.PAUSED, "")
    assert conductor.next() is None
    record = conductor.records[0]
    assert (record.state, record.why) == (TrialState.STOPPED, "it cannot go on: far too large")
    assert record.value("loss", "min") == 0.5


def test_a_failed_trial_leaves_the_others_alone(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=2)
    hand_out_all(conductor)
    run(conductor, 0, 0.5)
    conductor.started(1, "cpu", None)
    conductor.ended(1, Ending(TrialState.FAILED, "ValueError: no"))
    assert [record.state for record in conductor.records] == [TrialState.FINISHED, TrialState.FAILED]


def test_a_resumed_study_keeps_what_ended_and_hands_out_what_did_not(tmp_path: Path) -> None:
    first = conduct(tmp_path, trials=4, gate=RuleGate(most=60))
    handed_out = hand_out_all(first)
    run(first, handed_out[0], 0.7)
    first.started(handed_out[1], "cpu", None)
    first.reported(handed_out[1], {"loss": 0.3})
    configs = [record.config for record in first.records]
    first.close()

    second = conduct(tmp_path, trials=4, resume=True, gate=RuleGate(most=60))
    assert [record.config for record in second.records] == configs
    assert second._searcher.told == first._searcher.told  # type: ignore[attr-defined]
    assert hand_out_all(second) == handed_out[1:]
    # Without a checkpoint the interrupted trial begins anew, so what it had reported is taken back.
    assert second.records[handed_out[1]].reports == []


def test_a_resumed_study_asks_and_tells_its_searcher_in_the_order_of_the_first_time(tmp_path: Path) -> None:
    before, after = InOrder(), InOrder()
    first = conduct(tmp_path, trials=5, searcher=before)
    first.next()
    run(first, 1, 0.3)
    first.next()
    run(first, 0, 0.5)
    first.next()
    first.close()
    conduct(tmp_path, trials=5, resume=True, searcher=after).close()
    assert after.heard == before.heard
    assert before.heard.index("told of 1") < before.heard.index("asked for 2")


def test_a_search_that_learns_is_asked_for_one_trial_at_a_time_after_its_random_ones(tmp_path: Path) -> None:
    searcher = InOrder()
    conductor = conduct(tmp_path, trials=9, searcher=searcher)
    assert not conductor.learns
    conductor.next(ahead=4)
    assert searcher.heard == ["asked for 0", "asked for 1"]
    assert conductor.learns


def test_a_searcher_is_told_the_last_value_and_the_record_has_the_best(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=1)
    hand_out_all(conductor)
    run(conductor, 0, 0.2, 0.4)
    told: Result = conductor._searcher.told[0]  # type: ignore[attr-defined]
    assert (told.value, told.step, told.best) == (0.4, 2, 0.2)
    assert conductor.records[0].value("loss", "min") == 0.2


def test_an_interrupted_trial_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = conduct(tmp_path, trials=1)
    hand_out_all(first)
    first.started(0, "cpu", None)
    checkpoint = tmp_path / "checkpoint-1.pt"
    checkpoint.write_text("weights")
    first.reported(0, {"loss": 0.5}, checkpoint=str(checkpoint))
    first.reported(0, {"loss": 0.4})
    first.close()

    second = conduct(tmp_path, trials=1, resume=True)
    ready = second.next()
    assert ready is not None
    assert ready.checkpoint == str(checkpoint)
    assert ready.step == 1
    assert [report.metrics["loss"] for report in second.records[0].reports] == [0.5]


def test_the_best_and_the_latest_checkpoint_are_kept_and_no_others(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=1)
    hand_out_all(conductor)
    conductor.started(0, "cpu", None)
    for step, loss in enumerate([0.5, 0.1, 0.3, 0.2], start=1):
        path = tmp_path / f"checkpoint-{step}.pt"
        path.write_text("weights")
        conductor.reported(0, {"loss": loss}, checkpoint=str(path))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-2.pt",
        "checkpoint-4.pt",
    ]
    assert conductor.records[0].checkpoint == str(tmp_path / "checkpoint-2.pt")


def test_a_full_gpu_corrects_the_gate(tmp_path: Path) -> None:
    gate = RuleGate()
    place = Place(index=0, memory=100, virtual=True)
    conductor = conduct(tmp_path, trials=1, gate=gate, places=[place])
    hand_out_all(conductor)
    conductor.ran_out(0, Fit(predicted=50, safe=60), 60)
    assert gate.corrections == [60]


def test_a_study_without_resume_is_not_written_over(tmp_path: Path) -> None:
    conduct(tmp_path, trials=1).close()
    with pytest.raises(UsageError, match="there is a study in .* already"):
        conduct(tmp_path, trials=1)


def test_a_study_that_runs_cannot_be_opened_twice(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=1)
    with pytest.raises(UsageError, match="running in another process"):
        conduct(tmp_path, trials=1, resume=True)
    conductor.close()


def test_a_study_is_not_resumed_with_another_metric(tmp_path: Path) -> None:
    conduct(tmp_path, trials=1).close()
    with pytest.raises(UsageError, match="begun with another metric"):
        Store(tmp_path, resume=True, mode="min", facts={"metric": "accuracy"})


def test_what_is_on_disk_is_what_happened(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=3, gate=RuleGate(most=60))
    for number in hand_out_all(conductor):
        run(conductor, number, 0.5 + number, 0.25 + number)
    conductor.close()
    _, records = read_study(tmp_path)
    assert records == conductor.records


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(Exception, match="cannot be written"):
        conduct(blocked / "study", trials=1)


def test_a_full_disk_is_told_and_what_was_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from legroom.tuning.store import StoreError

    conductor = conduct(tmp_path, trials=2)
    hand_out_all(conductor)
    run(conductor, 0, 0.5)

    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(conductor._store._storage, "set_trial_user_attr", full)
    with pytest.raises(StoreError, match="the disk is full; make room"):
        conductor.started(1, "cpu", None)
    monkeypatch.undo()
    conductor.close()
    assert read_study(tmp_path)[1][0].state is TrialState.FINISHED


def test_a_trial_that_took_over_is_recorded_with_the_configuration_of_its_best_value(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=2)
    hand_out_all(conductor)
    own = conductor.records[1].config
    for number in (0, 1):
        conductor.started(number, "cpu", None)
        conductor.reported(number, {"loss": 1.0})
    conductor.take_over(1, Decision(Action.TAKE_OVER, "behind", parent=0, config={"x": 7}))
    conductor.started(1, "cpu", None)
    conductor.reported(1, {"loss": 5.0})
    conductor.ended(1, FINISHED)
    conductor.close()
    _, records = read_study(tmp_path)
    assert records[1].config == own
    assert [records[1].config_at(step) for step in (1, 2)] == [own, {"x": 7}]


def test_steps_made_after_taking_over_are_of_the_new_configuration(tmp_path: Path) -> None:
    conductor = conduct(tmp_path, trials=2)
    hand_out_all(conductor)
    own = conductor.records[1].config
    conductor.started(1, "cpu", None)
    conductor.reported(1, {"loss": 5.0})
    conductor.take_over(1, Decision(Action.TAKE_OVER, "behind", parent=0, config={"x": 7}))
    conductor.reported(1, {"loss": 1.0})
    conductor.ended(1, FINISHED)
    record = conductor.records[1]
    assert record.config == {"x": 7}
    assert record.config_at(1) == own
