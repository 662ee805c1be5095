"""Patches of Ray Tune that reuse workers, and their removal."""

import pytest

pytestmark = pytest.mark.ray

ray_workers = pytest.importorskip("legroom.tuning.engines.ray.workers", exc_type=ImportError)
class_cache = pytest.importorskip("ray.tune.execution.class_cache")
tune_controller = pytest.importorskip("ray.tune.execution.tune_controller")


def test_trials_have_the_environment_of_idle_workers() -> None:
    before = dict(class_cache.DEFAULT_ENV_VARS)
    assert before, "otherwise the patch is no longer needed"
    with ray_workers.reused():
        assert not class_cache.DEFAULT_ENV_VARS
    assert before == class_cache.DEFAULT_ENV_VARS


def test_no_task_occupies_an_idle_worker() -> None:
    from ray.air.execution import FixedResourceManager

    before = tune_controller.PlacementGroupResourceManager
    with ray_workers.reused():
        assert tune_controller.PlacementGroupResourceManager is FixedResourceManager
    assert tune_controller.PlacementGroupResourceManager is before


def test_other_versions_of_ray_are_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tune_controller, "PlacementGroupResourceManager")
    monkeypatch.delattr(class_cache, "DEFAULT_ENV_VARS")
    with ray_workers.reused():
        assert not hasattr(tune_controller, "PlacementGroupResourceManager")
        assert not hasattr(class_cache, "DEFAULT_ENV_VARS")
