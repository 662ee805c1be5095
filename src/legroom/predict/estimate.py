"""The estimate of a training step: whether it fits, how much memory it uses, and which lines of code use the memory at
the peak.
"""

from dataclasses import dataclass
from typing import Any, Literal

from legroom import schemas
from legroom.gpus.catalog import GpuSpec
from legroom.memory.ledger import Ledger
from legroom.memory.state import State
from legroom.observe.notes import COMMUNICATION, COMMUNICATION_EXCLUDED, ONE_STEP
from legroom.predict.fit import FitVerdict, non_torch_bytes, replay, safe_reserved, verdict
from legroom.predict.tracing.trace import Mode, Trace
from legroom.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Estimate:
    """The memory that a training step needs on a GPU. All sizes are in bytes."""

    gpu: GpuSpec
    peak_requested: int
    """The highest sum of the sizes that tensors and libraries request, before the allocator rounds them up."""
    peak_allocated: int
    """The value of `torch.cuda.max_memory_allocated()`: the sum of all requests, each rounded up by the allocator."""
    peak_reserved: int
    """The value of `torch.cuda.max_memory_reserved()`: the memory that the allocator reserves on the device."""
    peak_device: int
    """The memory that `nvidia-smi` shows. If the GPU is given by name, this is `peak_reserved` plus the CUDA context
    and NCCL's buffers.
    """
    safe: int
    """An upper bound on `peak_device`."""
    verdict: FitVerdict
    batch_size: int | None
    max_batch_size: int | None
    """The largest batch size that fits, or None if the batch size could not be changed. A trace at this batch size
    confirms that it fits.
    """
    steps: int
    mode: Mode
    state: State
    """The live tensors at the peak."""
    trace: Trace
    decided_by: Literal["training", "validation"] = "training"
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
        """The lines of code whose tensors use the most memory at the peak."""
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
        """The allocated bytes per category at several points in time during the traced steps. The number of entries is
        limited."""
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
            "decided_by": self.decided_by,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        categories = ", ".join(f"{name} {format_size(size)}" for name, size in self._categories())
        return f"<Estimate: {_VERDICTS[self.verdict].lower()}, {self._summary()} At the peak: {categories}.>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{name}</td><td style='text-align:right'>{format_size(size)}</td></tr>"
            for name, size in self._categories()
        )
        return f"<p><b>{_VERDICTS[self.verdict]}</b>: {self._summary()}</p><table>{rows}</table>"

    def _summary(self) -> str:
        memory = format_size(self.gpu.total)
        named = memory if self.gpu.is_size else f"{memory} ({self.gpu.name})"
        largest = "" if self.max_batch_size is None else f" Largest batch size: {self.max_batch_size}."
        return f"{format_size(self.peak_device)} of {named}, at most {format_size(self.safe)}.{largest}"

    def _categories(self) -> list[tuple[str, int]]:
        return [(name, size) for name, size in self.by_category.items() if size]


def evaluation_note(location: str) -> str:
    return f"The evaluation at {location} was not traced and may need more memory"


_VERDICTS = {"fits": "Fits", "uncertain": "May not fit", "does-not-fit": "Does not fit"}


def estimate_from_trace(trace: Trace, *, max_batch_size: int | None = None) -> Estimate:
    peaks = replay(trace)
    ledger = Ledger(trace.events)
    peak = ledger.peak().index
    is_validation = trace.validation_starts is not None and peak >= trace.validation_starts
    decision = verdict(trace, peaks)
    outside = non_torch_bytes(trace)
    notes = [
        COMMUNICATION_EXCLUDED if note == COMMUNICATION and trace.gpu.is_size else note
        for note in trace.notes
    ]
    if trace.lacks_second_step:
        notes.insert(0, ONE_STEP)
    if trace.untraced_evaluation:
        notes.insert(0, evaluation_note(trace.untraced_evaluation))
    if is_validation and trace.validates:
        notes.append("Validation needs more memory than training. Reduce the validation batch size")
    elif is_validation:
        notes.append("The code after the training steps needs more memory than the training")
    return Estimate(
        gpu=trace.gpu,
        peak_requested=peaks.requested,
        peak_allocated=peaks.allocated,
        peak_reserved=peaks.reserved,
        peak_device=peaks.reserved + outside,
        safe=outside + safe_reserved(trace, peaks),
        verdict="uncertain" if decision == "fits" and trace.is_partial else decision,
        batch_size=trace.batch_size,
        max_batch_size=max_batch_size,
        steps=trace.steps,
        mode=trace.mode,
        state=ledger.at(peak),
        trace=trace,
        decided_by="validation" if is_validation else "training",
        notes=tuple(notes),
    )
