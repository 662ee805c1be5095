"""Supports plain functions as callbacks of a study, as in Optuna: `callback(study, trial)` is called when a trial
ends."""

from collections.abc import Callable, Sequence

from legroom.tuning.job import StudyCallback, TuneJob
from legroom.tuning.study import Study
from legroom.tuning.trial.records import TrialRecord

FunctionOfStudy = Callable[[Study, TrialRecord], object]


def as_callback(given: StudyCallback | FunctionOfStudy) -> StudyCallback:
    return given if isinstance(given, StudyCallback) else _FunctionCallback(given)


class _FunctionCallback:
    def __init__(self, function: FunctionOfStudy) -> None:
        self._function = function
        self._ended: set[int] = set()

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None:
        self._study = Study.of(job, records)
        self._ended = {record.number for record in records if record.state.is_final}

    def on_trial_update(self, record: TrialRecord) -> None:
        if record.state.is_final and record.number not in self._ended:
            self._ended.add(record.number)
            self._function(self._study, record)

    def on_message(self, message: str) -> None:
        pass

    def on_study_end(self) -> None:
        pass
