"""A trace on a GPU of a given size: does it fit, and what are its peaks there.

The peak of reserved memory depends on the capacity (the allocator gives back its cache before it fails), so whether
something fits is replayed with the capacity in force, never read off an unlimited peak.
"""

import os
from dataclasses import dataclass
from typing import Literal

import torch

from legroom.memory.allocator import AllocationFailed, Allocator
from legroom.memory.allocator_blocks import Block
from legroom.memory.allocator_settings import AllocatorSettings
from legroom.predict.trace import Trace

Verdict = Literal["fits", "uncertain", "does-not-fit"]

MARGIN = 0.05
"""Of the peak: what the safe bound adds for what no rule knows (other versions of libraries, unseen kernels)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The highest figures of a replay, in bytes."""

    requested: int
    allocated: int
    reserved: int
    failed_at: int | None
    """The position of the request that failed; None if all were served."""


def replay(
    trace: Trace, capacity: int | None = None, *, extra: int = 0, settings: AllocatorSettings | None = None
) -> Peaks:
    """Every request of a trace, on a device with `capacity` bytes for PyTorch; `extra` bytes of them taken before."""
    allocator = Allocator(capacity, settings=settings or default_settings())
    if extra:
        try:
            allocator.malloc(extra)
        except AllocationFailed:
            return Peaks(requested=0, allocated=0, reserved=0, failed_at=0)
    blocks: dict[int, Block] = {}
    failed: int | None = None
    for position, (number, size, stream) in enumerate(trace.requests()):
        if size < 0:
            allocator.free(blocks.pop(number))
            continue
        try:
            blocks[number] = allocator.malloc(size, stream)
        except AllocationFailed:
            failed = position
            break
    return Peaks(
        requested=allocator.peak_requested,
        allocated=allocator.peak_allocated,
        reserved=allocator.peak_reserved,
        failed_at=failed,
    )


def default_settings() -> AllocatorSettings:
    """The settings that a run from this shell would have."""
    return AllocatorSettings.from_environment(os.environ, torch.__version__)


def slack(trace: Trace, peaks: Peaks) -> int:
    """What the safe bound adds to the peak: the doubt of single kernels, and a share for the unknown."""
    return trace.doubt + round(MARGIN * peaks.reserved)


def verdict(trace: Trace, peaks: Peaks, capacity: int) -> Verdict:
    """Whether a trace with these `peaks` fits `capacity` bytes (what the device has for PyTorch), and surely so."""
    if replay(trace, capacity).failed_at is not None:
        return "does-not-fit"
    if replay(trace, capacity, extra=slack(trace, peaks)).failed_at is not None:
        return "uncertain"
    return "fits"
