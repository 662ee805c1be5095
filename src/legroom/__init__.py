"""Legroom makes PyTorch training fit into GPU memory.

Importing Legroom is fast, because each public name imports its dependencies when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legroom.observe.virtual.gpu import VirtualGPU as VirtualGPU
    from legroom.observe.virtual.use import use as use
    from legroom.predict.api import max_batch as max_batch
    from legroom.predict.api import plan as plan
    from legroom.run.record import record as record
    from legroom.scale.parallel import parallel as parallel
    from legroom.show.estimate.api import estimate as estimate
    from legroom.show.estimate.layer_summary import summary as summary
    from legroom.show.explain.explanation import explain as explain
    from legroom.show.tune.tune import tune as tune
    from legroom.show.watch.watch import watch as watch
    from legroom.train import transfer as transfer
    from legroom.train.checkpoints.checkpoints import Checkpoints as Checkpoints
    from legroom.train.evaluate import evaluate as evaluate
    from legroom.train.free import free as free
    from legroom.train.guarding.guard import Guard as Guard
    from legroom.train.precision import precision as precision
    from legroom.train.sizes.find_batch import find_batch as find_batch
    from legroom.train.spilling.spill import Spill as Spill

__version__ = "0.1.0"

_PUBLIC = {
    "Checkpoints": "legroom.train.checkpoints.checkpoints",
    "Guard": "legroom.train.guarding.guard",
    "Spill": "legroom.train.spilling.spill",
    "VirtualGPU": "legroom.observe.virtual.gpu",
    "estimate": "legroom.show.estimate.api",
    "evaluate": "legroom.train.evaluate",
    "explain": "legroom.show.explain.explanation",
    "find_batch": "legroom.train.sizes.find_batch",
    "free": "legroom.train.free",
    "max_batch": "legroom.predict.api",
    "parallel": "legroom.scale.parallel",
    "plan": "legroom.predict.api",
    "precision": "legroom.train.precision",
    "record": "legroom.run.record",
    "summary": "legroom.show.estimate.layer_summary",
    "tune": "legroom.show.tune.tune",
    "use": "legroom.observe.virtual.use",
    "watch": "legroom.show.watch.watch",
}
_MODULES = {"transfer": "legroom.train.transfer"}
__all__ = [
    "Checkpoints",
    "Guard",
    "Spill",
    "VirtualGPU",
    "__version__",
    "estimate",
    "evaluate",
    "explain",
    "find_batch",
    "free",
    "max_batch",
    "parallel",
    "plan",
    "precision",
    "record",
    "summary",
    "transfer",
    "tune",
    "use",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _import(_MODULES[name])
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'legroom' has no attribute '{name}'")
    return getattr(_import(module), name)


def _import(module: str) -> Any:
    """Import a module with garbage collection disabled. A collection would visit every torch object and double the
    import time.
    """
    from legroom.memory.garbage_collection import no_garbage_collection

    with no_garbage_collection():
        return import_module(module)


def load_ipython_extension(shell: Any) -> None:
    """Add Legroom's magic commands to IPython when the user runs `%load_ext legroom`."""
    import_module("legroom.notebook.magics").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove Legroom's magic commands from IPython when the user runs `%unload_ext legroom`."""
    import_module("legroom.notebook.magics").unload(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
