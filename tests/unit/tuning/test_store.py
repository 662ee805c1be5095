"""The study on disk: fast writes of reports, and discarded reports."""

from pathlib import Path

import pytest

from legroom.tuning.space.space import read_space
from legroom.tuning.store import FILE, StudyStore, read_study
from legroom.tuning.trial.records import Report, TrialRecord

pytestmark = pytest.mark.slow

SPACE = read_space({"x": {"uniform": [0, 1]}})


def make_study(folder: Path) -> tuple[StudyStore, TrialRecord]:
    """A study with a trial that has reported three times."""
    store = StudyStore(folder, resume=False, mode="min", facts={})
    record = TrialRecord(number=0, config={"x": 0.5})
    store.add(record, SPACE)
    for step in (1, 2, 3):
        add_report(store, record, step, loss=1 / step)
    return store, record


def add_report(store: StudyStore, record: TrialRecord, step: int, *, loss: float) -> None:
    report = Report(step, {"loss": loss}, float(step))
    record.reports.append(report)
    store.report(record, report, "loss")


def losses(folder: Path) -> list[float]:
    (record,) = read_study(folder)[1]
    return [report.metrics["loss"] for report in record.reports]


def test_the_write_ahead_log_is_merged_when_the_study_ends(tmp_path: Path) -> None:
    store, _ = make_study(tmp_path)
    log = tmp_path / f"{FILE}-wal"
    assert log.stat().st_size > 0
    assert losses(tmp_path) == [1, 1 / 2, 1 / 3]  # visible to other readers while it runs
    store.close()
    assert not log.exists()
    assert losses(tmp_path) == [1, 1 / 2, 1 / 3]


def test_a_report_rewrites_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, record = make_study(tmp_path)
    written: list[str] = []
    original = store._storage.set_trial_user_attr

    def set_attr(identity: int, key: str, value: object) -> None:
        written.append(key)
        original(identity, key, value)

    monkeypatch.setattr(store._storage, "set_trial_user_attr", set_attr)
    add_report(store, record, 4, loss=0.2)
    assert written == ["report:4"]
    store.close()


def test_discarded_reports_stay_discarded_after_reloading(tmp_path: Path) -> None:
    store, record = make_study(tmp_path)
    record.reports = record.reports[:1]
    store.change(record)
    assert losses(tmp_path) == [1]
    add_report(store, record, 2, loss=7.0)
    assert losses(tmp_path) == [1, 7]
    store.close()
    again = StudyStore(tmp_path, resume=True, mode="min", facts={})
    (record,) = again.load()
    assert [report.metrics["loss"] for report in record.reports] == [1, 7]
    add_report(again, record, 3, loss=8.0)
    add_report(again, record, 4, loss=9.0)
    assert losses(tmp_path) == [1, 7, 8, 9]
    again.close()
