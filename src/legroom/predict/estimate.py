"""The estimate of a training step: whether it fits, how much memory it uses, and which lines of code use the memory at
the peak.
"""

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

from legroom import schemas
from legroom.gpus.catalog import GpuSpec
from legroom.memory.ledger import Ledger
from legroom.memory.state import State
from legroom.observe.notes import COMMUNICATION, COMMUNICATION_EXCLUDED, ONE_STEP
from legroom.predict.fit import (
    FitVerdict,
    available_bytes,
    non_torch_bytes,
    replay,
    safe_reserved,
    verdict,
)
from legroom.predict.requests import ReplayPeaks
from legroom.predict.tracing.trace import GROWTH_STEPS, MIN_GROWTH, REPEATED_STEPS, Mode, Trace
from legroom.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrowth:
    """The growth of the allocated memory from step to step."""

    bytes: int
    file: str | None
    """The file and line that allocate the largest part, or None if no line of the user's code is known."""
    line: int | None
    steps_left: int | None
    """The number of steps after which memory runs out, counted from the start of the training, or None if the script
    does not fit."""

    @property
    def note(self) -> str:
        where = f", allocated at {os.path.basename(self.file)}:{self.line}" if self.file else ""
        note = f"Memory grows by {format_size(self.bytes)} per step{where}"
        if self.steps_left is None:
            return note
        return f"{note}. If it continues to grow, memory runs out after about {self.steps_left:,} steps"


MAX_STEPS_LEFT = 100_000
"""A growth that needs more steps to fill the GPU is not reported."""


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
    growth: StepGrowth | None = None
    """The memory that every traced step leaves allocated, in addition to the memory that the step before left, or None.
    """

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
            "growth": None if self.growth is None else asdict(self.growth),
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
    growth = _growth(trace, ledger, peaks, decision)
    if growth is not None:
        notes.insert(0, growth.note)
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
        growth=growth,
    )


def _growth(trace: Trace, ledger: Ledger, peaks: ReplayPeaks, decision: FitVerdict) -> StepGrowth | None:
    """Return the growth of the memory from step to step, or None if memory does not grow in the last traced steps.

    At the end of the first step, a line may not have kept memory yet, so it grows in one step less.
    """
    if trace.steps < GROWTH_STEPS:
        return None
    growing = ledger.growth(min_steps=GROWTH_STEPS - 1)
    size = sum(line.bytes_per_step for line in growing)
    if size < MIN_GROWTH:
        return None
    left: int | None = None
    if decision != "does-not-fit":
        traced = trace.steps + REPEATED_STEPS
        left = _rounded(traced + max(0, available_bytes(trace) - peaks.allocated) // size)
        if left > MAX_STEPS_LEFT:
            return None
    largest = growing[0]
    return StepGrowth(bytes=size, file=largest.file, line=largest.line, steps_left=left)


def _rounded(number: int) -> int:
    """Round a number to two significant digits."""
    unit = int(10 ** max(0, len(str(number)) - 2))
    return round(number / unit) * unit
