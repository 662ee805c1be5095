"""The answer: does it fit, by how much, where is the peak, what is the largest batch."""

from dataclasses import dataclass
from typing import Any

from legroom import schemas
from legroom.gpus.catalog import GpuSpec
from legroom.memory.ledger import Ledger
from legroom.memory.state import State
from legroom.predict.fit import Verdict, beside, replay, safe_reserved, verdict
from legroom.predict.tracing.trace import Mode, Trace
from legroom.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Estimate:
    """What a training step will need on a GPU. Sizes in bytes. At a prompt it shows itself as a sentence."""

    gpu: GpuSpec
    peak_requested: int
    """Of what tensors and libraries ask for."""
    peak_allocated: int
    """The same as the allocator charges it: `torch.cuda.max_memory_allocated()`."""
    peak_reserved: int
    """What the allocator takes from the device: `torch.cuda.max_memory_reserved()`."""
    peak_device: int
    """That, and for a GPU by name the CUDA context and NCCL's buffers: what `nvidia-smi` shows."""
    safe: int
    """A bound on `peak_device` that is meant to hold."""
    verdict: Verdict
    batch_size: int | None
    max_batch_size: int | None
    """The largest batch that fits, traced at that very size; None where no batch size could be varied."""
    steps: int
    mode: Mode
    state: State
    """Everything alive at the peak."""
    trace: Trace
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    @property
    def by_category(self) -> dict[str, int]:
        return {str(category): size for category, size in self.state.by_category().items()}

    @property
    def by_module(self) -> dict[str, int]:
        return self.state.by_module()

    @property
    def top(self) -> list[dict[str, Any]]:
        """The lines that hold most at the peak."""
        return [
            {
                "file": row.file,
                "line": row.line,
                "bytes": row.bytes,
                "category": str(row.category),
                "module": row.module,
            }
            for row in self.state.top(10)
        ]

    @property
    def timeline(self) -> list[Any]:
        """Allocated bytes over the traced steps, by category, downsampled."""
        return Ledger(self.trace.events).timeline()

    def as_json(self, script: str = "") -> dict[str, Any]:
        return {
            "schema": schemas.ESTIMATE,
            "script": script,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "capacity_bytes": self.gpu.total,
            "peak_requested_bytes": self.peak_requested,
            "peak_allocated_bytes": self.peak_allocated,
            "peak_reserved_bytes": self.peak_reserved,
            "peak_device_bytes": self.peak_device,
            "safe_bytes": self.safe,
            "verdict": self.verdict,
            "max_batch_size": self.max_batch_size,
            "by_category": self.by_category,
            "top": self.top,
            "mode": self.mode,
            "gpu": self.gpu.name,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {format_size(size)}" for name, size in self._held())
        return f"<Estimate: {_WORDS[self.verdict].lower()}, {self._figures()} At the peak: {held}.>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{name}</td><td style='text-align:right'>{format_size(size)}</td></tr>"
            for name, size in self._held()
        )
        return f"<p><b>{_WORDS[self.verdict]}</b>: {self._figures()}</p><table>{rows}</table>"

    def _figures(self) -> str:
        memory = format_size(self.gpu.total)
        named = memory if self.gpu.is_size else f"{memory} ({self.gpu.name})"
        largest = "" if self.max_batch_size is None else f" Largest batch: {self.max_batch_size}."
        return f"{format_size(self.peak_device)} of {named}, at most {format_size(self.safe)}.{largest}"

    def _held(self) -> list[tuple[str, int]]:
        return [(name, size) for name, size in self.by_category.items() if size]


_WORDS = {"fits": "Fits", "uncertain": "May not fit", "does-not-fit": "Does not fit"}


def judge(trace: Trace, *, max_batch_size: int | None = None) -> Estimate:
    """A trace, held against the GPU it was made for."""
    gpu = trace.gpu
    peaks = replay(trace)
    ledger = Ledger(trace.events)
    return Estimate(
        gpu=gpu,
        peak_requested=peaks.requested,
        peak_allocated=peaks.allocated,
        peak_reserved=peaks.reserved,
        peak_device=peaks.reserved + beside(trace),
        safe=beside(trace) + safe_reserved(trace, peaks),
        verdict=verdict(trace, peaks, gpu.total - beside(trace)),
        batch_size=trace.batch_size,
        max_batch_size=max_batch_size,
        steps=trace.steps,
        mode=trace.mode,
        state=ledger.at(ledger.peak().index),
        trace=trace,
        notes=tuple(trace.notes),
    )
