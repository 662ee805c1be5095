"""Legroom in a Ray Train training function.

@observed
def train_loop(config):
    for x, y in legroom.watch(loader):
        loss = guard.step(loss_fn, x, y)
    ray.train.report({"loss": loss.item(), **memory_metrics()})

TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=4, use_gpu=True)).fit()
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from legroom.diagnose.oom.recognize import is_oom
from legroom.integrations.versions import check_library
from legroom.log import say
from legroom.observe.leaks.counters import cuda_allocated_and_peak
from legroom.run.record import record

check_library("ray")

P = ParamSpec("P")
R = TypeVar("R")


def observed(function: Callable[P, R]) -> Callable[P, R]:
    """Return a training function that prints a report with the rank of its worker if memory runs out. Other errors pass
    through unchanged."""

    @wraps(function)
    def train_loop(*args: P.args, **kwargs: P.kwargs) -> R:
        import torch

        if not torch.cuda.is_available():
            return function(*args, **kwargs)
        recording = record(leaks=False)
        try:
            with recording:
                return function(*args, **kwargs)
        except Exception as error:
            if is_oom(error):
                say(f"Rank {_rank()} ran out of GPU memory.\n{recording}", lines=True)
            raise

    return train_loop


def memory_metrics() -> dict[str, int]:
    """Return the allocated bytes and the peak of the GPU, for `ray.train.report`. Without a GPU, the values are 0."""
    allocated, peak = cuda_allocated_and_peak()
    return {"gpu_memory_allocated_bytes": allocated, "gpu_memory_peak_bytes": peak}


def _rank() -> Any:
    from ray import train

    try:
        return train.get_context().get_world_rank()
    except Exception:  # the function was called without Ray Train
        return 0
