"""Makes `ray.tune.report` and `ray.tune.get_checkpoint` use the trial of this process.

A function that was written for Ray Tune therefore runs unchanged with every engine, and its memory can be estimated.
Ray's functions look up a session in a private module. If a version of Ray has no such module, `ray.tune.report` warns
that it was called outside of a trial.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from legroom.observe.virtual.patching import Replacement, replaced

if TYPE_CHECKING:
    from legroom.tuning.trial.trial import Trial

_MODULE = "ray.train._internal.session"


@contextlib.contextmanager
def ray_session(trial: "Trial", *, needed: bool) -> Iterator[None]:
    """Within the block, Ray's functions use `trial`. Ray is imported only if the function `needed` it, because the
    import takes seconds."""
    module = sys.modules.get(_MODULE)
    if module is None and needed and find_spec("ray") is not None:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(_MODULE)
    if not hasattr(module, "_session"):
        yield
        return
    with replaced([Replacement(module, "_session", _Session(trial, getattr(module, "_session", None)))]):
        yield


def report_of_session() -> Callable[[dict[str, Any]], None]:
    """Return the function that reports to the current session of Ray, even while `ray_session` is active."""
    from ray import tune

    report: Callable[[dict[str, Any]], None] = getattr(
        getattr(sys.modules.get(_MODULE), "_session", None), "report", tune.report
    )
    return report


class _Session:
    """The parts of Ray's session that a training function uses. Other parts are those of the session that this one
    replaces, because Ray Tune uses them in another thread of a worker on a cluster."""

    world_rank = None
    """None, because Ray distinguishes a trial of Ray Tune from a worker of Ray Train by this value."""

    def __init__(self, trial: "Trial", original: Any = None) -> None:
        self._trial, self._original = trial, original
        self.trial_id = self.trial_name = f"trial-{trial.number}"
        self.trial_dir = str(trial.folder)
        self.experiment_name = trial.folder.parent.parent.name
        self.trial_resources = None

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None, **_: Any) -> None:
        """Report all metrics that are numbers. Ray also accepts other values, for its own logs."""
        numbers = {}
        for name, value in metrics.items():
            with contextlib.suppress(TypeError, ValueError):
                numbers[name] = float(value)
        self._trial.report(numbers, checkpoint=None if checkpoint is None else checkpoint.path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property
    def loaded_checkpoint(self) -> Any:
        from ray.tune import Checkpoint

        path = self._trial.checkpoint
        return None if path is None else Checkpoint.from_directory(path)
