"""A trace on a GPU of a given size: does it fit, and what are its peaks there.

The peak of reserved memory depends on the capacity (the allocator gives back its cache before it fails), so whether
something fits is replayed with the capacity in force, never read off an unlimited peak.
"""

from typing import Literal

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.observe.notes import BENCHMARK, COMMUNICATION, COMMUNICATION_BYTES
from legroom.predict import uncertainty
from legroom.predict.requests import Peaks as Peaks
from legroom.predict.requests import default_settings as default_settings
from legroom.predict.requests import play
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB

Verdict = Literal["fits", "uncertain", "does-not-fit"]

MARGIN = 0.04
"""Of the peak: what the safe bound adds for what no rule knows (unseen kernels; other versions of libraries add to it). With half of it 5 of 180
measured networks of convolutions were above their bound, with all of it two; a bound that is farther away is of little use."""

PIECES = 4 * MiB
"""At least: two of the pieces in which a small run takes memory."""


def replay(
    trace: Trace, capacity: int | None = None, *, extra: int = 0, settings: AllocatorSettings | None = None
) -> Peaks:
    """Every request of a trace, on a device with `capacity` bytes for PyTorch; `extra` bytes of them taken before.

    On a device without end: the likely peaks, which lean to the high side where kernels are guessed.
    """
    if capacity is None and not extra:
        return uncertainty.likely(trace, settings)
    return play(trace.requests(), capacity, extra=extra, settings=settings)


def beside(trace: Trace) -> int:
    """Bytes of the device outside PyTorch's allocator: the CUDA context, and NCCL's buffers if ranks communicate.

    0 for a GPU that was given as a size: that is the memory that PyTorch can use.
    """
    if trace.gpu.is_size:
        return 0
    return trace.gpu.context + (COMMUNICATION_BYTES if COMMUNICATION in trace.notes else 0)


def slack(trace: Trace, peaks: Peaks) -> int:
    """What the safe bound adds to the peak: what is known to be in doubt, and a share for what is not."""
    margin = MARGIN + uncertainty.version_margin(trace.differing_versions)
    return trace.doubt + max(PIECES, round(margin * peaks.reserved))


def safe_reserved(trace: Trace, peaks: Peaks, extra: int | None = None) -> int:
    """A bound on reserved memory: what may be more (`extra`; else by `slack`), and where `cudnn.benchmark` takes what is free, all there is."""
    if BENCHMARK in trace.notes:
        return trace.gpu.total - beside(trace)
    return peaks.reserved + (slack(trace, peaks) if extra is None else extra)


def verdict(trace: Trace, peaks: Peaks, capacity: int) -> Verdict:
    """Whether a trace with these `peaks` fits `capacity` bytes (what the device has for PyTorch), and surely so."""
    if replay(trace, capacity).failed_at is not None:
        return "does-not-fit"
    if replay(trace, capacity, extra=slack(trace, peaks)).failed_at is not None:
        return "uncertain"
    return "fits"
