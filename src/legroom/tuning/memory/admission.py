"""Defines `Admission`, which lists the GPUs on which a trial can run. For each GPU, an `Admission` contains the
micro-batch size and the required memory. An engine requests one `Admission` per proposal, which `gate` computes.
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
    """The total memory in bytes."""
    context: int = 0
    """The number of bytes that each process uses for its CUDA context."""
    virtual: bool = False
    named_spec: GpuSpec | None = None
    """The GPU model that determines the kernels in an estimate. If None, a generic GPU with `memory` bytes is used."""
    machine: str = ""
    """The address of the GPU's machine in a cluster, or "" for this machine."""
    used_by_others: int = 0
    """The number of bytes that other programs used when the study started."""

    @property
    def name(self) -> str:
        if not self.memory:
            return "cpu"
        return f"virtual {self.index}" if self.virtual else f"cuda:{self.index}"

    @property
    def spec(self) -> GpuSpec:
        """The GPU model, or a generic GPU if no model is known."""
        return self.named_spec or find_gpu(self.memory)

    @property
    def available(self) -> int:
        """The number of bytes available to PyTorch in a single process at the start of the study, if no other trial runs."""
        return max(0, self.memory - self.used_by_others - self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The memory and micro-batch size of a configuration on one GPU. Sizes include the CUDA context."""

    predicted: int
    safe: int
    """The upper bound in bytes. This memory is reserved, and the process may not use more."""
    micro_batch: int | None = None
    """The number of samples per micro-batch, or None if the batch is not split."""
    used_by_others: int = 0
    """The memory that other programs use, in bytes. The value is set only if the batch would fit unsplit without these
    programs."""


class AdmissionVerdict(StrEnum):
    FITS = "fits"
    SPLIT = "split"
    """The configuration fits in micro-batches with gradient accumulation. The configuration itself is unchanged."""
    NEVER = "never-fits"
    UNKNOWN = "unknown"
    """The estimate failed. The trial runs alone on a GPU, and Guard handles out-of-memory errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The admission result for one configuration."""

    verdict: AdmissionVerdict
    fits: Mapping[int, Fit]
    """Maps GPU indices to the fit of the configuration on each GPU. GPUs on which the configuration cannot run are
    omitted."""
    reason: str = ""
    """The reason why the configuration can never fit, or why the estimate failed."""
    batch_size: int | None = None
    shortage: float = 0.0
    """The missing memory of a configuration that never fits, as a fraction of the memory of the largest GPU."""
    needed: int | None = None
    """The memory of the smallest micro-batch on the largest GPU in bytes, including the CUDA context. The value is
    set if the configuration never fits."""
    seconds: float = 0.0
    """The time in seconds spent on traces for this result."""
    is_cached: bool = False

    @property
    def size(self) -> int:
        """The smallest upper bound across the GPUs, or 0 on the host."""
        return min((fit.safe for fit in self.fits.values()), default=0)

    @property
    def micro_batches(self) -> int:
        """The smallest number of micro-batches across the GPUs, which is 1 if the batch is not split."""
        micros = [fit.micro_batch for fit in self.fits.values()]
        if self.batch_size is None or not micros or None in micros:
            return 1
        return -(-self.batch_size // max(micro for micro in micros if micro is not None))


NO_GPU = Admission(verdict=AdmissionVerdict.FITS, fits={})
"""The admission of every trial that runs on the host."""


class Gate(Protocol):
    """Computes admissions in the background, so that trials do not wait for estimates."""

    @property
    def has_unseen_configs(self) -> bool:
        """True if a configuration waits for its first estimate, which is the estimate of the full batch. Estimates of
        micro-batches are ignored."""

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        """Estimate a configuration. `checkpoint` is the checkpoint from which the trial continues."""

    def record_oom(self, config: Config, fit: Fit, needed: int) -> None:
        """Record that a trial ran out of memory, although it should fit according to its estimate. The trial needed at
        least `needed` bytes. Later estimates are corrected."""

    def close(self) -> None: ...


def virtual_gpus(sizes: str) -> list[TrialGpu]:
    """Return the virtual GPUs for a string such as `8GiB,4GiB` or `rtx4090`, as in `legroom run --gpu`."""
    return [
        TrialGpu(index=index, memory=spec.total, context=spec.context, virtual=True, named_spec=spec)
        for index, spec in enumerate(parse_gpus(sizes))
    ]


def real_gpus() -> list[TrialGpu]:
    """Return the GPUs in this machine. The result is empty without a CUDA build of torch."""
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
    """Return the GPUs for trials. `None` means all GPUs in this machine, or the host if there is no GPU. `cpu` means
    the host."""
    if isinstance(gpu, str) and gpu.strip().lower() == "cpu":
        return []
    return real_gpus() if gpu is None else virtual_gpus(gpu)
