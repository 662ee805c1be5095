"""What each rank of a launch will need of its GPU, before any of them starts.

Every rank of this node is traced by itself, as `legroom estimate` traces a script, in a world of the right size whose
other ranks never come (see `observe.virtual.single_rank`). So shards, shares and stages have their true sizes.
"""

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from legroom.gpus.catalog import GpuSpec, real_gpu
from legroom.gpus.machine import processors, visible_gpus
from legroom.observe.virtual.single_rank import VARIABLE as LONE_RANK
from legroom.predict.estimate import Estimate, estimate_from_trace
from legroom.predict.tracing.script import CannotTrace, TracedScript
from legroom.predict.tracing.trace import Mode
from legroom.predict.tracing.worker_process import start_tracing
from legroom.scale.launching.plan import IN_ONE_PROCESS, LaunchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One rank, as it will be."""

    rank: int
    gpu: GpuSpec
    estimate: Estimate | None
    trouble: str = ""
    """Why there is no estimate."""

    def as_json(self) -> dict[str, Any]:
        told = self.estimate
        return {
            "rank": self.rank,
            "gpu": self.gpu.name,
            "capacity_bytes": self.gpu.total,
            "verdict": told.verdict if told else None,
            "batch_size": told.batch_size if told else None,
            "peak_allocated_bytes": told.peak_allocated if told else None,
            "peak_device_bytes": told.peak_device if told else None,
            "safe_bytes": told.safe if told else None,
            "trouble": self.trouble or None,
        }


def foretell(plan: LaunchPlan, say: Callable[[str], None] = lambda sentence: None) -> list[Forecast]:
    """One forecast per rank of this node, taken as the first; none where no GPU is named and none is there."""
    gpus = list(plan.gpus) or _real_gpus(plan)
    if not gpus:
        return []
    if plan.strategy in IN_ONE_PROCESS:
        trouble = f"strategy {plan.strategy} drives several GPUs from one process, which is not traced: try it with --gpu"
        return [Forecast(rank=0, gpu=gpus[0], estimate=None, trouble=trouble)]
    say(f"tracing {plan.nproc} ranks, each by itself")
    with tempfile.TemporaryDirectory(prefix="legroom-") as letters, ThreadPoolExecutor(processors()) as pool:

        def trace(rank: int) -> Forecast:
            return _trace(plan, rank, gpus[rank], letters)

        first = trace(0)  # what it decides and broadcasts is there for the others then
        return [first, *pool.map(trace, range(1, plan.nproc))]


def _trace(plan: LaunchPlan, rank: int, gpu: GpuSpec, letters: str) -> Forecast:
    environment = _environment(plan, rank, letters)
    try:
        try:
            told = _estimate(plan, gpu, "fake", environment)
        except CannotTrace as trouble:
            if not trouble.needs_data:
                raise
            told = _estimate(plan, gpu, "cpu", environment)
    except CannotTrace as trouble:
        return Forecast(rank=rank, gpu=gpu, estimate=None, trouble=str(trouble))
    return Forecast(rank=rank, gpu=gpu, estimate=told)


def _estimate(plan: LaunchPlan, gpu: GpuSpec, mode: Mode, environment: Mapping[str, str]) -> Estimate:
    started = start_tracing(plan.script, gpu, mode=mode, environment=environment)
    with TracedScript(started, gpu, mode=mode) as traced:
        return estimate_from_trace(traced.trace())


def _environment(plan: LaunchPlan, rank: int, letters: str) -> dict[str, str]:
    """As the rank will find it, except that a trace has one GPU: it is the first of its node."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        LONE_RANK: letters,
        **plan.settings,
    }


def _real_gpus(plan: LaunchPlan) -> list[GpuSpec]:
    return [real_gpu(gpu.name, gpu.total) for gpu in visible_gpus()][: plan.nproc]
