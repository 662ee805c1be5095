"""Reuses Ray's workers for trials that run in forked processes.

Reuse saves one to two seconds of CPU time per worker. The implementation uses Ray internals.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from ray.tune.experiment import Trial

from legroom.observe.virtual.patching import Replacement, replaced


def keep_idle(controller: Any, trial: Trial, count: int) -> None:
    """Make Ray keep `count` idle workers. By default, Ray keeps only one idle worker if no trial is queued, and the
    dispatcher never queues trials in Ray.

    If this version of Ray has different internals, most parallel trials start a new worker.
    """
    cache: Any = getattr(getattr(controller, "_tune_controller", controller), "_actor_cache", None)
    if hasattr(cache, "increase_max"):
        cache.increase_max(trial.placement_group_factory, by=count)


@contextlib.contextmanager
def reused() -> Iterator[None]:
    with _plain_environment(), _without_groups():
        yield


@contextlib.contextmanager
def _plain_environment() -> Iterator[None]:
    """Remove the environment variables that Ray Tune sets for each trial (for Lightning). For a trial with a different
    environment, Ray would start a new worker.

    If this version of Ray has different internals, the first trial starts about two seconds later.
    """
    try:
        from ray.tune.execution.class_cache import DEFAULT_ENV_VARS as VARIABLES
    except ImportError:
        yield
        return
    before = dict(VARIABLES)
    VARIABLES.clear()
    try:
        yield
    finally:
        VARIABLES.update(before)


@contextlib.contextmanager
def _without_groups() -> Iterator[None]:
    """Make Ray Tune count resources instead of reserving a placement group for each trial.

    By default, Ray Tune starts a task that waits for the placement group and occupies an idle worker, so the trial
    needs a new worker. Counting is enough, because the dispatcher has already reserved the resources. If this version
    of Ray has different internals, up to two additional workers are started for each parallel trial.
    """
    try:
        from ray.air.execution import FixedResourceManager
        from ray.tune.execution import tune_controller
    except ImportError:
        yield
        return
    with replaced([Replacement(tune_controller, "PlacementGroupResourceManager", FixedResourceManager)]):
        yield
