"""Ray as a study needs it: without GPUs of its own, since the study packs them, and without Ray Tune's account on the terminal."""

import contextlib
import logging
from collections.abc import Iterator

from legroom.observe.virtual.patching import Replacement, replaced
from legroom.scale import ray_cluster

QUIET = {
    **ray_cluster.QUIET,
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a trial's GPU is the one that it was packed onto
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the study keeps what was reported; twice would cost each report a write
    "RAY_AIR_NEW_OUTPUT": "0",  # the newer output prints tables even where it is told to be silent
}
_PRELOADED = {"RAY_preload_python_modules": "ray.tune,legroom.tuning.engines.ray.trial"}
"""Workers import these while the first estimate is made; where Ray does not know the setting, when they get their first trial."""
_WORDS = ray_cluster.Words(
    address="address=",
    without_cluster="correct address=, or leave it out and Ray is started here",
    without_ray="use engine='local', which needs no Ray",
)


@contextlib.contextmanager
def connected(address: str | None, *, processors: int) -> Iterator[None]:
    """Ray is there inside: the caller's own, the cluster at `address`, or one of ours with so many processors."""
    with contextlib.ExitStack() as stack:
        is_ours = not ray_cluster.is_there()
        stack.enter_context(
            ray_cluster.connected(
                address, _WORDS, processors=processors, gpus=0, settings={**QUIET, **_PRELOADED}
            )
        )
        stack.enter_context(_unsaid("ray.tune"))
        if is_ours:  # to Ray that the caller has started other work may belong, and its messages
            stack.enter_context(_no_messages())
        yield


@contextlib.contextmanager
def _no_messages() -> Iterator[None]:
    """What Ray prints of a worker that died, a paragraph in the middle of the table, is left out: the study says it in a sentence.

    Private to Ray. Where it is called otherwise, that paragraph is printed beside our sentence.
    """
    from ray._private import worker

    with replaced([Replacement(worker, "print_to_stdstream", lambda *_, **__: None)]):
        yield


@contextlib.contextmanager
def _unsaid(name: str) -> Iterator[None]:
    """A logger is silent inside: Ray Tune prints a traceback of its own for a trial whose end the study tells in a sentence."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
