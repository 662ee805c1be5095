"""Reuses Ray's workers for trials that run in forked processes.

Starting a worker takes one to two seconds of CPU time. This module uses Ray internals.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from ray.tune.experiment import Trial

from legroom.observe.virtual.patching import Replacement, replaced


def keep_idle(controller: Any, trial: Trial, count: int) -> None:
    """Make Ray keep `count` idle workers. By default, Ray keeps one idle worker and stops all other idle workers
    unless a trial is queued. The dispatcher never queues trials in Ray.

    In a version of Ray with other internals, most trials that run in parallel start a new worker.
    """
    cache: Any = getattr(getattr(controller, "_tune_controller", controller), "_actor_cache", None)
    if hasattr(cache, "increase_max"):
        cache.increase_max(trial.placement_group_factory, by=count)


@contextlib.contextmanager
def reused() -> Iterator[None]:
    """Make trials use idle workers, including workers that Ray starts in advance."""
    with _plain_environment(), _without_groups():
        yield


@contextlib.contextmanager
def _plain_environment() -> Iterator[None]:
    """Remove the environment variables that Ray Tune sets for each trial (for Lightning), because Ray starts a new
    worker for a different environment.

    In a version of Ray with other internals, the first trial starts about two seconds later.
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
    """Make Ray Tune count resources instead of reserving a placement group for each trial. By default, Ray Tune
    reserves one placement group per trial and starts a task that waits for the group. This task occupies an idle
    worker, so a new worker is started for the trial. The dispatcher has already reserved the resources, so Ray Tune
    only needs to count them.

    In a version of Ray with other internals, up to two additional workers are started for each trial that runs in
    parallel.
    """
    try:
        from ray.air.execution import FixedResourceManager
        from ray.tune.execution import tune_controller
    except ImportError:
        yield
        return
    with replaced([Replacement(tune_controller, "PlacementGroupResourceManager", FixedResourceManager)]):
        yield
