"""Disables experiment trackers in a traced script, so that they report no run and start no process.

A tracker that logs through another process fails in a trace, because the traces are forks and share that process. The
first trace that finishes the run would close it for all of them.
"""

import functools
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
    """Disable all runs, because the argument `mode` takes precedence over the environment variable."""
    wandb: Any = sys.modules["wandb"]
    plain_init = wandb.init

    @functools.wraps(plain_init)
    def init(*args: Any, **options: Any) -> Any:
        run = plain_init(*args, **{**options, "mode": "disabled"})
        os.makedirs(
            run.dir, exist_ok=True
        )  # scripts save files in this folder, which a disabled run does not create
        return run

    wandb.init = init
