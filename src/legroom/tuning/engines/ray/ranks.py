"""A trial of several ranks on Ray: a worker for each, in a bundle of the trial's placement group, and one that leads them.

The leader is what Ray Tune takes for the training function. It starts the ranks, brings what they say to their group and the group's
answers back, so that they decide together as they do without Ray. Ranks meet at an address of rank 0's machine, so they may be on several.
"""

import queue
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from legroom.tuning.engines.ray.trial import TuneChannel, at_work
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.trial.process import Order, TrialEnd, run_trial
from legroom.tuning.trial.ranks import Answers, RankGroup
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported

LOOK = 0.5
"""Seconds between two looks at the clock while no rank says anything."""


def run_ranks(orders: Sequence[Order], channel: TuneChannel) -> TrialEnd:
    """Run a trial's ranks to their common end."""
    import ray

    actors = _started(len(orders))
    try:
        meeting = ray.get(actors[0].meeting.remote())
        for actor, order in zip(actors, orders, strict=True):
            actor.begin.remote(replace(order, meeting=meeting))
        return _led(actors, channel)
    finally:
        for actor in actors:
            ray.kill(actor)


class Rank:
    """The worker of one rank: the function runs in a thread, and what it says is fetched message by message."""

    def __init__(self) -> None:
        self._said: queue.Queue[Reported | TrialEnd] = queue.Queue()
        self._answers: queue.Queue[Action] = queue.Queue()

    def meeting(self) -> str:
        """An address here that is free now."""
        import ray

        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as free:
            free.bind((host, 0))
            return f"tcp://{host}:{free.getsockname()[1]}"

    def begin(self, order: Order) -> None:
        def live() -> None:
            self._said.put(run_trial(at_work(order), self))

        threading.Thread(target=live, name="legroom-rank", daemon=True).start()

    def next_message(self) -> Reported | TrialEnd:
        return self._said.get()

    def answer(self, action: Action) -> None:
        self._answers.put(action)

    def report(self, told: Reported) -> Action:
        """The function's side: this worker is its channel."""
        self._said.put(told)
        return self._answers.get()


def _started(ranks: int) -> list[Any]:
    """A worker in each bundle, with all that the bundle has."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.get_current_placement_group()
    assert group is not None, "Ray Tune gives every trial one"
    actors = []
    for rank in range(ranks):
        bundle = group.bundle_specs[rank]
        actors.append(
            ray.remote(Rank)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_concurrency=4,  # a message is waited for while an answer comes
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=rank
                ),
            )
            .remote()
        )
    return actors


def _led(actors: Sequence[Any], channel: TuneChannel) -> TrialEnd:
    import ray

    group = RankGroup(len(actors))
    listening = {actor.next_message.remote(): rank for rank, actor in enumerate(actors)}
    while not group.is_over and not channel.is_closed:
        for said in ray.wait(list(listening), timeout=LOOK)[0]:
            rank = listening.pop(said)
            told = _heard(said, rank)
            answers: Answers
            if isinstance(told, Reported):
                answers = group.reported(rank, told, channel.report)
                listening[actors[rank].next_message.remote()] = rank
            else:
                answers = group.ended(rank, told)
            for each, action in answers.items():
                actors[each].answer.remote(action)
    return TrialEnd(state=TrialState.STOPPED) if channel.is_closed else group.end


def _heard(said: Any, rank: int) -> Reported | TrialEnd:
    import ray
    from ray.exceptions import RayError

    try:
        told: Reported | TrialEnd = ray.get(said)
    except RayError:
        why = f"the process of rank {rank} ended without a word: it was killed, or the machine was out of memory"
        return TrialEnd(state=TrialState.FAILED, why=why)
    return told
