"""Decides whether a trace fits a GPU of a given size, and computes the peaks of the trace on that GPU.

The peak of reserved memory depends on the capacity, because the allocator frees its cache before it fails. Therefore a
fit is decided by a replay with that capacity, never from the peak of an unlimited replay.
"""

from typing import Literal

from legroom.gpus.catalog import cublas_handle_bytes
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.observe.notes import BENCHMARK, COMMUNICATION, COMMUNICATION_BYTES
from legroom.predict import uncertainty
from legroom.predict.requests import ReplayPeaks, replay_requests
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB

FitVerdict = Literal["fits", "uncertain", "does-not-fit"]

MARGIN = 0.04
"""The fraction of the peak that the safe bound adds for unseen kernels. Other library versions add to it. Of 180
measured convolutional networks, 5 exceeded their bound with half of this fraction and 2 with all of it. A higher bound
would be of little use."""

MIN_MARGIN = 4 * MiB
"""The safe bound adds at least two of the 2 MiB segments in which small blocks are reserved."""


def replay(
    trace: Trace, capacity: int | None = None, *, extra: int = 0, settings: AllocatorSettings | None = None
) -> ReplayPeaks:
    """Replay a trace on a device with `capacity` bytes for PyTorch, of which `extra` bytes are allocated first.

    Without a capacity, return the likely peaks, which are slightly too high if the kernels are uncertain.
    """
    if capacity is None and not extra:
        return uncertainty.likely_peaks(trace, settings)
    handle = 0 if trace.gpu.is_size else cublas_handle_bytes(trace.gpu.capability)
    return replay_requests(trace.requests(), capacity, extra=extra, handle=handle, settings=settings)


def non_torch_bytes(trace: Trace) -> int:
    """Bytes of the device outside PyTorch's allocator: the CUDA context, the handles of libraries, and NCCL's buffers if ranks communicate.

    The result is 0 for a GPU that was given as a size, because a size is the memory that PyTorch can use.
    """
    if trace.gpu.is_size:
        return 0
    communication = COMMUNICATION_BYTES if COMMUNICATION in trace.notes else 0
    return trace.gpu.context + trace.library_bytes() + communication


def available_bytes(trace: Trace) -> int:
    """Bytes that PyTorch's allocator can use on the GPU of the trace."""
    return trace.gpu.total - non_torch_bytes(trace)


def safety_margin(trace: Trace, peaks: ReplayPeaks) -> int:
    """Bytes that the safe bound adds to the peak: the known uncertainty plus a fraction of the peak."""
    share = MARGIN + uncertainty.version_margin(trace.differing_versions)
    return trace.uncertain_bytes + max(MIN_MARGIN, round(share * peaks.reserved))


def safe_reserved(trace: Trace, peaks: ReplayPeaks, margin: int | None = None) -> int:
    """An upper bound on reserved memory: the peak plus `margin` (by default `safety_margin`).

    `cudnn.benchmark` uses all free memory, so in that case the bound is the whole memory.
    """
    if BENCHMARK in trace.notes:
        return available_bytes(trace)
    return peaks.reserved + (safety_margin(trace, peaks) if margin is None else margin)


def verdict(trace: Trace, peaks: ReplayPeaks) -> FitVerdict:
    """Whether a trace with these `peaks` fits its GPU, and whether it still fits with the safety margin."""
    capacity = available_bytes(trace)
    if replay(trace, capacity).failed_at is not None:
        return "does-not-fit"
    if replay(trace, capacity, extra=safety_margin(trace, peaks)).failed_at is not None:
        return "uncertain"
    return "fits"
