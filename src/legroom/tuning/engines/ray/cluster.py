"""Starts Ray for a study. A Ray instance on this machine gets no GPU resources, because the dispatcher places trials
on GPUs itself. The terminal output of Ray Tune is disabled."""

import contextlib
import logging
from collections.abc import Iterator

from legroom.observe.virtual.patching import Replacement, replaced
from legroom.scale import ray_cluster

QUIET = {
    **ray_cluster.QUIET,
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the dispatcher chooses a trial's GPU
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the study stores reports, so Ray need not write them
    "RAY_AIR_NEW_OUTPUT": "0",  # the newer output prints tables even at verbose=0
}
_PRELOADED = {"RAY_preload_python_modules": "ray.tune,legroom.tuning.engines.ray.trial"}
"""The environment variable with the modules that Ray's workers import while the first estimate runs. If a version of
Ray ignores this variable, the workers import the modules when the first trial starts.
"""
_HELP = ray_cluster.RayHelp(
    address="address=",
    no_cluster="correct address=, or omit address= to start Ray on this machine",
    no_ray="use engine='local', which does not need Ray",
)


@contextlib.contextmanager
def connected(address: str | None, *, processors: int) -> Iterator[None]:
    """Connect to the caller's Ray instance, to the cluster at `address`, or to a new local instance with `processors`
    CPUs."""
    with contextlib.ExitStack() as stack:
        is_ours = not ray_cluster.is_initialized()
        stack.enter_context(
            ray_cluster.connect_ray(
                address, _HELP, processors=processors, gpus=0, settings={**QUIET, **_PRELOADED}
            )
        )
        stack.enter_context(_silenced("ray.tune"))
        if is_ours:  # a Ray instance of the caller may run other work, whose messages must stay
            stack.enter_context(_no_messages())
        yield


@contextlib.contextmanager
def _no_messages() -> Iterator[None]:
    """Suppress Ray's message about a dead worker, because the message would corrupt the live table. The study reports
    the dead worker itself.

    The implementation replaces a private Ray function. If Ray lacks this function, Ray's message is printed.
    """
    from ray._private import worker

    with replaced([Replacement(worker, "print_to_stdstream", lambda *_, **__: None)]):
        yield


@contextlib.contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Disable the traceback that Ray Tune logs for each failed trial, because the study reports the error in one
    line."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
