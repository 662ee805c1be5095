"""A study process on a system that cannot fork."""

import sys
from multiprocessing.connection import Connection
from typing import Any

from legroom.tuning.trial.process import TrialTask, run_trial_process


def run(pipe: "Connection[Any, Any]") -> None:
    try:
        sys.path[:], task = pipe.recv()
    except (EOFError, OSError):
        return
    run_task(task, pipe)


def run_task(task: Any, pipe: "Connection[Any, Any]") -> None:
    if isinstance(task, TrialTask):
        run_trial_process(task, pipe)
    else:
        from legroom.tuning.memory.tracing_process import run_tracing_process

        run_tracing_process(task, pipe)
