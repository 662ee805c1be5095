"""Trials that run in the caller's own loop, and functions as callbacks."""

from pathlib import Path

import pytest

from legroom.errors import UsageError
from legroom.tuning.ask_tell import AskTell
from legroom.tuning.callbacks import as_callback
from legroom.tuning.job import TuneJob
from legroom.tuning.space.space import read_space
from legroom.tuning.study import Study
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.records import TrialRecord, TrialState

SPACE = {"x": {"uniform": [-4, 4]}}


@pytest.mark.slow
def test_a_resumed_search_asks_for_the_unfinished_trial_first(tmp_path: Path) -> None:
    with AskTell(SPACE, search="optuna", storage=tmp_path, points_to_evaluate=[{"x": 1.0}]) as search:
        first, failed, left_open = search.ask(), search.ask(), search.ask()
        assert first.config == {"x": 1.0}
        search.tell(first, first.config["x"] ** 2)
        search.tell(failed, None)
        with pytest.raises(UsageError, match="Trial 0 already has a result"):
            search.tell(first, 2.0)
        assert search.study.best_params == {"x": 1.0}
    with AskTell(SPACE, search="optuna", storage=tmp_path, resume=True) as resumed:
        assert resumed.ask() == left_open
        resumed.tell(left_open, {"loss": 0.5, "accuracy": 0.9})
    study = Study.load(tmp_path)
    assert [trial.state for trial in study.trials] == [
        TrialState.FINISHED,
        TrialState.FAILED,
        TrialState.FINISHED,
    ]
    assert study.best_trial.number == 2


def test_a_function_is_called_once_for_each_trial_that_ends(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    callback = as_callback(lambda study, trial: calls.append((study.metric, trial.number)))
    records = [TrialRecord(number=number, config={"x": 0.0}) for number in range(2)]
    records[0].state = TrialState.FINISHED
    job = TuneJob(
        function=TrainFunction(name="train"),
        space=read_space(SPACE),
        metric="loss",
        mode="min",
        folder=tmp_path,
    )
    callback.on_study_start(job, records)
    for record in (records[0], records[1], records[1]):
        callback.on_trial_update(record)
        records[1].state = TrialState.STOPPED
    assert calls == [("loss", 1)]
    assert as_callback(callback) is callback
