"""The Ray resources that a trial requests, and the resources of a cluster.

On this machine, the dispatcher places trials, so trials request almost no resources from Ray. On a cluster, Ray places
trials according to their predicted memory. A trial with several ranks has one bundle per rank. If one machine has
enough GPUs, all bundles are on that machine.
"""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from legroom.tuning.engines.ray.channel import TASKS
from legroom.tuning.memory.admission import TrialGpu, real_gpus
from legroom.tuning.trial.process import TrialTask

MIN_CPUS = 0.001

Resources = Callable[[dict[str, Any]], Any]


def resources(*, on_cluster: bool, strategy: str = "STRICT_PACK") -> Resources:
    """Return a function that Ray Tune calls with the tasks of a trial, to get the trial's resources. `strategy` is the
    placement strategy for ranks without GPUs.
    """

    def request(config: dict[str, Any]) -> Any:
        from ray.tune import PlacementGroupFactory

        tasks: list[TrialTask] = config[TASKS]
        bundles = [_bundle(task, on_cluster) for task in tasks]
        if len(tasks) == 1:
            return PlacementGroupFactory(bundles)
        machines = {task.gpu.machine for task in tasks if task.gpu is not None}
        # The first bundle is for the coordinator, which needs no resources.
        return PlacementGroupFactory([{}, *bundles], strategy="PACK" if len(machines) > 1 else strategy)

    return request


def _bundle(task: TrialTask, on_cluster: bool) -> dict[str, float]:
    gpu = task.gpu
    if gpu is None or not gpu.machine:
        return {"CPU": 1 if on_cluster else MIN_CPUS}
    # Ray may place two fractions on one GPU, and the ranks of a trial must not share one.
    share = 1.0 if task.cap is None or task.ranks > 1 else (task.cap + gpu.context) / gpu.memory
    return {"CPU": 1, "GPU": math.ceil(min(1.0, share) * 1e4) / 1e4, f"node:{gpu.machine}": 0.001}


def strategy_for(ranks: int) -> str:
    """Return Ray's placement strategy. All ranks run on one machine if a machine has enough CPUs."""
    import ray

    max_cpus = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
    return "STRICT_PACK" if max_cpus >= ranks else "PACK"


def cluster_gpus() -> list[TrialGpu]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    list_gpus = ray.remote(num_cpus=0)(_gpus_here)
    answers = {
        node["NodeManagerAddress"]: list_gpus.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"] and node["Resources"].get("GPU")
    }
    found = [(machine, gpu) for machine, answer in answers.items() for gpu in ray.get(answer)]
    return [replace(gpu, machine=machine, index=index) for index, (machine, gpu) in enumerate(found)]


def processors_of_cluster() -> int:
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]


def _gpus_here() -> list[TrialGpu]:
    """Return the GPUs of the machine that runs this task. Ray hides GPUs from a task that requested none, so the
    function first makes them visible.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return real_gpus()
