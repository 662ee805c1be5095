"""A trial inside a Ray worker: the function runs as it does everywhere, its reports go through Ray Tune.

Every trial has a process of its own, so that its memory goes back whatever it did: the worker, which ends with it; or, where Ray keeps the
worker for further trials, one that is forked beside it and need not import anything again.
"""

import os
import sys
from dataclasses import replace
from typing import Any

from legroom.tuning.engines.fork_server import SECONDS_TO_END, TrialProcess, ended
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.trial.process import Order, TrialEnd, run_trial, settle_in
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported

ORDERS, REPORTED, ENDED, PROCESS = "orders", "legroom_report", "legroom_end", "legroom_process"
"""Keys under which these travel in Ray's configurations and results."""


def run_in_ray(config: dict[str, Any], *, server: str | None = None) -> None:
    """What Ray Tune takes for the training function. `server`: where a process is forked that runs it, beside this worker."""
    from ray import tune

    orders: list[Order] = config[ORDERS]
    channel = TuneChannel()
    if server is not None:
        end = _run_apart(orders[0], channel, server)
    elif len(orders) == 1:
        end = run_trial(at_work(orders[0]), channel)
    else:
        from legroom.tuning.engines.ray.ranks import run_ranks

        end = run_ranks(orders, channel)
    if channel.is_closed:
        sys.exit(0)  # a function that returns reports once more, and Ray would wait for its thread
    tune.report({ENDED: end})


def _run_apart(order: Order, channel: "TuneChannel", server: str) -> TrialEnd:
    # Ray's patience, before its worker gets the next trial.
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(SECONDS_TO_END)
    process = TrialProcess.start(server, order)
    channel.process = process.number
    try:
        while isinstance(told := process.hear(), Reported):
            action = channel.report(told)
            if channel.is_closed:
                return TrialEnd(state=TrialState.STOPPED)
            process.answer(action)
        return told
    finally:
        process.kill()


def at_work(order: Order) -> Order:
    """This worker is the trial's from now on. Where Ray chose the GPU, it is the only one here, whatever its number in the cluster."""
    import ray

    settle_in(order)
    if order.place is None or not ray.get_gpu_ids():
        return order
    return replace(order, place=replace(order.place, index=0))


class TuneChannel:
    """Reports to Ray Tune, which answers by going on or by ending the thread."""

    def __init__(self) -> None:
        self.is_closed = False
        self.process: int | None = None
        """The number of a process beside this worker that waits for the answer."""

    def report(self, told: Reported) -> Action:
        from ray import tune

        try:
            tune.report({REPORTED: told, PROCESS: self.process})
        except SystemExit:  # how Ray ends a function that waits in a report
            self.is_closed = True
            return Action.STOP
        return Action.GO_ON


def end_process(result: dict[str, Any], server: str | None) -> None:
    """End the process that a result came from, if it is one beside a worker: Ray tells a worker that stays only when the next trial comes, and
    until then the trial would keep its memory."""
    number = result.get(PROCESS)
    if number is not None and server is not None:
        ended(server, number, kill=True)


def read_result(result: dict[str, Any]) -> Reported | TrialEnd:
    """What a result of Ray's says: one of ours, or what a plain Ray function gave to `ray.tune.report`."""
    if REPORTED in result:
        told: Reported = result[REPORTED]
        return told
    if ENDED in result:
        end: TrialEnd = result[ENDED]
        return end
    from ray.tune.result import AUTO_RESULT_KEYS

    metrics = {
        name: float(value)
        for name, value in result.items()
        if name not in AUTO_RESULT_KEYS and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return Reported(step=int(result["training_iteration"]), metrics=metrics)
