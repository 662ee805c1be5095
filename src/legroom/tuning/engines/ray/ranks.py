"""Runs a trial with several ranks on Ray. A coordinator starts one worker per rank, each in a bundle of the trial's
placement group.

The coordinator is the training function that Ray Tune calls. The coordinator starts the ranks, passes their messages
to their `RankGroup` and sends the replies to the ranks, as the local engine does. The ranks connect to an address on
the machine of rank 0, so the ranks may run on several machines.
"""

import queue
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from legroom.tuning.engines.ray.channel import TuneChannel, adapt_to_worker
from legroom.tuning.engines.ray.worker_exits import exit_reason
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.trial.process import TrialExit, TrialTask, run_trial
from legroom.tuning.trial.ranks import Answers, RankGroup
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage

POLL_SECONDS = 0.5
"""The number of seconds between two checks for a stopped trial, if no rank sends a message."""


def run_ranks(tasks: Sequence[TrialTask], channel: TuneChannel) -> TrialExit:
    import ray

    actors = _start_actors(len(tasks))
    try:
        init_method = ray.get(actors[0].free_address.remote())
        for actor, task in zip(actors, tasks, strict=True):
            actor.begin.remote(replace(task, init_method=init_method))
        return _relay(actors, channel)
    finally:
        for actor in actors:
            ray.kill(actor)


class RankActor:
    """The Ray actor of one rank. The training function runs in a thread, and the coordinator fetches its messages one
    by one.
    """

    def __init__(self) -> None:
        self._messages: queue.Queue[ReportMessage | TrialExit] = queue.Queue()
        self._answers: queue.Queue[Action] = queue.Queue()

    def free_address(self) -> str:
        import ray

        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as free:
            free.bind((host, 0))
            return f"tcp://{host}:{free.getsockname()[1]}"

    def begin(self, task: TrialTask) -> None:
        def run() -> None:
            self._messages.put(run_trial(adapt_to_worker(task), self))

        threading.Thread(target=run, name="legroom-rank", daemon=True).start()

    def next_message(self) -> ReportMessage | TrialExit:
        return self._messages.get()

    def answer(self, action: Action) -> None:
        self._answers.put(action)

    def report(self, message: ReportMessage) -> Action:
        """Send a report of the training function to the coordinator, and return the coordinator's decision."""
        self._messages.put(message)
        return self._answers.get()


def _start_actors(ranks: int) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.get_current_placement_group()
    assert group is not None, "Ray Tune creates a placement group for every trial"
    actors = []
    for rank in range(ranks):
        bundle = group.bundle_specs[rank]
        actors.append(
            ray.remote(RankActor)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_concurrency=4,  # `answer` is called while `next_message` waits
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=rank
                ),
            )
            .remote()
        )
    return actors


def _relay(actors: Sequence[Any], channel: TuneChannel) -> TrialExit:
    import ray

    group = RankGroup(len(actors))
    listening = {actor.next_message.remote(): rank for rank, actor in enumerate(actors)}
    while not group.is_over and not channel.is_closed:
        for reference in ray.wait(list(listening), timeout=POLL_SECONDS)[0]:
            rank = listening.pop(reference)
            message = _receive(reference, rank)
            answers: Answers
            if isinstance(message, ReportMessage):
                answers = group.reported(rank, message, channel.report)
                listening[actors[rank].next_message.remote()] = rank
            else:
                answers = group.ended(rank, message)
            for each, action in answers.items():
                actors[each].answer.remote(action)
    return TrialExit(state=TrialState.STOPPED) if channel.is_closed else group.end


def _receive(reference: Any, rank: int) -> ReportMessage | TrialExit:
    import ray
    from ray.exceptions import RayError

    try:
        message: ReportMessage | TrialExit = ray.get(reference)
    except RayError as error:
        reason = exit_reason(str(error), f"The process of rank {rank}")
        return TrialExit(state=TrialState.FAILED, reason=reason)
    return message
