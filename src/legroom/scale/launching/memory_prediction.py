"""Predicts the memory of each rank before the launch.

Every rank on this node is traced separately, as `legroom estimate` traces a script. The process group of a traced rank
has the full world size, but the other ranks do not exist (see `observe.virtual.single_rank`). Therefore shards, batches
and pipeline stages have the same sizes as in a launch.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from legroom.gpus.catalog import GpuSpec, real_gpu
from legroom.gpus.machine import processors, visible_gpus
from legroom.observe.virtual.single_rank import VARIABLE as SINGLE_RANK_VARIABLE
from legroom.predict.estimate import Estimate, estimate_from_trace
from legroom.predict.tracing.script import CannotTrace, TracedScript
from legroom.predict.tracing.trace import Mode
from legroom.predict.tracing.worker_process import start_tracing
from legroom.scale.launching.plan import IN_ONE_PROCESS, LaunchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrediction:
    """The prediction for one rank."""

    rank: int
    gpu: GpuSpec
    estimate: Estimate | None
    error: str = ""
    """The reason why the rank has no estimate, or ""."""

    def as_json(self) -> dict[str, Any]:
        estimate = self.estimate
        return {
            "rank": self.rank,
            "gpu": self.gpu.name,
            "capacity_bytes": self.gpu.total,
            "verdict": estimate.verdict if estimate else None,
            "batch_size": estimate.batch_size if estimate else None,
            "peak_allocated_bytes": estimate.peak_allocated if estimate else None,
            "peak_device_bytes": estimate.peak_device if estimate else None,
            "safe_bytes": estimate.safe if estimate else None,
            "by_category": estimate.by_category if estimate else None,
            "error": self.error or None,
        }


def predict_ranks(
    plan: LaunchPlan, progress: Callable[[str], None] = lambda message: None
) -> list[RankPrediction]:
    """Return one prediction per rank on this node, which is assumed to be the first node. Without a GPU, the result is
    empty."""
    gpus = list(plan.gpus) or _real_gpus(plan)
    if not gpus:
        return []
    if plan.strategy in IN_ONE_PROCESS:
        error = (
            f"strategy {plan.strategy} uses several GPUs in one process, which cannot be traced. Run the "
            "script with --gpu instead"
        )
        return [RankPrediction(rank=0, gpu=gpus[0], estimate=None, error=error)]
    progress("tracing each rank")
    with tempfile.TemporaryDirectory(prefix="legroom-") as messages, ThreadPoolExecutor(processors()) as pool:

        def trace(rank: int) -> RankPrediction:
            return _trace(plan, rank, gpus, messages)

        first = trace(0)  # the other ranks read its broadcasts
        return [first, *pool.map(trace, range(1, plan.nproc))]


def _trace(plan: LaunchPlan, rank: int, gpus: Sequence[GpuSpec], messages: str) -> RankPrediction:
    gpu = gpus[rank]
    environment = _environment(plan, rank, messages)
    try:
        try:
            estimate = _estimate(plan, rank, gpus, "fake", environment)
        except CannotTrace as error:
            if not error.needs_data:
                raise
            estimate = _estimate(plan, rank, gpus, "cpu", environment)
    except CannotTrace as error:
        return RankPrediction(rank=rank, gpu=gpu, estimate=None, error=str(error))
    return RankPrediction(rank=rank, gpu=gpu, estimate=estimate)


def _estimate(
    plan: LaunchPlan, rank: int, gpus: Sequence[GpuSpec], mode: Mode, environment: Mapping[str, str]
) -> Estimate:
    started = start_tracing(
        plan.script, gpus[rank], mode=mode, environment=environment, gpus=gpus, local_rank=rank
    )
    with TracedScript(started, gpus[rank], mode=mode) as traced:
        return estimate_from_trace(traced.trace())


def _environment(plan: LaunchPlan, rank: int, messages: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(plan.nproc),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        SINGLE_RANK_VARIABLE: messages,
        **plan.settings,
    }


def _real_gpus(plan: LaunchPlan) -> list[GpuSpec]:
    return [real_gpu(gpu.name, gpu.total) for gpu in visible_gpus()][: plan.nproc]
