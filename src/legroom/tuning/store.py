"""Stores a study on disk, as an Optuna storage in one SQLite file and a folder for each trial.

Every change is written immediately, in a transaction, so a killed study keeps its completed trials. Trials wait until
their reports are written, so writes must be fast. Therefore, changes are written to SQLite's write-ahead log
(`study.db-wal`) without a flush to disk. When the study ends, the log is merged into the file. Tools for Optuna
storages, such as the Optuna dashboard, can read configurations, values and states. User attributes contain the data
for which Optuna has no field.
"""

import contextlib
import errno
import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from legroom.errors import LegroomError, MissingExtra, UsageError
from legroom.tuning.space.domains import AnyDomain, Categorical, FloatRange, IntRange, PowerRange, Sampled
from legroom.tuning.space.space import Space
from legroom.tuning.trial.records import Mode, Objectives, Report, TrialMemory, TrialRecord, TrialState

FILE = "study.db"
_NAME = "legroom"
_REPORT = "report:"


class StoreError(LegroomError):
    pass


class _Connection(sqlite3.Connection):
    """A connection with a write-ahead log. On some network file systems, SQLite cannot use a write-ahead log, and
    writes are slower.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with contextlib.suppress(sqlite3.OperationalError):
            if self.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",):
                self.execute("PRAGMA synchronous=NORMAL")


class StudyStore:
    """The storage of one study. Only one process may write to the storage."""

    def __init__(
        self,
        folder: Path,
        *,
        resume: bool,
        mode: Mode,
        facts: Mapping[str, Any],
        more_objectives: Objectives = (),
    ) -> None:
        """Create or open the storage. When a study is resumed, `facts` (metric, space, ...) must equal the stored
        facts."""
        try:
            import optuna
        except ModuleNotFoundError:
            raise MissingExtra("Optuna", "tune") from None
        self._optuna = optuna
        self.folder = folder
        self._more_objectives = more_objectives
        modes = (mode, *(each for _, each in more_objectives))
        exists = (folder / FILE).exists()
        if exists and not resume:
            raise UsageError(
                f"{folder} already contains a study. Continue the study with `resume`, or choose another "
                "folder with `storage`."
            )
        with _disk_full_as_store_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _disk_full_as_store_error(folder):
            self._storage = optuna.storages.RDBStorage(
                f"sqlite:///{folder / FILE}",
                engine_kwargs={"connect_args": {"timeout": 30, "factory": _Connection}},
            )
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=_NAME,
                directions=["minimize" if each == "min" else "maximize" for each in modes],
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
                f"The study in {folder} was started with a different {' and '.join(changed)}. Resume the "
                "study with the same settings, or choose another folder."
            )
        if known is None:
            with _disk_full_as_store_error(folder):
                self._study.set_user_attr("facts", dict(facts))
        self._ids: dict[int, int] = {}
        self._last: dict[int, str] = {}
        self._reports: dict[int, int] = {}

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def load(self) -> list[TrialRecord]:
        records = []
        for frozen in self._study.get_trials(deepcopy=False):
            record = _record(frozen)
            self._ids[record.number] = frozen._trial_id
            self._reports[record.number] = _reports_in(frozen)
            records.append(record)
        return records

    def add(self, record: TrialRecord, space: Space) -> None:
        distributions = {
            p.name: _distribution(p.domain)
            for p in space.parameters
            if p.name in record.config and not isinstance(p.domain, Sampled)
        }
        template = self._optuna.trial.create_trial(
            state=self._optuna.trial.TrialState.RUNNING,
            params={name: record.config[name] for name in distributions},
            distributions=distributions,
            user_attrs={"legroom": self._rest(record)},
        )
        with _disk_full_as_store_error(self.folder):
            trial_id = self._storage.create_new_trial(self._study._study_id, template_trial=template)
        assert self._storage.get_trial(trial_id).number == record.number, (
            "trials must be added in order, by a single process"
        )
        self._ids[record.number] = trial_id

    def report(self, record: TrialRecord, report: Report, metric: str) -> None:
        identity = self._ids[record.number]
        with _disk_full_as_store_error(self.folder):
            if metric in report.metrics:
                self._storage.set_trial_intermediate_value(identity, report.step, report.metrics[metric])
            content = {"metrics": report.metrics, "seconds": report.seconds}
            self._storage.set_trial_user_attr(identity, f"{_REPORT}{report.step}", content)
        self._reports[record.number] = max(report.step, self._reports.get(record.number, 0))
        self.change(record)

    def change(self, record: TrialRecord) -> None:
        rest = self._rest(record)
        text = json.dumps(rest, sort_keys=True)
        if self._last.get(record.number) != text:
            with _disk_full_as_store_error(self.folder):
                self._storage.set_trial_user_attr(self._ids[record.number], "legroom", rest)
            self._last[record.number] = text

    def end(self, record: TrialRecord, value: float | None) -> None:
        """Write the final state of a trial, unless a final state is already stored."""
        states = self._optuna.trial.TrialState
        state = states.FAIL
        if record.state is TrialState.FINISHED and value is not None:
            state = states.COMPLETE
        elif record.state in (TrialState.STOPPED, TrialState.NEVER_FITS):
            state = states.PRUNED
        identity = self._ids[record.number]
        if self._storage.get_trial(identity).state.is_finished():
            return
        self.change(record)
        with _disk_full_as_store_error(self.folder):
            if record.memory.shortage:
                self._storage.set_trial_system_attr(identity, "constraints", [record.memory.shortage])
            values = None if value is None or state is states.FAIL else [value]
            if self._more_objectives and values is not None:
                more = record.objective_values(self._more_objectives)
                values = None if state is states.PRUNED or more is None else [*values, *more]
            self._storage.set_trial_state_values(identity, state, values)

    def _rest(self, record: TrialRecord) -> dict[str, Any]:
        """Return a record without its reports. The key `steps` contains the number of valid reports, or None if all
        reports on disk are valid.
        """
        stored = record.as_dict()
        reports = len(stored.pop("reports"))
        stored["steps"] = None if reports == self._reports.get(record.number, 0) else reports
        return stored

    def close(self) -> None:
        _let_go(self._storage)
        self._lock.close()


def read_study(folder: Path) -> tuple[dict[str, Any], list[TrialRecord]]:
    """Return the settings and the trials of a study on disk. The study may still be running."""
    if not (folder / FILE).is_file():
        raise UsageError(f"{folder} contains no study.")
    try:
        import optuna
    except ModuleNotFoundError:
        raise MissingExtra("Optuna", "tune") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / FILE}")
    try:
        study = optuna.load_study(storage=storage, study_name=_NAME)
        records = [_record(frozen) for frozen in study.get_trials(deepcopy=False)]
        return study.user_attrs.get("facts", {}), records
    finally:
        _let_go(storage)


def _let_go(storage: Any) -> None:
    """Close the connections. When the last connection is closed, SQLite merges the write-ahead log into the file."""
    with contextlib.suppress(Exception):
        storage.remove_session()
        storage.engine.dispose()


def _reports_in(frozen: Any) -> int:
    return sum(name.startswith(_REPORT) for name in frozen.user_attrs)


def _record(frozen: Any) -> TrialRecord:
    rest = dict(frozen.user_attrs["legroom"])
    rest["state"] = TrialState(rest["state"])
    rest["memory"] = TrialMemory(**rest["memory"])
    rest["number"] = frozen.number
    # Later reports were discarded: the interrupted trial repeats their steps.
    steps = rest.pop("steps")
    if steps is None:
        steps = _reports_in(frozen)
    stored = {step: frozen.user_attrs[f"{_REPORT}{step}"] for step in range(1, steps + 1)}
    reports = [Report(step, dict(stored[step]["metrics"]), stored[step]["seconds"]) for step in stored]
    return TrialRecord(**rest, reports=reports)


def _distribution(domain: AnyDomain) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Categorical):
        return CategoricalDistribution(domain.options)
    if isinstance(domain, FloatRange):
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    if isinstance(domain, IntRange):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    assert isinstance(domain, PowerRange), "Optuna has no distribution for a function"
    return IntDistribution(2**domain.low, 2**domain.high, log=True)


def _locked(folder: Path) -> IO[str]:
    with _disk_full_as_store_error(folder):
        file = open(folder / "lock", "w")  # noqa: SIM115  (used_by_others as long as the study is open)
    try:
        _lock(file.fileno())
    except OSError:
        file.close()
        raise UsageError(
            f"The study in {folder} is running in another process. Wait until that process finishes, or "
            "choose another folder."
        ) from None
    os.set_inheritable(file.fileno(), False)
    return file


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def _disk_full_as_store_error(folder: Path) -> Iterator[None]:
    """Convert an error about a full or read-only disk to a `StoreError`."""
    try:
        yield
    except LegroomError:
        raise
    except Exception as error:
        text = " ".join(str(each).lower() for each in _chain(error))
        if any("full" in str(each) or getattr(each, "errno", 0) == errno.ENOSPC for each in _chain(error)):
            reason = "the disk is full. Free some space, then resume the study."
        elif isinstance(error, OSError) or any(words in text for words in _NOT_WRITABLE):
            reason = "the folder is not writable. Choose another folder with `storage`."
        else:
            raise
        raise StoreError(f"The study in {folder} could not be saved: {reason}") from None


_NOT_WRITABLE = ("disk i/o", "readonly", "unable to open")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
