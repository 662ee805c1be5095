"""Ray's workers, where trials run in processes of ours beside them: few are needed, they wait for trials, and none is started that a waiting one could spare.

Each takes a second or two to start, of a processor that trials would have. All of this is private to Ray.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from ray.tune.experiment import Trial

from legroom.observe.virtual.patching import Replacement, replaced


def keep(controller: Any, trial: Trial, count: int) -> None:
    """Ray shall keep so many workers that have nothing to do, for trials that come: by itself it keeps one and ends the others, unless a trial waits for one, and
    a study hands out no trial that must wait.

    Where Ray calls it otherwise, a worker is started for most trials that run beside another.
    """
    cache: Any = getattr(getattr(controller, "_tune_controller", controller), "_actor_cache", None)
    if hasattr(cache, "increase_max"):
        cache.increase_max(trial.placement_group_factory, by=count)


@contextlib.contextmanager
def spared() -> Iterator[None]:
    """Trials get the workers that wait, those which Ray starts with itself among them."""
    with _plain_environment(), _without_groups():
        yield


@contextlib.contextmanager
def _plain_environment() -> Iterator[None]:
    """Ray Tune gives each trial an environment of its own (a variable by which Lightning forks nothing), for which Ray starts another worker while others wait in vain.

    Where Ray calls it otherwise, the first trial starts about two seconds later.
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
    """Ray Tune reserves a placement group for each trial, and has a task ask whether it is there. That task takes the worker that waits, and for the trial another one is started, or
    for the task itself. The stage has counted what there is, so Ray Tune need only count along.

    Where Ray calls it otherwise, up to two workers are started for each trial that runs beside others.
    """
    try:
        from ray.air.execution import FixedResourceManager
        from ray.tune.execution import tune_controller
    except ImportError:
        yield
        return
    with replaced([Replacement(tune_controller, "PlacementGroupResourceManager", FixedResourceManager)]):
        yield
