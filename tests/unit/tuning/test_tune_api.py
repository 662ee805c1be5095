"""What `legroom.tune` refuses, which engine it takes, and what it is called with."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import legroom
from legroom.errors import MissingExtra, UsageError
from legroom.tuning import api
from legroom.tuning.durations import parse_seconds
from legroom.tuning.engines.local import LocalEngine
from legroom.tuning.memory.admission import Place
from legroom.units import GiB, MiB

FILE = Path(__file__).with_name("tuned_functions.py")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "lowest"}, "the metric is to be 'min' or 'max'"),
        ({"search": "evolution"}, "the search 'evolution' is not known"),
        ({"scheduler": "hyperband"}, "choose asha, median, pbt or none"),
        ({"engine": "slurm"}, "the engine 'slurm' is not known: choose auto, local, ray"),
        ({"trials": 0}, "trials=0 is none: a whole number, 1 or more"),
        ({"parallel": "two"}, "parallel=two is none: a whole number, 1 or more"),
        ({"metric": 3}, "metric=3 is none: name what"),
        ({"address": "host:6379"}, "address= names a Ray cluster, and engine='local' runs on this machine"),
        ({"ranks": 2, "gpu": "8GiB"}, "a trial of 2 ranks needs 2 GPUs, and there is 1"),
        ({"ranks": 3, "gpu": "8GiB,8GiB"}, "a trial of 3 ranks needs 3 GPUs, and there are 2"),
        ({"gpu": "8 apples"}, "is not a valid GPU"),
        ({"time_budget": -1}, "too short"),
    ],
)
def test_bad_options_are_told_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    folder = tmp_path / "study"
    with pytest.raises(UsageError, match=told):
        api.tune(
            f"{FILE}:quadratic", {"x": [1, 2]}, storage=folder, **{"engine": "local", "gpu": "cpu", **options}
        )
    assert not folder.exists()


def _without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    plain = importlib.util.find_spec
    monkeypatch.setattr(api, "find_spec", lambda name, *more: None if name == package else plain(name, *more))


def test_without_ray_the_local_engine_is_taken_and_the_reason_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "ray")
    engine, reason = api._engine("auto", None)
    assert isinstance(engine, LocalEngine)
    assert reason == "Ray is not installed, so trials run as processes of this machine (engine: local)"


def test_asking_for_ray_without_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "ray")
    with pytest.raises(MissingExtra, match=r"Ray is not installed: pip install .*\[tune\]"):
        api._engine("ray", None)


def test_ray_without_ray_tune_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "pyarrow")
    engine, reason = api._engine("auto", None)
    assert isinstance(engine, LocalEngine)
    assert reason.startswith("what Ray Tune needs (pyarrow) is not installed, so trials run as processes")
    with pytest.raises(
        MissingExtra, match=r"what Ray Tune needs \(pyarrow\) is not installed: pip install .*\[tune\]"
    ):
        api._engine("ray", None)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(90, 90), ("90s", 90), ("20min", 1200), ("1h 30min", 5400), ("1.5h", 5400), ("45", 45)],
)
def test_times_are_read_as_people_write_them(written: float | str, seconds: float) -> None:
    assert parse_seconds(written) == seconds


def test_the_public_function_writes_the_table_and_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = legroom.tune(
        f"{FILE}:quadratic", {"x": [2, 3]}, search="grid", engine="local", gpu="cpu", storage=tmp_path
    )
    assert study.best_config == {"x": 3}
    assert [row["config.x"] for row in study.table] == [2, 3]
    assert "<html" in study.page.read_text()
    assert (tmp_path / "study.csv").exists()
    assert "trial 1 is the best so far" in capsys.readouterr().err


def test_ranks_on_real_gpus_leave_room_for_what_nccl_holds() -> None:
    real = Place(index=0, memory=8 * GiB, context=GiB)
    virtual = Place(index=1, memory=8 * GiB, virtual=True)
    assert [place.room for place in api._for_ranks([real, virtual], 2)] == [7 * GiB - 556 * MiB, 8 * GiB]
