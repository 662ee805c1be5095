"""Makes `ray.tune.report` and `ray.tune.get_checkpoint` use this process's trial.

A function that was written for Ray Tune therefore runs unchanged with every engine, and its memory can be estimated.
`tune.report(loss=0.5)` and `with tune.checkpoint_dir(step)` from early versions of Ray are supported too.

Ray's functions look up a session in a private module. If Ray lacks this module, `ray.tune.report` warns that it was
called outside a trial.
"""

import contextlib
import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from legroom.observe.virtual.patching import Replacement, replaced

if TYPE_CHECKING:
    from legroom.tuning.trial.trial import Trial

_MODULE = "ray.train._internal.session"


@contextlib.contextmanager
def ray_session(trial: "Trial", *, needed: bool) -> Iterator[None]:
    """Inside the block, Ray's functions such as `ray.tune.report` use `trial`. If `needed` is False, Ray is not
    imported, because the import takes seconds.
    """
    module = sys.modules.get(_MODULE)
    if module is None and needed and find_spec("ray") is not None:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(_MODULE)
    if not hasattr(module, "_session"):
        yield
        return
    session = _Session(trial, getattr(module, "_session", None))
    replacements = [Replacement(module, "_session", session)]
    ray_tune = sys.modules.get("ray.tune")
    if ray_tune is not None:
        replacements += [
            Replacement(ray_tune, "report", session.report),
            Replacement(ray_tune, "checkpoint_dir", session.checkpoint_dir, add=True),
        ]
    with replaced(replacements):
        yield


def report_of_session() -> Callable[[dict[str, Any]], None]:
    """Return the function that reports to Ray's own session, even if `ray_session` has replaced `ray.tune.report`."""
    from ray import tune

    report: Callable[[dict[str, Any]], None] = getattr(
        getattr(sys.modules.get(_MODULE), "_session", None), "report", tune.report
    )
    return report


class _Session:
    """Replaces the attributes of Ray's session that a training function uses. All other attributes come from the
    original session, because Ray Tune uses them in another thread of the worker on a cluster.
    """

    world_rank = None
    """The value must be None, because Ray uses it to distinguish a Ray Tune trial from a Ray Train worker."""

    def __init__(self, trial: "Trial", original: Any = None) -> None:
        self._trial, self._original = trial, original
        self.trial_id = self.trial_name = f"trial-{trial.number}"
        self.trial_dir = str(trial.folder)
        self.experiment_name = trial.folder.parent.parent.name
        self.trial_resources = None
        self._saved: str | None = None

    def report(self, metrics: Mapping[str, Any] | None = None, checkpoint: Any = None, **named: Any) -> None:
        numbers = {}
        for name, value in {**(metrics or {}), **named}.items():
            with contextlib.suppress(TypeError, ValueError):
                numbers[name] = float(value)
        folder, self._saved = self._saved, None
        try:
            self._trial.report(numbers, checkpoint=folder if checkpoint is None else checkpoint.path)
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def checkpoint_dir(self, step: int | None = None) -> Iterator[str]:
        """Yield a checkpoint folder, as in early versions of Ray. The files in this folder become the checkpoint of
        the next report.
        """
        folder = tempfile.mkdtemp(prefix="legroom-")
        yield folder
        self._saved = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property
    def loaded_checkpoint(self) -> Any:
        from ray.tune import Checkpoint

        path = self._trial.checkpoint
        return None if path is None else Checkpoint.from_directory(path)
