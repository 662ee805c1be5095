"""What the loggers share: which figures go out, and that a log that cannot be written never ends a study."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from legroom.log import log
from legroom.tuning.engines.engine import Job
from legroom.tuning.trial.records import TrialRecord


class Logger:
    """A watcher whose own failures cost the log, not the study: the first is told, and it writes no more.

    Under it a logger implements `write_report` (once for each report) and `end` (once for each trial).
    """

    name: str

    def __init__(self) -> None:
        self._written: dict[int, int] = {}
        self._ended: set[int] = set()
        self._is_broken = False

    def begun(self, job: Job, records: Sequence[TrialRecord]) -> None:
        """What was logged before the study was interrupted is not logged again."""
        self._written |= {record.number: len(record.reports) for record in records}
        self._ended |= {record.number for record in records if record.state.is_final}

    def changed(self, record: TrialRecord) -> None:
        """Writes what is new since the last time. A trial that was rejected before it started is over at once."""
        if record.number in self._ended:
            return
        done = self._written.get(record.number, 0)
        for index in range(done, len(record.reports)):
            self._written[record.number] = index + 1
            self._try(partial(self.write_report, record, index))
        if record.state.is_final:
            self._ended.add(record.number)
            self._try(partial(self.end, record))

    def said(self, sentence: str) -> None:
        """Sentences are for people: a log of figures has no place for them."""

    def closed(self) -> None:
        self._try(self.close)

    def write_report(self, record: TrialRecord, index: int) -> None:
        raise NotImplementedError

    def end(self, record: TrialRecord) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def _try(self, write: Callable[[], Any]) -> None:
        if self._is_broken:
            return
        try:
            write()
        except Exception as error:  # a full disk, a server that is gone, a library's own fault
            self._is_broken = True
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            log.warning("%s could not be written (%s): the study goes on without it.", self.name, reason)


def memory_figures(record: TrialRecord) -> dict[str, float]:
    """Memory in MiB, by the names that the logs use; only what is known."""
    memory = record.memory
    told = {
        "memory/predicted_mib": memory.predicted,
        "memory/safe_mib": memory.safe,
        "memory/actual_mib": memory.actual,
    }
    figures = {name: value / 2**20 for name, value in told.items() if value is not None}
    if memory.micro_batch is not None:
        figures["memory/micro_batch"] = float(memory.micro_batch)
    if memory.ooms:
        figures["memory/survived_ooms"] = float(memory.ooms)
    return figures


def plain_config(record: TrialRecord) -> dict[str, Any]:
    """The configuration as every log takes it: numbers, texts and truths; the class of anything else."""
    return {
        name: value if isinstance(value, bool | int | float | str) else type(value).__name__
        for name, value in record.config.items()
        if value is not None
    }
