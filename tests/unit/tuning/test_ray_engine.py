"""How a study is handed to Ray."""

from pathlib import Path
from types import SimpleNamespace

from legroom.tuning.ray_adapters import Exchange
from legroom.tuning.ray_engine import _tuner
from legroom.tuning.ray_resources import resources


def test_what_is_left_of_the_time_budget_is_rays(tmp_path: Path) -> None:
    tuner = _tuner(
        Exchange(None, SimpleNamespace(seconds_left=90.0), "server"), tmp_path, resources(on_cluster=False)
    )  # type: ignore[arg-type]
    assert tuner._local_tuner._tune_config.time_budget_s == 90.0
