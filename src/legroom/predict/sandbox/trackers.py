"""Disables experiment trackers in a traced script, so that they report no run and start no process.

A tracker that logs through another process fails in a trace, because the traces are forks and share that process. The
first trace that finishes the run would close it for all of them.
"""

import functools
import inspect
import os
import sys
from typing import Any

from legroom.observe.import_hook import ImportHook

_VARIABLES = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "CLEARML_OFFLINE_MODE": "1"}


def disable_trackers() -> None:
    os.environ.update(_VARIABLES)
    if "wandb" in sys.modules:
        _disable_wandb()
    else:
        ImportHook("wandb", _disable_wandb).install()


def _disable_wandb() -> None:
    """Disable all runs, because the argument `mode` takes precedence over the environment variable. A module of the
    user can have the same name, and is not changed if its function `init` has no such argument.
    """
    wandb: Any = sys.modules.get("wandb")
    plain_init: Any = getattr(wandb, "init", None)
    try:
        parameters = inspect.signature(plain_init).parameters
    except (TypeError, ValueError):
        return
    if "mode" not in parameters:
        return

    @functools.wraps(plain_init)
    def init(*args: Any, **options: Any) -> Any:
        run = plain_init(*args, **{**options, "mode": "disabled"})
        folder = getattr(run, "dir", None)
        if folder:  # scripts save files in this folder, which a disabled run does not create
            os.makedirs(folder, exist_ok=True)
        return run

    wandb.init = init
