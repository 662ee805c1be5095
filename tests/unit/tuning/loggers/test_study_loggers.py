"""Loggers of a study: the logged values, and errors, which do not affect the study."""

import builtins
import importlib.util
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from example_studies import finished, never_fits
from legroom.errors import MissingExtra
from legroom.tuning.loggers.common import Logger
from legroom.tuning.loggers.tensorboard import TensorBoardLog
from legroom.tuning.loggers.wandb import WandbLog
from legroom.tuning.trial.records import Report, TrialRecord, TrialState

wandb: Any = pytest.importorskip("wandb")


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_tensorboard_contains_each_report_and_the_memory(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    log.on_trial_update(finished(3))
    log.on_study_end()
    events = read(tmp_path / "trial_0003")
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, 0.25)]
    assert events.Scalars("memory/actual_mib")[-1].value == 55.0


def test_tensorboard_contains_the_configuration(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    log.on_trial_update(finished(0))
    metadata = read(tmp_path / "trial_0000").summary_metadata["_hparams_/session_start_info"]
    assert b"batch_size" in metadata.plugin_data.content


def test_a_report_is_logged_only_once(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    record = finished(0, state=TrialState.RUNNING, reports=[Report(1, {"loss": 1.0})])
    log.on_trial_update(record)
    log.on_trial_update(record)
    record.reports.append(Report(2, {"loss": 0.5}))
    log.on_trial_update(record)
    log.on_study_end()
    assert [each.step for each in read(tmp_path / "trial_0000").Scalars("loss")] == [1, 2]


def test_a_resumed_study_does_not_log_old_reports_again(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    record = finished(0, state=TrialState.RUNNING, reports=[Report(1, {"loss": 1.0})])
    log.on_study_start(SimpleNamespace(), [record, finished(1)])  # type: ignore[arg-type]
    record.reports.append(Report(2, {"loss": 0.5}))
    log.on_trial_update(record)
    log.on_trial_update(finished(1))
    log.on_study_end()
    assert [each.step for each in read(tmp_path / "trial_0000").Scalars("loss")] == [2]
    assert not (tmp_path / "trial_0001").exists()


@pytest.mark.slow
def test_wandb_writes_a_trial_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    log = WandbLog("project", tmp_path)
    log.on_trial_update(finished(0))
    log.on_trial_update(never_fits(1))
    log.on_study_end()
    wandb.teardown()  # its process may still write
    runs = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(runs) == 2
    written = b"".join(run.read_bytes() for run in runs)
    assert b"memory/actual_mib" in written
    assert b"batch_size" in written
    assert b"never-fits" in written


@pytest.mark.parametrize(
    ("module", "make", "message"),
    [
        (
            "torch.utils.tensorboard",
            lambda: TensorBoardLog("x"),
            "TensorBoard is not installed: pip install ",
        ),
        ("wandb", lambda: WandbLog("p", "x"), "wandb is not installed: pip install "),
    ],
)
def test_a_missing_package_names_the_extra_to_install(
    module: str, make: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == module:
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra) as caught:
        make()
    assert str(caught.value).startswith(message)


class Full(Logger):
    """A logger whose disk is full."""

    name = "The log"

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def write_report(self, record: TrialRecord, index: int) -> None:
        self.calls += 1
        raise OSError(28, "No space left on device")

    def end(self, record: TrialRecord) -> None:
        self.calls += 1

    def close(self) -> None:
        self.calls += 1


def test_a_full_disk_ends_the_log_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = Full()
    with caplog.at_level(logging.WARNING, logger="legroom"):
        log.on_trial_update(finished(0))
        log.on_trial_update(finished(1))
        log.on_study_end()
    assert log.calls == 1
    assert caplog.messages == [
        "The log could not be written (No space left on device). The study continues without this log."
    ]
