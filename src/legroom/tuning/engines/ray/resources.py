"""What a trial asks Ray for, and what a cluster has.

Where the stage packs (this machine, whose GPUs it knows), Ray is asked for next to nothing and counts nothing again. On a cluster Ray
places trials, by what each was foretold to need. A trial of several ranks has one bundle for each of them, all on one machine where there
is one with as many GPUs.
"""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from legroom.tuning.engines.ray.trial import ORDERS
from legroom.tuning.memory.admission import Place, real_places
from legroom.tuning.trial.process import Order

LEAST = 0.001
"""Processors that a trial asks for where the stage packs: it hands out no more than there is room for."""

Resources = Callable[[dict[str, Any]], Any]


def resources(*, on_cluster: bool, strategy: str = "STRICT_PACK") -> Resources:
    """What Ray Tune calls with a trial's orders. `strategy`: how the ranks of trials without GPUs are placed."""

    def asked(config: dict[str, Any]) -> Any:
        from ray.tune import PlacementGroupFactory

        orders: list[Order] = config[ORDERS]
        bundles = [_bundle(order, on_cluster) for order in orders]
        if len(orders) == 1:
            return PlacementGroupFactory(bundles)
        machines = {order.place.machine for order in orders if order.place is not None}
        # The first bundle is the leader's, who needs nothing.
        return PlacementGroupFactory([{}, *bundles], strategy="PACK" if len(machines) > 1 else strategy)

    return asked


def _bundle(order: Order, on_cluster: bool) -> dict[str, float]:
    place = order.place
    if place is None or not place.machine:
        return {"CPU": 1 if on_cluster else LEAST}
    # Ray may put two shares on one GPU, and two ranks of a trial cannot share one.
    share = 1.0 if order.cap is None or order.ranks > 1 else (order.cap + place.context) / place.memory
    return {"CPU": 1, "GPU": math.ceil(min(1.0, share) * 1e4) / 1e4, f"node:{place.machine}": 0.001}


def strategy_for(ranks: int) -> str:
    """How ranks without GPUs are placed: on one machine, if the cluster has one with so many processors."""
    import ray

    most = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
    return "STRICT_PACK" if most >= ranks else "PACK"


def places_of_cluster() -> list[Place]:
    """The cluster's GPUs, numbered through, each machine's as it sees them itself."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(_gpus_here)
    asked = {
        node["NodeManagerAddress"]: look.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"] and node["Resources"].get("GPU")
    }
    found = [(machine, gpu) for machine, answer in asked.items() for gpu in ray.get(answer)]
    return [replace(gpu, machine=machine, index=index) for index, (machine, gpu) in enumerate(found)]


def processors_of_cluster() -> int:
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]


def _gpus_here() -> list[Place]:
    """On a machine of the cluster; Ray hides the GPUs from a task that asked for none."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return real_places()
