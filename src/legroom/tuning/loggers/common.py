"""The base class of the loggers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from legroom.tuning.job import TuneJob
from legroom.tuning.loggers.packages import FailSafeLog
from legroom.tuning.trial.records import TrialRecord


class Logger(FailSafeLog):
    """A callback that writes a log. If writing fails, the logger stops, but the study continues.

    Subclasses implement `write_report` (called once per report) and `end` (called once per trial).
    """

    subject = "The study"

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[int, int] = {}
        self._ended: set[int] = set()

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None:
        self._written |= {record.number: len(record.reports) for record in records}
        self._ended |= {record.number for record in records if record.state.is_final}

    def on_trial_update(self, record: TrialRecord) -> None:
        if record.number in self._ended:
            return
        done = self._written.get(record.number, 0)
        for index in range(done, len(record.reports)):
            self._written[record.number] = index + 1
            self._try(partial(self.write_report, record, index))
        if record.state.is_final:
            self._ended.add(record.number)
            self._try(partial(self.end, record))

    def on_message(self, message: str) -> None:
        """Do nothing, because messages are shown only in the terminal."""

    def on_study_end(self) -> None:
        self._try(self.close)

    def write_report(self, record: TrialRecord, index: int) -> None:
        raise NotImplementedError

    def end(self, record: TrialRecord) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def memory_figures(record: TrialRecord) -> dict[str, float]:
    memory = record.memory
    sizes = {
        "memory/predicted_mib": memory.predicted,
        "memory/safe_mib": memory.safe,
        "memory/actual_mib": memory.actual,
    }
    figures = {name: value / 2**20 for name, value in sizes.items() if value is not None}
    if memory.micro_batch is not None:
        figures["memory/micro_batch"] = float(memory.micro_batch)
    if memory.ooms:
        figures["memory/survived_ooms"] = float(memory.ooms)
    return figures


def plain_config(record: TrialRecord) -> dict[str, Any]:
    """Return the configuration in a form that every logger accepts. Values other than numbers, strings and booleans are
    replaced by their class name.
    """
    return {
        name: value if isinstance(value, bool | int | float | str) else type(value).__name__
        for name, value in record.config.items()
        if value is not None
    }
