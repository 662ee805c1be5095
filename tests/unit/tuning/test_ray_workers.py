"""Ray's workers where trials run beside them: what is changed in Ray Tune for it, and that it is as it was afterwards."""

import pytest

ray_workers = pytest.importorskip("legroom.tuning.engines.ray.workers", exc_type=ImportError)
class_cache = pytest.importorskip("ray.tune.execution.class_cache")
tune_controller = pytest.importorskip("ray.tune.execution.tune_controller")


def test_trials_have_the_environment_of_workers_that_wait() -> None:
    before = dict(class_cache.DEFAULT_ENV_VARS)
    assert before, "else Ray's workers are the same by themselves, and this may go"
    with ray_workers.spared():
        assert not class_cache.DEFAULT_ENV_VARS
    assert before == class_cache.DEFAULT_ENV_VARS


def test_no_task_takes_the_worker_that_waits_for_a_trial() -> None:
    from ray.air.execution import FixedResourceManager

    before = tune_controller.PlacementGroupResourceManager
    with ray_workers.spared():
        assert tune_controller.PlacementGroupResourceManager is FixedResourceManager
    assert tune_controller.PlacementGroupResourceManager is before


def test_another_release_of_ray_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tune_controller, "PlacementGroupResourceManager")
    monkeypatch.delattr(class_cache, "DEFAULT_ENV_VARS")
    with ray_workers.spared():
        assert not hasattr(tune_controller, "PlacementGroupResourceManager")
        assert not hasattr(class_cache, "DEFAULT_ENV_VARS")
