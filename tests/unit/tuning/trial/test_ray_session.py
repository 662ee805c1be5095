"""Functions that report to Ray Tune run with the trial of their process."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from legroom.errors import UsageError
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.trial.process import call
from legroom.tuning.trial.trial import THE_METRIC, ReportMessage, Trial

ray_tune = pytest.importorskip("ray.tune")
imported_report = ray_tune.report


class Channel:
    def __init__(self) -> None:
        self.messages: list[ReportMessage] = []

    def report(self, message: ReportMessage) -> Action:
        self.messages.append(message)
        return Action.CONTINUE


def make_trial(folder: Path, checkpoint: str | None = None) -> tuple[Trial, Channel]:
    channel = Channel()
    trial = Trial(number=3, config={}, folder=folder / "trial", channel=channel, checkpoint=checkpoint)
    return trial, channel


def test_every_way_to_report_to_ray_reaches_the_trial(tmp_path: Path) -> None:
    def train(config: Any) -> None:
        ray_tune.report(
            {"loss": numpy.float32(0.5), "accuracy": torch.tensor(1), "note": "text", "nested": {}}
        )
        imported_report({"loss": torch.tensor([0.25])})
        imported_report({"loss": numpy.array(0.125)})

    trial, channel = make_trial(tmp_path)
    call(train, {}, trial)
    assert [message.metrics for message in channel.messages] == [
        {"loss": 0.5, "accuracy": 1.0},
        {"loss": 0.25},
        {"loss": 0.125},
    ]


def test_a_checkpoint_of_ray_is_kept_and_found_on_resuming(tmp_path: Path) -> None:
    def train(config: Any) -> int:
        found = ray_tune.get_checkpoint()
        if found is not None:
            return int((Path(found.path) / "epoch").read_text())
        (tmp_path / "epoch").write_text("7")
        ray_tune.report({"loss": 1.0}, checkpoint=ray_tune.Checkpoint.from_directory(tmp_path))
        return 0

    trial, channel = make_trial(tmp_path.with_name("study"))
    call(train, {}, trial)
    (tmp_path / "epoch").unlink()
    resumed, _ = make_trial(tmp_path, channel.messages[0].checkpoint)
    assert call(train, {}, resumed) == 7


def test_reports_and_checkpoints_of_old_versions_of_ray_reach_the_trial(tmp_path: Path) -> None:
    def train(config: Any, checkpoint_dir: str | None = None) -> int:
        if checkpoint_dir:
            return int((Path(checkpoint_dir) / "epoch").read_text())
        with ray_tune.checkpoint_dir(step=0) as folder:
            (Path(folder) / "epoch").write_text("7")
        ray_tune.report(loss=numpy.float32(0.5), accuracy=1)
        ray_tune.report(loss=0.25)
        return 0

    trial, channel = make_trial(tmp_path)
    call(train, {}, trial)
    first, second = channel.messages
    assert (first.metrics, second.metrics) == ({"loss": 0.5, "accuracy": 1.0}, {"loss": 0.25})
    assert second.checkpoint is None
    resumed, _ = make_trial(tmp_path, first.checkpoint)
    assert call(train, {}, resumed) == 7
    assert not hasattr(ray_tune, "checkpoint_dir")


def test_metrics_can_be_passed_as_a_dict_or_by_name(tmp_path: Path) -> None:
    trial, channel = make_trial(tmp_path)
    trial.report({"loss": torch.tensor(2.0)}, accuracy=numpy.int64(1))
    assert channel.messages[0].metrics == {"loss": 2.0, "accuracy": 1.0}
    trial.report(0.5, 3)  # as in Optuna
    assert channel.messages[1].metrics == {THE_METRIC: 0.5}
    with pytest.raises(UsageError, match=r"not str. Use `trial.report\(loss=...\)`"):
        trial.report("loss")
    with pytest.raises(UsageError, match=r"`report\(loss=...\)` needs a number, not dict"):
        trial.report(loss={"a": 1})
