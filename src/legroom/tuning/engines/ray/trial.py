"""Runs a trial inside a Ray worker. The function runs as in the local engine, but its reports are sent through Ray
Tune.

Every trial has its own process, so its memory is always freed. The process is either a Ray worker that exits after the
trial, or a process from the fork server. With a process from the fork server, the Ray worker is reused.
"""

import os
import sys
from typing import Any

from legroom.tuning.engines.fork_server import SECONDS_TO_END, TrialProcess, wait_for_exit
from legroom.tuning.engines.ray.channel import ENDED, PROCESS, REPORTED, TASKS, TuneChannel, adapt_to_worker
from legroom.tuning.engines.ray.ranks import run_ranks
from legroom.tuning.trial.process import TrialExit, TrialTask, run_trial
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage


def run_in_ray(config: dict[str, Any], *, server: str | None = None) -> None:
    """Run a trial as Ray Tune's training function. If `server` is given, the trial runs in a process of this fork
    server.
    """
    from ray import tune

    tasks: list[TrialTask] = config[TASKS]
    channel = TuneChannel()
    if server is not None:
        end = _run_forked(tasks[0], channel, server)
    elif len(tasks) == 1:
        end = run_trial(adapt_to_worker(tasks[0]), channel)
    else:
        end = run_ranks(tasks, channel)
    if channel.is_closed:
        sys.exit(0)  # returning would report again, and Ray would wait for this thread
    tune.report({ENDED: end})


def _run_forked(task: TrialTask, channel: TuneChannel, server: str) -> TrialExit:
    # The time that Ray waits before it passes the next trial to the worker.
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(SECONDS_TO_END)
    process = TrialProcess.start(server, task)
    channel.process = process.number
    try:
        while isinstance(message := process.receive(), ReportMessage):
            action = channel.report(message)
            if channel.is_closed:
                return TrialExit(state=TrialState.STOPPED)
            process.answer(action)
        return message
    finally:
        process.kill()


def kill_process(result: dict[str, Any], server: str | None) -> None:
    """Kill the process that sent a result, if it was forked. Without this call, a forked process would keep its memory
    until the next trial starts, because Ray notifies a reused worker only at that time.
    """
    number = result.get(PROCESS)
    if number is not None and server is not None:
        wait_for_exit(server, number, kill=True)


def read_result(result: dict[str, Any]) -> ReportMessage | TrialExit:
    message: ReportMessage | TrialExit = result[REPORTED] if REPORTED in result else result[ENDED]
    return message
