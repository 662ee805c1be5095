"""A study process on a system that cannot fork. The process receives its task and runs it."""

import sys
from multiprocessing.connection import Connection
from typing import Any

from legroom.tuning.trial.process import TrialTask, run_trial_process


def run(pipe: "Connection[Any, Any]") -> None:
    """Run the task that arrives first, with the `sys.path` of the study."""
    try:
        sys.path[:], task = pipe.recv()
    except (EOFError, OSError):
        return
    run_task(task, pipe)


def run_task(task: Any, pipe: "Connection[Any, Any]") -> None:
    """Run the task, which is either a trial or the tracing of configurations."""
    if isinstance(task, TrialTask):
        run_trial_process(task, pipe)
    else:
        from legroom.tuning.memory.tracing_process import run_tracing_process

        run_tracing_process(task, pipe)
