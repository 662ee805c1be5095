"""Figures of a study for the report."""

from pathlib import Path

from example_studies import failed, finished, never_fits
from legroom.tuning.memory.admission import TrialGpu
from legroom.tuning.report.figures import figures_of
from legroom.tuning.space.space import read_space
from legroom.tuning.study import Study
from legroom.tuning.trial.records import Report, TrialMemory, TrialRecord, TrialState
from legroom.units import MiB

SPACE = {
    "lr": {"log": [1e-3, 1.0]},
    "batch_size": [2, 16, 256],
    "width": {"int_log2": [2, 9]},
    "depth": {"int": [1, 4]},
    "epochs": 3,
}


def study(*trials: TrialRecord) -> Study:
    return Study(
        metric="loss",
        mode="min",
        trials=trials,
        folder=Path("study"),
        name="train",
        space=read_space(SPACE),
        gpus=[
            TrialGpu(index=0, memory=384 * MiB),
            TrialGpu(index=1, memory=384 * MiB),
            TrialGpu(index=2, memory=64 * MiB),
        ],
    )


def outcomes(*trials: TrialRecord) -> list[str]:
    return [trial.outcome for trial in figures_of(study(*trials)).trials]


def test_each_state_has_an_outcome() -> None:
    lost = finished(3, state=TrialState.OUT_OF_MEMORY)
    stopped = finished(4, state=TrialState.STOPPED)
    split = finished(5, memory=TrialMemory(safe=300 * MiB, batch_size=256, micro_batch=64))
    waiting = TrialRecord(number=6, config={"lr": 0.1})
    ended = [finished(0), never_fits(1), failed(2), lost, stopped, split, waiting]
    assert outcomes(*ended) == ["good", "rejected", "failed", "lost", "stopped", "split", "open"]


def test_axes_follow_the_space() -> None:
    axes = {axis.name: (axis.kind, tuple(axis.values)) for axis in figures_of(study()).parameters}
    assert axes == {
        "lr": ("log", ()),
        "batch_size": ("category", (2, 16, 256)),
        "width": ("log", (4, 8, 16, 32, 64, 128, 256, 512)),
        "depth": ("linear", (1, 2, 3, 4)),
    }


def test_each_gpu_size_is_listed_once() -> None:
    assert figures_of(study()).capacities == [64 * MiB, 384 * MiB]


def test_the_predicted_memory_is_the_safe_bound() -> None:
    (trial,) = figures_of(study(finished(0))).trials
    assert (trial.predicted, trial.peak, trial.seconds) == (64 * MiB, 55 * MiB, 3.0)


def test_reports_without_the_metric_are_omitted() -> None:
    reports = [Report(1, {"accuracy": 0.1}), Report(2, {"loss": 0.5})]
    (trial,) = figures_of(study(finished(0, reports=reports))).trials
    assert list(trial.curve) == [(2, 0.5)]
