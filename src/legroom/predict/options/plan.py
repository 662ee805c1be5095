"""What would make a run fit: each means re-traced, with what it saves and what it costs, cheapest first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from legroom.predict.estimate import Estimate
from legroom.predict.fit import Verdict, beside, replay, verdict
from legroom.predict.options.names import Means
from legroom.predict.tracing.trace import Trace

StartTrace = Callable[[Sequence[Means]], Callable[[], Trace]]
"""Begins a trace with these means in force, and gives what waits for it."""


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
    Means.LOOP: ("a slower optimizer step", "give the optimizer `foreach=False`"),
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


def start_plan(now: Estimate, start: StartTrace) -> list[tuple[Means, Callable[[], Trace]]]:
    """Begin a trace with each means that may help; see `finish_plan`."""
    if not now.trace.trains:
        return []
    return [
        (means, start((means,)))
        for means in _WORDS
        if means is not Means.LIGHTER_OPTIMIZER
        or now.by_category["optimizer state"] > LEAST_SAVING * now.peak_device
    ]


def finish_plan(
    now: Estimate,
    started: Sequence[tuple[Means, Callable[[], Trace]]],
    start: StartTrace,
    *,
    largest: Trace | None = None,
    batch_argument: str = "",
) -> list[Option]:
    """Every means that helps, in the order of its price. One that this run cannot be traced with is left out.

    `largest`: the trace of the largest batch that fits, which is a means too where today's does not; `batch_argument`: the
    script's own for it, where it has no DataLoader. If no means is enough by itself, they are put together, cheapest first,
    until it fits or there are no more.
    """
    found: dict[Means, Option] = {}
    for means, finish in started:
        option = _option((means,), now, finish)
        if option is not None:
            found[means] = option
    options = list(found.values())
    if not now.fits and largest is not None:
        options.insert(1 if Means.FUSED in found else 0, _smaller_batch(now, largest, batch_argument))
    if not now.fits and not any(option.fits for option in options):
        together: tuple[Means, ...] = ()
        for means in found:
            together = (*together, means)
            option = _option(together, now, start(together)) if len(together) > 1 else None
            if option is not None and option.fits:
                options.append(option)
                break
    return options


def _option(means: tuple[Means, ...], now: Estimate, finish: Callable[[], Trace]) -> Option | None:
    try:
        trace = finish()
    except Exception:  # it does not suit this program, for whatever reason that program has; the others may
        return None
    prices, ways = zip(*(_WORDS[one] for one in means), strict=True)
    option = _judged(now, trace, " + ".join(means), price="; ".join(prices), how="; ".join(ways))
    return option if option.saves > LEAST_SAVING * now.peak_device else None


def _smaller_batch(now: Estimate, largest: Trace, argument: str) -> Option:
    size = largest.batch_size or 1
    how = f"the script `{argument} {size}`" if argument else f"the DataLoader `batch_size={size}`"
    pieces = -(-(now.batch_size or size) // size)
    return _judged(
        now,
        largest,
        f"batch of {size}",
        price=f"smaller steps, or gradients accumulated over {pieces} batches for the same step",
        how=f"give {how}",
    )


def _judged(now: Estimate, trace: Trace, means: str, *, price: str, how: str) -> Option:
    peaks = replay(trace)
    peak_device = peaks.reserved + beside(trace)
    return Option(
        means=means,
        peak_device=peak_device,
        saves=now.peak_device - peak_device,
        verdict=verdict(trace, peaks, now.gpu.total - beside(trace)),
        price=price,
        how=how,
    )
