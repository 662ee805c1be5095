"""A study on disk: Optuna's storage in one SQLite file, and a folder for each trial.

Everything is written when it happens, in transactions, so a study that is killed has all that had ended. A trial waits until its report is written, so that must be quick: what is
written goes to SQLite's log beside the file (`study.db-wal`) and is not waited for until it lies on the disk, only until the system has it; when the study ends, the file is whole again. Other tools that read
Optuna's storage (its dashboard) see configurations, values and states; what Optuna has no word for is kept as attributes.
"""

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from legroom.errors import LegroomError, MissingExtra, UsageError
from legroom.tuning.space.domains import AnyDomain, Choice, FloatRange, IntRange
from legroom.tuning.space.space import Space
from legroom.tuning.trial.records import Mode, Report, TrialMemory, TrialRecord, TrialState

FILE = "study.db"
_NAME = "legroom"
_REPORT = "report:"
"""Before a step: the attribute that holds what was reported."""


class StoreError(LegroomError):
    """The study cannot be written or read."""


class _Connection(sqlite3.Connection):
    """One that keeps a log. Where SQLite can keep none (some network file systems) everything is as it was, and slower."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with contextlib.suppress(sqlite3.OperationalError):
            if self.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",):
                self.execute("PRAGMA synchronous=NORMAL")


class Store:
    """One study. Only one process writes to it."""

    def __init__(self, folder: Path, *, resume: bool, mode: Mode, facts: Mapping[str, Any]) -> None:
        """`facts` (metric, space) are compared with those of the study that is resumed."""
        try:
            import optuna
        except ModuleNotFoundError:
            raise MissingExtra("Optuna, which keeps the study,", "tune") from None
        self._optuna = optuna
        self.folder = folder
        exists = (folder / FILE).exists()
        if exists and not resume:
            raise UsageError(
                f"there is a study in {folder} already: go on with it (resume), or choose another folder (storage)"
            )
        with _told_if_full(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _told_if_full(folder):
            self._storage = optuna.storages.RDBStorage(
                f"sqlite:///{folder / FILE}",
                engine_kwargs={"connect_args": {"timeout": 30, "factory": _Connection}},
            )
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=_NAME,
                direction="minimize" if mode == "min" else "maximize",
                load_if_exists=True,
            )
        known = self._study.user_attrs.get("facts")
        if known is not None and known != json.loads(json.dumps(facts)):
            changed = sorted(
                name
                for name in {*known, *facts}
                if known.get(name) != json.loads(json.dumps(facts)).get(name)
            )
            self.close()
            raise UsageError(
                f"the study in {folder} was begun with another {' and '.join(changed)}: resume it with the same, or choose another folder"
            )
        if known is None:
            with _told_if_full(folder):
                self._study.set_user_attr("facts", dict(facts))
        self._ids: dict[int, int] = {}
        self._last: dict[int, str] = {}
        self._reports: dict[int, int] = {}
        """Trial → reports of it that are on disk, those that were taken back among them."""

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def load(self) -> list[TrialRecord]:
        """Every trial there is, in order."""
        records = []
        for frozen in self._study.get_trials(deepcopy=False):
            record = _record(frozen)
            self._ids[record.number] = frozen._trial_id
            self._reports[record.number] = _reports_in(frozen)
            records.append(record)
        return records

    def add(self, record: TrialRecord, space: Space) -> None:
        """A new trial."""
        distributions = {p.name: _distribution(p.domain) for p in space.parameters if p.name in record.config}
        template = self._optuna.trial.create_trial(
            state=self._optuna.trial.TrialState.RUNNING,
            params={name: record.config[name] for name in distributions},
            distributions=distributions,
            user_attrs={"legroom": self._rest(record)},
        )
        with _told_if_full(self.folder):
            trial_id = self._storage.create_new_trial(self._study._study_id, template_trial=template)
        assert self._storage.get_trial(trial_id).number == record.number, "one process writes, in order"
        self._ids[record.number] = trial_id

    def report(self, record: TrialRecord, report: Report, metric: str) -> None:
        """A new report, which `record` has already."""
        identity = self._ids[record.number]
        with _told_if_full(self.folder):
            if metric in report.metrics:
                self._storage.set_trial_intermediate_value(identity, report.step, report.metrics[metric])
            told = {"metrics": report.metrics, "seconds": report.seconds}
            self._storage.set_trial_user_attr(identity, f"{_REPORT}{report.step}", told)
        self._reports[record.number] = max(report.step, self._reports.get(record.number, 0))
        self.change(record)

    def change(self, record: TrialRecord) -> None:
        """Whatever else is known of a trial."""
        rest = self._rest(record)
        text = json.dumps(rest, sort_keys=True)
        if self._last.get(record.number) != text:
            with _told_if_full(self.folder):
                self._storage.set_trial_user_attr(self._ids[record.number], "legroom", rest)
            self._last[record.number] = text

    def end(self, record: TrialRecord, value: float | None) -> None:
        """A trial has reached a final state: from here on nothing of it changes."""
        self.change(record)
        states = self._optuna.trial.TrialState
        state = states.FAIL
        if record.state is TrialState.FINISHED and value is not None:
            state = states.COMPLETE
        elif record.state in (TrialState.STOPPED, TrialState.NEVER_FITS):
            state = states.PRUNED
        identity = self._ids[record.number]
        with _told_if_full(self.folder):
            if record.memory.shortage:
                self._storage.set_trial_system_attr(identity, "constraints", [record.memory.shortage])
            self._storage.set_trial_state_values(
                identity, state, None if value is None or state is states.FAIL else [value]
            )

    def _rest(self, record: TrialRecord) -> dict[str, Any]:
        """What is kept of a record beside its reports, and how many of these count, if not all."""
        told = record.as_dict()
        reports = len(told.pop("reports"))
        told["steps"] = None if reports == self._reports.get(record.number, 0) else reports
        return told

    def close(self) -> None:
        """Let another process have it."""
        _let_go(self._storage)
        self._lock.close()


def read_study(folder: Path) -> tuple[dict[str, Any], list[TrialRecord]]:
    """The facts and the trials of a study on disk, which may be running."""
    if not (folder / FILE).is_file():
        raise UsageError(f"there is no study in {folder}")
    try:
        import optuna
    except ModuleNotFoundError:
        raise MissingExtra("Optuna, which keeps the study,", "tune") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / FILE}")
    try:
        study = optuna.load_study(storage=storage, study_name=_NAME)
        records = [_record(frozen) for frozen in study.get_trials(deepcopy=False)]
        return study.user_attrs.get("facts", {}), records
    finally:
        _let_go(storage)


def _let_go(storage: Any) -> None:
    """Close its connections: the last one that is closed makes the file whole."""
    with contextlib.suppress(Exception):
        storage.remove_session()
        storage.engine.dispose()


def _reports_in(frozen: Any) -> int:
    """Those that are on disk."""
    return sum(name.startswith(_REPORT) for name in frozen.user_attrs)


def _record(frozen: Any) -> TrialRecord:
    rest = dict(frozen.user_attrs["legroom"])
    rest["state"] = TrialState(rest["state"])
    rest["memory"] = TrialMemory(**rest["memory"])
    rest["number"] = frozen.number
    # Reports beyond these were taken back: an interrupted trial makes their steps again.
    steps = rest.pop("steps")
    if steps is None:
        steps = _reports_in(frozen)
    told = {step: frozen.user_attrs[f"{_REPORT}{step}"] for step in range(1, steps + 1)}
    reports = [Report(step, dict(told[step]["metrics"]), told[step]["seconds"]) for step in told]
    return TrialRecord(**rest, reports=reports)


def _distribution(domain: AnyDomain) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.options)
    if isinstance(domain, FloatRange):
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    if isinstance(domain, IntRange):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    return IntDistribution(2**domain.low, 2**domain.high, log=True)


def _locked(folder: Path) -> IO[str]:
    with _told_if_full(folder):
        file = open(folder / "lock", "w")  # noqa: SIM115  (held as long as the study is open)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UsageError(
            f"the study in {folder} is running in another process: wait for it, or choose another folder"
        ) from None
    os.set_inheritable(file.fileno(), False)
    return file


@contextlib.contextmanager
def _told_if_full(folder: Path) -> Iterator[None]:
    """A disk that is full or closed to us ends the study with a sentence; what was written before stays."""
    try:
        yield
    except LegroomError:
        raise
    except Exception as error:
        said = " ".join(str(each).lower() for each in _chain(error))
        if any("full" in str(each) or getattr(each, "errno", 0) == errno.ENOSPC for each in _chain(error)):
            why = "the disk is full"
        elif isinstance(error, OSError) or any(words in said for words in _NOT_WRITABLE):
            why = "it is not allowed or not possible"
        else:
            raise
        raise StoreError(
            f"the study in {folder} cannot be written: {why}; make room or choose another folder, then resume"
        ) from None


_NOT_WRITABLE = ("disk i/o", "readonly", "unable to open")
"""What SQLite says of a place that it cannot write to."""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came from: Optuna wraps what SQLite says."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
