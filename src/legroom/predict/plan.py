"""What would make a run fit: each means re-traced, with what it saves and what it costs, cheapest first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from legroom.predict.estimate import Estimate, judge
from legroom.predict.fit import Verdict
from legroom.predict.means import Means
from legroom.predict.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that could be done."""

    means: str
    peak_device: int
    """With it in force, re-traced."""
    saves: int
    verdict: Verdict
    price: str
    """What it costs, in a sentence."""
    how: str
    """What to change."""

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    def as_dict(self) -> dict[str, Any]:
        return {
            "means": self.means, "peak_device_bytes": self.peak_device, "saves_bytes": self.saves,
            "verdict": self.verdict, "price": self.price, "how": self.how,
        }  # fmt: skip


_WORDS: dict[Means, tuple[str, str]] = {
    Means.FUSED: ("nothing; it is faster", "give the optimizer `fused=True`"),
    Means.AUTOCAST: (
        "rounding to 8 bits of precision inside the forward pass; faster on GPUs since Ampere",
        'run the forward pass and the loss under `torch.autocast("cuda", dtype=torch.bfloat16)`',
    ),
    Means.CHECKPOINT: (
        "about a third more time",
        "wrap the model's blocks in `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`",
    ),
    Means.LIGHTER_OPTIMIZER: (
        "a library, and slightly noisier updates",
        "use an 8-bit optimizer (bitsandbytes' AdamW8bit, torchao's)",
    ),
    Means.SPILL: (
        "time to copy activations to the host and back, and as much host memory",
        "run the forward pass under `torch.autograd.graph.save_on_cpu(pin_memory=True)`",
    ),
    Means.FREEZE: (
        "training of the frozen part",
        "set `requires_grad_(False)` on all but the last part, and give the optimizer only the rest",
    ),
}
LEAST_SAVING = 0.01
"""Of the peak: means that save less are not worth a line."""


def make_plan(now: Estimate, trace_with: Callable[[Means], Trace]) -> list[Option]:
    """Every means that helps, in the order of its price. One that this run cannot be traced with is left out."""
    options: list[Option] = []
    if not now.trace.trains:
        return options
    for means, (price, how) in _WORDS.items():
        try:
            then = judge(trace_with(means))
        except Exception:  # the means does not suit this program; the others may
            continue
        saves = now.peak_device - then.peak_device
        if saves > LEAST_SAVING * now.peak_device:
            options.append(
                Option(
                    means=means.value,
                    peak_device=then.peak_device,
                    saves=saves,
                    verdict=then.verdict,
                    price=price,
                    how=how,
                )
            )
    return options
