"""The result of estimating one configuration: the GPUs on which the trial can run, and the micro-batch size and memory
for each GPU.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from legroom.gpus.catalog import GpuSpec, find_gpu, parse_gpus, real_gpu
from legroom.tuning.space.space import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialGpu:
    """A real or virtual GPU on which trials run. If `memory` is 0, trials run on the CPU."""

    index: int
    memory: int
    context: int = 0
    """The number of bytes that the CUDA context of a process uses."""
    virtual: bool = False
    named_spec: GpuSpec | None = None
    """The GPU model, which determines the kernels in an estimate. If None, a generic GPU with `memory` bytes is used."""
    machine: str = ""
    used_by_others: int = 0
    """The number of bytes that other programs used when the study started."""

    @property
    def name(self) -> str:
        if not self.memory:
            return "cpu"
        return f"virtual {self.index}" if self.virtual else f"cuda:{self.index}"

    @property
    def spec(self) -> GpuSpec:
        return self.named_spec or find_gpu(self.memory)

    @property
    def available(self) -> int:
        """The number of bytes available to PyTorch in a single process if no other trial runs. The memory that other
        programs used at the start of the study is subtracted.
        """
        return max(0, self.memory - self.used_by_others - self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The memory and micro-batch size of a configuration on one GPU. Sizes include the CUDA context."""

    predicted: int
    safe: int
    """The upper bound in bytes. This memory is reserved for the process, and the process cannot use more."""
    micro_batch: int | None = None
    used_by_others: int = 0
    """The number of bytes that other programs use, if the batch is split because of these programs. Otherwise 0."""


class AdmissionVerdict(StrEnum):
    FITS = "fits"
    SPLIT = "split"
    """The configuration fits in micro-batches with gradient accumulation."""
    NEVER = "never-fits"
    UNKNOWN = "unknown"
    """The estimate failed. The trial runs alone on a GPU, and Guard handles out-of-memory errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The admission result for one configuration."""

    verdict: AdmissionVerdict
    fits: Mapping[int, Fit]
    """For each GPU index, the memory and micro-batch size of the configuration on that GPU. GPUs on which the
    configuration cannot run are omitted."""
    reason: str = ""
    """The reason why the configuration can never fit, or why the estimate failed."""
    batch_size: int | None = None
    shortage: float = 0.0
    """For a configuration that never fits, the missing memory as a fraction of the memory of the largest GPU."""
    needed: int | None = None
    """For a configuration that never fits, the bytes that its smallest micro-batch needs on the largest GPU, including
    the CUDA context.
    """
    seconds: float = 0.0
    is_cached: bool = False

    @property
    def size(self) -> int:
        return min((fit.safe for fit in self.fits.values()), default=0)

    @property
    def micro_batches(self) -> int:
        """The smallest number of micro-batches across the GPUs, which is 1 if the batch is not split."""
        micros = [fit.micro_batch for fit in self.fits.values()]
        if self.batch_size is None or not micros or None in micros:
            return 1
        return -(-self.batch_size // max(micro for micro in micros if micro is not None))


NO_GPU = Admission(verdict=AdmissionVerdict.FITS, fits={})


class Gate(Protocol):
    @property
    def has_unseen_configs(self) -> bool:
        """True if a configuration waits for the estimate of its full batch. Configurations that wait only for estimates
        of micro-batches are ignored.
        """

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        """Request the admission of a configuration. `checkpoint` is the path of the checkpoint from which the trial
        continues, if any."""

    def record_oom(self, config: Config, fit: Fit, needed: int) -> None:
        """Record that a trial ran out of memory although the estimate said that it fits. The trial needed at least
        `needed` bytes. Later estimates are increased accordingly.
        """

    def close(self) -> None: ...


def virtual_gpus(sizes: str) -> list[TrialGpu]:
    """Return the virtual GPUs for a string such as `8GiB,4GiB` or `rtx4090`, as in `legroom run --gpu`."""
    return [
        TrialGpu(index=index, memory=spec.total, context=spec.context, virtual=True, named_spec=spec)
        for index, spec in enumerate(parse_gpus(sizes))
    ]


def real_gpus() -> list[TrialGpu]:
    """Return the GPUs in this machine. Without a CUDA build of torch, the result is empty."""
    from legroom.gpus.nvml import NotAvailable
    from legroom.gpus.usage import gpus_in_use

    gpus = []
    for visible in gpus_in_use():
        spec = real_gpu(visible.name, visible.total)
        gpus.append(
            TrialGpu(
                index=visible.index,
                memory=visible.total,
                context=spec.context,
                used_by_others=0
                if isinstance(visible.used, NotAvailable)
                else min(visible.total, visible.used),
                named_spec=spec,
            )
        )
    return gpus


def gpus_for(gpu: str | None) -> list[TrialGpu]:
    """Return the GPUs for trials, or [] for the CPU. If `gpu` is None, return all GPUs in this machine."""
    if isinstance(gpu, str) and gpu.strip().lower() == "cpu":
        return []
    return real_gpus() if gpu is None else virtual_gpus(gpu)
