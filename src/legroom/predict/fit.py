"""Decides whether a trace fits on a GPU of a given size, and computes the peaks of the trace on that GPU.

The peak of the reserved memory depends on the capacity, because the allocator frees its cache before it fails.
Therefore the trace is replayed with this capacity.
"""

from typing import Literal

from legroom.gpus.catalog import cublas_handle_bytes
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc
from legroom.observe.notes import BENCHMARK, COMMUNICATION, COMMUNICATION_BYTES
from legroom.predict import uncertainty
from legroom.predict.requests import ReplayPeaks, replay_requests
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB

FitVerdict = Literal["fits", "uncertain", "does-not-fit"]

MARGIN = 0.04
"""The fraction of the peak that the safe bound adds, because the run may use kernels that were never measured. If
library versions differ from the measured versions, the fraction is larger. Of 180 measured convolutional networks, 2
exceeded this bound. With half this fraction, 5 networks would have exceeded the bound.
"""

MIN_MARGIN = 4 * MiB
"""The minimum number of bytes that the safe bound adds: two of the 2 MiB segments that the allocator reserves for small
blocks.
"""


def replay(
    trace: Trace, capacity: int | None = None, *, extra: int = 0, settings: AllocatorSettings | None = None
) -> ReplayPeaks:
    """Replay a trace on a device with `capacity` bytes for PyTorch. Before the first request, `extra` bytes are
    allocated.

    If `capacity` is None and `extra` is 0, return `uncertainty.likely_peaks`.
    """
    if capacity is None and not extra:
        return uncertainty.likely_peaks(trace, settings)
    handle = 0 if trace.gpu.is_size else cublas_handle_bytes(trace.gpu.capability)
    return replay_requests(trace.requests(), capacity, extra=extra, handle=handle, settings=settings)


def non_torch_bytes(trace: Trace) -> int:
    """Return the number of bytes outside PyTorch's allocator: the CUDA context, library handles, and NCCL's buffers if
    ranks communicate.

    If the GPU is given as a size, the result is 0, because that size is the memory that PyTorch can use.
    """
    if trace.gpu.is_size:
        return 0
    communication = COMMUNICATION_BYTES if COMMUNICATION in trace.notes else 0
    return trace.gpu.context + trace.library_bytes() + communication


def available_bytes(trace: Trace) -> int:
    return trace.gpu.total - non_torch_bytes(trace)


def safety_margin(trace: Trace, peaks: ReplayPeaks) -> int:
    """Return the number of bytes that the safe bound adds to the peak: the uncertainty of the trace, plus a fraction of
    the peak.
    """
    share = MARGIN + uncertainty.version_margin(trace.differing_versions)
    return trace.uncertain_bytes + max(MIN_MARGIN, round(share * peaks.reserved))


def safe_reserved(trace: Trace, peaks: ReplayPeaks, margin: int | None = None) -> int:
    """Return an upper bound on the reserved memory. By default, `margin` is `safety_margin`.

    If `cudnn.benchmark` is enabled, the bound is all memory that PyTorch can use, because cuDNN may use all free
    memory.
    """
    if BENCHMARK in trace.notes:
        return available_bytes(trace)
    return peaks.reserved + (safety_margin(trace, peaks) if margin is None else margin)


def verdict(trace: Trace, peaks: ReplayPeaks) -> FitVerdict:
    """Return whether a trace fits its GPU. The result is `uncertain` if the trace fits only without the safety margin."""
    capacity = available_bytes(trace)
    if replay(trace, capacity).failed_at is not None:
        return "does-not-fit"
    return "fits" if fits_with_margin(trace, capacity, peaks) else "uncertain"


def fits_with_margin(trace: Trace, capacity: int, peaks: ReplayPeaks | None = None) -> bool:
    """Return whether a trace also fits if `safety_margin` bytes of the capacity are not available."""
    margin = safety_margin(trace, peaks or replay(trace))
    return replay(trace, capacity, extra=margin).failed_at is None


def fits_without_workspaces(trace: Trace, capacity: int) -> bool:
    """Return whether a trace also fits if its kernels need no workspace, as on a virtual GPU.

    Without the workspaces, the allocator places the other blocks in different segments. Close to the limit, the free
    memory can then be more fragmented, and the script runs out of memory although it requests less.
    """
    without = {
        event.id: 0 for event in trace.events if type(event) is Alloc and event.category is Category.WORKSPACE
    }
    return replay_requests(trace.requests(instead=without), capacity).failed_at is None
