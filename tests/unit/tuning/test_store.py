"""The study on disk: reports are written quickly, and what was taken back stays taken back."""

from pathlib import Path

import pytest

from legroom.tuning.space.space import read_space
from legroom.tuning.store import FILE, Store, read_study
from legroom.tuning.trial.records import Report, TrialRecord

SPACE = read_space({"x": {"uniform": [0, 1]}})


def begun(folder: Path) -> tuple[Store, TrialRecord]:
    """A study with a trial that has reported three times."""
    store = Store(folder, resume=False, mode="min", facts={})
    record = TrialRecord(number=0, config={"x": 0.5})
    store.add(record, SPACE)
    for step in (1, 2, 3):
        tell(store, record, step, loss=1 / step)
    return store, record


def tell(store: Store, record: TrialRecord, step: int, *, loss: float) -> None:
    report = Report(step, {"loss": loss}, float(step))
    record.reports.append(report)
    store.report(record, report, "loss")


def losses(folder: Path) -> list[float]:
    (record,) = read_study(folder)[1]
    return [report.metrics["loss"] for report in record.reports]


def test_reports_go_to_a_log_and_when_the_study_ends_the_file_is_whole(tmp_path: Path) -> None:
    store, _ = begun(tmp_path)
    log = tmp_path / f"{FILE}-wal"
    assert log.stat().st_size > 0
    assert losses(tmp_path) == [1, 1 / 2, 1 / 3]  # another reader sees them while it runs
    store.close()
    assert not log.exists()
    assert losses(tmp_path) == [1, 1 / 2, 1 / 3]


def test_a_report_is_written_without_all_else_being_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, record = begun(tmp_path)
    written: list[str] = []
    plain = store._storage.set_trial_user_attr

    def set_attr(identity: int, key: str, value: object) -> None:
        written.append(key)
        plain(identity, key, value)

    monkeypatch.setattr(store._storage, "set_trial_user_attr", set_attr)
    tell(store, record, 4, loss=0.2)
    assert written == ["report:4"]
    store.close()


def test_reports_that_were_taken_back_are_gone_after_the_study_was_read_again(tmp_path: Path) -> None:
    store, record = begun(tmp_path)
    record.reports = record.reports[:1]
    store.change(record)
    assert losses(tmp_path) == [1]
    tell(store, record, 2, loss=7.0)
    assert losses(tmp_path) == [1, 7]
    store.close()
    again = Store(tmp_path, resume=True, mode="min", facts={})
    (record,) = again.load()
    assert [report.metrics["loss"] for report in record.reports] == [1, 7]
    tell(again, record, 3, loss=8.0)
    tell(again, record, 4, loss=9.0)
    assert losses(tmp_path) == [1, 7, 8, 9]
    again.close()
