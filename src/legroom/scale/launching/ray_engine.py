"""Runs a plan on a Ray cluster through Ray Train: Ray finds the machines, places the ranks and starts them again.

A Ray worker is no place for a script: Ray has imported much there, and runs the training function on a thread. So each
worker starts the rank as a process of its own, the same program that torchrun's agent starts, with the same environment.
What the rank leaves comes back through a mailbox, an actor in the cluster: the folder of the launch then looks as if
all ranks had run here, and everything that reads it works unchanged.

The cluster is the one that RAY_ADDRESS names, or with --nodes the one that this machine belongs to. Otherwise one is started
on this machine for the time: one that happens to run here is somebody's, and may end at any moment.
"""

import logging
import os
import tempfile
from contextlib import AbstractContextManager
from typing import Any

from legroom.errors import LegroomError, MissingExtra, UsageError
from legroom.gpus.machine import processors
from legroom.scale.launching.folder import RunFolder
from legroom.scale.launching.host_kills import kernel_kills
from legroom.scale.launching.outcome import LaunchEnd, Over, Starting
from legroom.scale.launching.plan import LaunchPlan
from legroom.scale.launching.rank_settings import environment, rank_command
from legroom.scale.launching.ray_mailbox import Delivery, Mailbox
from legroom.scale.launching.ray_worker import RankOrder, run_on_worker
from legroom.scale.ray_cluster import Words, connected

_WORDS = Words(
    address="RAY_ADDRESS=",
    without_cluster="`ray start --address` on the other nodes, and launch from the first; without RAY_ADDRESS and --nodes, the ranks run "
    "on this machine",
    without_ray="use --engine torchrun, which needs no Ray",
)


def run_ray(plan: LaunchPlan, folder: RunFolder, *, starting: Starting, over: Over) -> LaunchEnd:
    """Start every rank on the cluster and stay until all have ended. Raises `MissingExtra` without Ray."""
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError:
        raise MissingExtra("Ray", "tune") from None

    order = RankOrder(
        words=tuple(rank_command(plan)[1:]), environment=dict(environment(plan, folder)), folder=os.getcwd()
    )
    killed_before = kernel_kills()
    interrupted = ""
    logging.getLogger("ray").setLevel(logging.ERROR)
    with _cluster(plan), tempfile.TemporaryDirectory(prefix="legroom-ray-") as storage:
        use_gpu = _use_gpu(ray, plan)
        mailbox = ray.remote(num_cpus=0)(Mailbox).remote()
        trainer = TorchTrainer(
            run_on_worker,
            train_loop_config={"mailbox": mailbox, "order": order},
            scaling_config=ScalingConfig(
                num_workers=plan.world_size,
                use_gpu=use_gpu,
                placement_strategy="SPREAD" if plan.nodes[1] > 1 else "PACK",
            ),
            torch_config=TorchConfig(backend="gloo"),  # for the workers to agree where the ranks meet
            run_config=RunConfig(
                storage_path=storage, failure_config=FailureConfig(max_failures=plan.max_restarts)
            ),
        )
        delivery = Delivery(ray, mailbox, plan.world_size, folder, starting, over)
        delivery.start()
        trouble = ""
        try:
            trainer.fit()
        except KeyboardInterrupt:
            interrupted = "SIGINT"
        except Exception as error:
            trouble = str(error)
        finally:
            delivery.stop()
    if not delivery.attempts and not interrupted:
        reason = trouble.strip().splitlines()[-1] if trouble.strip() else "Ray did not say why"
        raise LegroomError(
            f"Ray could not start the ranks: {reason}; `ray status` shows what the cluster has"
        )
    return LaunchEnd(
        attempts=tuple(delivery.attempts),
        interrupted=interrupted,
        kernel_kills=kernel_kills() - killed_before,
    )


def _cluster(plan: LaunchPlan) -> AbstractContextManager[None]:
    """The cluster that was named, or for several nodes this machine's, or else one of our own."""
    named = os.environ.get("RAY_ADDRESS") or ("auto" if plan.nodes[1] > 1 else None)
    return connected(
        None if named == "local" else named, _WORDS, processors=max(plan.world_size + 1, processors())
    )


def _use_gpu(ray: Any, plan: LaunchPlan) -> bool:
    """Whether ranks get GPUs of the cluster; virtual ones need none."""
    if plan.gpus:
        return False
    there = int(ray.cluster_resources().get("GPU", 0))
    if 0 < there < plan.world_size:
        raise UsageError(
            f"{plan.world_size} ranks need {plan.world_size} GPUs and the Ray cluster has {there}: use --nproc {there}, "
            "or try it on virtual GPUs with --gpu 8GiB"
        )
    return there > 0
