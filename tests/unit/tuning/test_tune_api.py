"""`legroom.tune`: errors, choice of the engine, and arguments."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from optuna.samplers import GridSampler

import legroom
from legroom.errors import MissingExtra, UsageError
from legroom.tuning import api
from legroom.tuning.api import parse_seconds
from legroom.tuning.engines.local import LocalEngine
from legroom.tuning.memory.admission import TrialGpu
from legroom.units import GiB, MiB

pytestmark = pytest.mark.slow

FILE = Path(__file__).with_name("tuned_functions.py")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "lowest"}, "Unknown mode `lowest`. Choose `min` or `max`"),
        ({"search": "evolution"}, "Unknown search `evolution`"),
        (
            {"search": GridSampler},
            r"search= is the class GridSampler. Pass an instance: `GridSampler\(...\)`",
        ),
        ({"scheduler": "hyperband"}, "Choose `asha`, `median`, `pbt` or `none`"),
        ({"engine": "slurm"}, "Unknown engine `slurm`. Choose `auto`, `local` or `ray`"),
        ({"trials": 0}, "trials=0 is not valid. Pass an integer of 1 or more"),
        ({"parallel": "two"}, "parallel='two' is not valid. Pass an integer of 1 or more"),
        ({"metric": 3}, "metric=3 is not valid. Use the name"),
        (
            {"address": "host:6379"},
            "`address` specifies a Ray cluster, but engine='local' runs all trials on this machine",
        ),
        ({"ranks": 2, "gpu": "8GiB"}, "A trial with 2 ranks needs 2 GPUs, but only 1 is available"),
        ({"ranks": 3, "gpu": "8GiB,8GiB"}, "A trial with 3 ranks needs 3 GPUs, but only 2 are available"),
        ({"gpu": "8 apples"}, "is not a valid GPU"),
        ({"time_budget": -1}, "A duration must be positive"),
    ],
)
def test_invalid_options_are_errors_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "study"
    with pytest.raises(UsageError, match=message):
        api.tune(
            f"{FILE}:quadratic", {"x": [1, 2]}, storage=folder, **{"engine": "local", "gpu": "cpu", **options}
        )
    assert not folder.exists()


def _without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    plain = importlib.util.find_spec
    monkeypatch.setattr(api, "find_spec", lambda name, *more: None if name == package else plain(name, *more))


def test_without_ray_the_local_engine_is_used_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "ray")
    engine, reason = api._engine("auto", None)
    assert isinstance(engine, LocalEngine)
    assert reason == "Ray is not installed. Trials run as processes on this machine (engine: local)."


def test_requesting_ray_without_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "ray")
    with pytest.raises(MissingExtra, match=r"Ray is not installed: pip install .*\[tune\]"):
        api._engine("ray", None)


def test_ray_without_ray_tune_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "pyarrow")
    engine, reason = api._engine("auto", None)
    assert isinstance(engine, LocalEngine)
    assert reason.startswith("A dependency of Ray Tune (pyarrow) is not installed. Trials run as processes")
    with pytest.raises(
        MissingExtra, match=r"A dependency of Ray Tune \(pyarrow\) is not installed: pip install .*\[tune\]"
    ):
        api._engine("ray", None)


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [(90, 90), ("90s", 90), ("20min", 1200), ("1h 30min", 5400), ("1.5h", 5400), ("45", 45)],
)
def test_durations_are_parsed(duration: float | str, seconds: float) -> None:
    assert parse_seconds(duration) == seconds


def test_the_public_function_writes_table_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = legroom.tune(
        f"{FILE}:quadratic", {"x": [2, 3]}, search="grid", engine="local", gpu="cpu", storage=tmp_path
    )
    assert study.best_config == {"x": 3}
    assert [row["config.x"] for row in study.table] == [2, 3]
    assert "<html" in study.report_path.read_text()
    assert (tmp_path / "study.csv").exists()
    assert "Trial 1 is the best so far" in capsys.readouterr().err


def test_ranks_on_real_gpus_leave_memory_for_nccl() -> None:
    real = TrialGpu(index=0, memory=8 * GiB, context=GiB)
    virtual = TrialGpu(index=1, memory=8 * GiB, virtual=True)
    assert [gpu.available for gpu in api._for_ranks([real, virtual], 2)] == [7 * GiB - 556 * MiB, 8 * GiB]
