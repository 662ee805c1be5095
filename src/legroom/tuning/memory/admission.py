"""The memory question and its answers: on which GPUs can a configuration run, with how many rows at once, in how much memory.

An engine asks once per proposal and goes by the answer; how it is found out is the gate's business (see `memory_gate`).
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from legroom.gpus.catalog import GpuSpec, find_gpu, parse_gpus, real_gpu
from legroom.tuning.space.space import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A GPU, real or virtual, or (`memory` 0) the host without one."""

    index: int
    memory: int
    """Bytes in all."""
    context: int = 0
    """Bytes that each process takes of it before PyTorch takes any."""
    virtual: bool = False
    gpu: GpuSpec | None = None
    """Its kind, which decides the kernels that an estimate counts with. None: a GPU of `memory` bytes."""
    machine: str = ""
    """Its address in a cluster; empty: this one."""
    held: int = 0
    """Bytes that other programs had when the study began."""

    @property
    def name(self) -> str:
        if not self.memory:
            return "cpu"
        return f"virtual {self.index}" if self.virtual else f"cuda:{self.index}"

    @property
    def spec(self) -> GpuSpec:
        """Its kind, whether or not it was named."""
        return self.gpu or find_gpu(self.memory)

    @property
    def room(self) -> int:
        """Bytes for PyTorch in one process beside which no other trial ran when the study began."""
        return max(0, self.memory - self.held - self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a configuration runs on one kind of GPU. Bytes on the device, context included."""

    predicted: int
    safe: int
    """What it is given room for, and capped at."""
    micro_batch: int | None = None
    """Rows at once; None: the batch is taken whole."""
    held: int = 0
    """Bytes that other programs have of the GPU, where it is split for that reason alone."""


class Verdict(StrEnum):
    FITS = "fits"
    SPLIT = "split"
    """With a smaller micro-batch and accumulation: the configuration stays what it is."""
    NEVER = "never-fits"
    UNKNOWN = "unknown"
    """It could not be estimated: it runs alone on a GPU, and guard does the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The answer about one configuration."""

    verdict: Verdict
    fits: Mapping[int, Fit]
    """Place's index → how it runs there; places on which it cannot run are left out."""
    why: str = ""
    """One sentence, for people: how it is split, why it can never fit, why it is unknown."""
    batch_size: int | None = None
    shortage: float = 0.0
    """Of a configuration that never fits: by which share of the largest GPU it is too large."""
    needed: int | None = None
    """Of a configuration that never fits: bytes on the largest GPU, context included, that its smallest piece would take."""
    seconds: float = 0.0
    """Of tracing, for this answer alone."""
    is_cached: bool = False

    @property
    def size(self) -> int:
        """Bytes where it takes least; 0 on the host."""
        return min((fit.safe for fit in self.fits.values()), default=0)

    @property
    def pieces(self) -> int:
        """Into how many its batch is cut where that is fewest; 1: it is taken whole."""
        micros = [fit.micro_batch for fit in self.fits.values()]
        if self.batch_size is None or not micros or None in micros:
            return 1
        return -(-self.batch_size // max(micro for micro in micros if micro is not None))


NO_GPU = Admission(verdict=Verdict.FITS, fits={})
"""What is said where trials run on the host alone."""


class Gate(Protocol):
    """Answers in the background, so that estimating costs no trial its time."""

    @property
    def is_looking(self) -> bool:
        """Whether a configuration waits to be looked at for the first time, with its batch whole. Some answers take longer than that."""

    def ask(self, config: Config) -> "Future[Admission]": ...

    def ran_out(self, config: Config, fit: Fit, needed: int) -> None:
        """A trial met a full GPU in spite of its estimate: it took `needed` bytes at least. Later answers are larger."""

    def close(self) -> None: ...


def virtual_places(sizes: str) -> list[Place]:
    """`8GiB,4GiB` or `rtx4090`, as `legroom run --gpu` reads them."""
    return [
        Place(index=index, memory=gpu.total, context=gpu.context, virtual=True, gpu=gpu)
        for index, gpu in enumerate(parse_gpus(sizes))
    ]


def real_places() -> list[Place]:
    """The GPUs that a trial can use here; none without a CUDA build of torch."""
    from legroom.gpus.machine import NotAvailable
    from legroom.gpus.usage import gpus_in_use

    places = []
    for gpu in gpus_in_use():
        spec = real_gpu(gpu.name, gpu.total)
        places.append(
            Place(
                index=gpu.index,
                memory=gpu.total,
                context=spec.context,
                held=0 if isinstance(gpu.used, NotAvailable) else min(gpu.total, gpu.used),
                gpu=spec,
            )
        )
    return places


def places_for(gpu: str | None) -> list[Place]:
    """Where trials run: `None` is every GPU of this machine, or the host where there is none; `cpu` is the host."""
    if gpu is not None and gpu.strip().lower() == "cpu":
        return []
    return real_places() if gpu is None else virtual_places(gpu)
