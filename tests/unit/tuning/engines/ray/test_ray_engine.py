"""Starting a study on Ray."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray.tune")

from legroom.tuning.engines.ray.adapters import SharedState
from legroom.tuning.engines.ray.engine import _missing, _tuner
from legroom.tuning.engines.ray.resources import resources

pytestmark = pytest.mark.ray


def test_ray_gets_the_remaining_time_budget(tmp_path: Path) -> None:
    tuner = _tuner(
        SharedState(None, SimpleNamespace(seconds_left=90.0), "server"), tmp_path, resources(on_cluster=False)
    )  # type: ignore[arg-type]
    assert tuner._local_tuner._tune_config.time_budget_s == 90.0


def test_a_missing_dependency_of_ray_tune_is_named() -> None:
    with pytest.raises(ImportError) as plain:
        import no_such_package
    with pytest.raises(ImportError) as wrapped:
        try:
            import no_such_package  # noqa: F401
        except ImportError as error:
            raise ImportError("Can't import ray.tune as some dependencies are missing.") from error
    for error in (plain.value, wrapped.value):
        assert str(_missing(error)).startswith(
            "A dependency of Ray Tune (no_such_package) is not installed: pip install "
        )
