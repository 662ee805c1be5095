"""Runs a launch plan on a Ray cluster through Ray Train.

Ray finds the machines, places the ranks and restarts them. A script cannot run directly in a Ray worker, because Ray
has already imported many modules there and runs the training function in a thread. Therefore each worker starts the
rank as a separate process, with the same program and environment as torchrun's agent. The output of the rank is sent
to a mailbox, an actor in the cluster. The folder of the launch is then the same as if all ranks had run on this
machine.

If RAY_ADDRESS is set, the ranks run on that cluster. With `--nodes`, the ranks run on the cluster that is already
running on this machine. Otherwise, a temporary cluster is started, because an existing cluster on this machine may
belong to another user.
"""

import logging
import os
import tempfile
from contextlib import AbstractContextManager
from typing import Any

from legroom.errors import LegroomError, MissingExtra, UsageError
from legroom.gpus.machine import processors
from legroom.scale.launching.folder import LaunchFolder
from legroom.scale.launching.host_oom import host_oom_kills
from legroom.scale.launching.outcome import LaunchResult, OnEnd, OnStart
from legroom.scale.launching.plan import LaunchPlan
from legroom.scale.launching.rank_settings import environment, rank_command
from legroom.scale.launching.ray_mailbox import Mailbox, MailboxReader
from legroom.scale.launching.ray_worker import RankTask, run_on_worker
from legroom.scale.ray_cluster import RayHelp, connect_ray

_HELP = RayHelp(
    address="RAY_ADDRESS=",
    no_cluster="run `ray start --address` on the other nodes, and launch from the first node. Without "
    "RAY_ADDRESS and --nodes, the ranks run on this machine",
    no_ray="use `--engine torchrun`, which does not need Ray",
)


def run_ray(plan: LaunchPlan, folder: LaunchFolder, *, on_start: OnStart, on_end: OnEnd) -> LaunchResult:
    """Start all ranks on the cluster and wait until they have exited. Raises `MissingExtra` if Ray is not installed."""
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError:
        raise MissingExtra("Ray", "tune") from None

    task = RankTask(
        arguments=tuple(rank_command(plan)[1:]),
        environment=dict(environment(plan, folder)),
        folder=os.getcwd(),
    )
    kills_before = host_oom_kills()
    interrupted = ""
    logging.getLogger("ray").setLevel(logging.ERROR)
    with _cluster(plan), tempfile.TemporaryDirectory(prefix="legroom-ray-") as storage:
        use_gpu = _use_gpu(ray, plan)
        mailbox = ray.remote(num_cpus=0)(Mailbox).remote()
        trainer = TorchTrainer(
            run_on_worker,
            train_loop_config={"mailbox": mailbox, "task": task},
            scaling_config=ScalingConfig(
                num_workers=plan.world_size,
                use_gpu=use_gpu,
                placement_strategy="SPREAD" if plan.nodes[1] > 1 else "PACK",
            ),
            torch_config=TorchConfig(backend="gloo"),  # the workers only exchange the address of the ranks
            run_config=RunConfig(
                storage_path=storage, failure_config=FailureConfig(max_failures=plan.max_restarts)
            ),
        )
        reader = MailboxReader(ray, mailbox, plan.world_size, folder, on_start, on_end)
        reader.start()
        message = ""
        try:
            trainer.fit()
        except KeyboardInterrupt:
            interrupted = "SIGINT"
        except Exception as error:
            message = str(error)
        finally:
            reader.stop()
    if not reader.attempts and not interrupted:
        reason = message.strip().splitlines()[-1] if message.strip() else "Ray did not report a reason"
        raise LegroomError(
            f"Ray could not start the ranks: {reason}. Run `ray status` to see the cluster's resources."
        )
    return LaunchResult(
        attempts=tuple(reader.attempts),
        interrupted=interrupted,
        host_oom_kills=host_oom_kills() - kills_before,
    )


def _cluster(plan: LaunchPlan) -> AbstractContextManager[None]:
    address = os.environ.get("RAY_ADDRESS") or ("auto" if plan.nodes[1] > 1 else None)
    return connect_ray(
        None if address == "local" else address, _HELP, processors=max(plan.world_size + 1, processors())
    )


def _use_gpu(ray: Any, plan: LaunchPlan) -> bool:
    """Return whether ranks use the cluster's GPUs. Ranks on virtual GPUs do not use the cluster's GPUs."""
    if plan.gpus:
        return False
    available = int(ray.cluster_resources().get("GPU", 0))
    if 0 < available < plan.world_size:
        raise UsageError(
            f"{plan.world_size} ranks need {plan.world_size} GPUs, but the Ray cluster has {available}. Use `--nproc {available}`, "
            "or virtual GPUs (`--gpu 8GiB`)."
        )
    return available > 0
