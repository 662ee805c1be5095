"""Finds the options that save memory, cheapest first. The run is traced with each option to determine the peak."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from legroom.predict.estimate import Estimate
from legroom.predict.fit import FitVerdict, non_torch_bytes, replay, verdict
from legroom.predict.options.names import MemoryOption
from legroom.predict.tracing.trace import Trace

StartTrace = Callable[[Sequence[MemoryOption]], Callable[[], Trace]]
"""Starts a trace with the given options applied, and returns a function that waits for the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOption:
    """One option that saves memory."""

    name: str
    """The name of the option, for example `activation checkpointing`, or several names if options are combined."""
    peak_device: int
    saves: int
    verdict: FitVerdict
    cost: str
    how: str

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "peak_device_bytes": self.peak_device, "saves_bytes": self.saves,
            "verdict": self.verdict, "cost": self.cost, "how": self.how,
        }  # fmt: skip


_TEXTS: dict[MemoryOption, tuple[str, str]] = {
    MemoryOption.FUSED: ("nothing; the optimizer step is faster", "pass `fused=True` to the optimizer"),
    MemoryOption.FOR_LOOP: ("a slower optimizer step", "pass `foreach=False` to the optimizer"),
    MemoryOption.AUTOCAST: (
        "lower precision: the forward pass rounds to 8 significant bits, but is faster on Ampere and "
        "newer GPUs",
        'run the forward pass and the loss under `torch.autocast("cuda", dtype=torch.bfloat16)`',
    ),
    MemoryOption.CHECKPOINT: (
        "about a third more time",
        "wrap the model's blocks in `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`",
    ),
    MemoryOption.EIGHT_BIT_OPTIMIZER: (
        "an additional dependency, and slightly noisier updates",
        "use an 8-bit optimizer such as `AdamW8bit` from bitsandbytes or torchao",
    ),
    MemoryOption.SPILL: (
        "time to copy activations to the host and back, and the same amount of host memory",
        "run the forward pass under `torch.autograd.graph.save_on_cpu(pin_memory=True)`",
    ),
    MemoryOption.FREEZE: (
        "the frozen layers are not trained",
        "call `requires_grad_(False)` on all layers but the last, and pass only the trainable parameters to "
        "the optimizer",
    ),
}
MIN_SAVING = 0.01
"""The fraction of the peak that an option must save to be listed."""


def start_plan(current: Estimate, start: StartTrace) -> list[tuple[MemoryOption, Callable[[], Trace]]]:
    if not current.trace.trains:
        return []
    return [
        (option, start((option,)))
        for option in _TEXTS
        if option is not MemoryOption.EIGHT_BIT_OPTIMIZER
        or current.by_category["optimizer state"] > MIN_SAVING * current.peak_device
    ]


def finish_plan(
    current: Estimate,
    started: Sequence[tuple[MemoryOption, Callable[[], Trace]]],
    start: StartTrace,
    *,
    smaller: Trace | None = None,
    how: str = "",
) -> list[PlannedOption]:
    """Return every option that saves memory, ordered by cost. An option that cannot be applied to this run is omitted.

    `smaller` is the trace of the largest batch size that fits with the safety margin. If it is smaller than the current
    batch size, and the current batch size may not fit, it is also listed as an option, and `how` describes how to set
    it. If no single option is enough, options are combined, cheapest first, until the run fits.
    """
    helpful: dict[MemoryOption, PlannedOption] = {}
    for option, finish in started:
        planned = _planned((option,), current, finish)
        if planned is not None:
            helpful[option] = planned
    plan = list(helpful.values())
    if not current.fits and smaller is not None and _is_smaller(smaller, current):
        plan.insert(1 if MemoryOption.FUSED in helpful else 0, _smaller_batch(current, smaller, how))
    if not current.fits and not any(planned.fits for planned in plan):
        combined: tuple[MemoryOption, ...] = ()
        for option in helpful:
            combined = (*combined, option)
            planned = _planned(combined, current, start(combined)) if len(combined) > 1 else None
            if planned is not None and planned.fits:
                plan.append(planned)
                break
    return plan


def _planned(
    options: tuple[MemoryOption, ...], current: Estimate, finish: Callable[[], Trace]
) -> PlannedOption | None:
    try:
        trace = finish()
    except Exception:  # this program cannot be traced with the option, for any reason; other options may work
        return None
    costs, changes = zip(*(_TEXTS[option] for option in options), strict=True)
    planned = _judged(current, trace, " + ".join(options), cost="; ".join(costs), how="; ".join(changes))
    return planned if planned.saves > MIN_SAVING * current.peak_device else None


def _is_smaller(other: Trace, current: Estimate) -> bool:
    return (other.batch_size or 0) < (current.batch_size or 0)


def _smaller_batch(current: Estimate, smaller: Trace, how: str) -> PlannedOption:
    size = smaller.batch_size or 1
    how = how or f"pass `batch_size={size}` to the DataLoader"
    micro_batches = -(-(current.batch_size or size) // size)
    return _judged(
        current,
        smaller,
        f"batch size {size}",
        cost=f"smaller steps, or gradient accumulation over {micro_batches} batches for the same step",
        how=how,
    )


def _judged(current: Estimate, trace: Trace, name: str, *, cost: str, how: str) -> PlannedOption:
    peaks = replay(trace)
    peak_device = peaks.reserved + non_torch_bytes(trace)
    return PlannedOption(
        name=name,
        peak_device=peak_device,
        saves=current.peak_device - peak_device,
        verdict=verdict(trace, peaks),
        cost=cost,
        how=how,
    )
