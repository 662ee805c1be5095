"""Replays a list of memory requests through the allocator of a GPU."""

import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import Block
from legroom.memory.allocator.settings import AllocatorSettings


class MemoryRequest(NamedTuple):
    """An allocation, or a free if `bytes` is negative."""

    id: int
    bytes: int
    stream: int
    optional: bool = False
    """Whether the program continues if this allocation fails. An example is the workspace of a cuDNN kernel."""


KERNELS_RUN = MemoryRequest(0, 0, 0)
"""Marks the first kernel, which changes the addresses at which the device places later segments (see `AddressSpace`).
"""
LIBRARY_LOADED = MemoryRequest(-1, 0, 0)
"""Marks the creation of a cuBLAS handle, just before torch allocates the workspace of the handle. The handle uses
address space and memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPeaks:
    """The peaks of a replay, in bytes."""

    requested: int
    allocated: int
    reserved: int
    failed_at: int | None
    """The index of the required request that failed, or None."""


def replay_requests(
    requests: Iterable[MemoryRequest],
    capacity: int | None = None,
    *,
    extra: int = 0,
    handle: int = 0,
    settings: AllocatorSettings | None = None,
    segment_address: Callable[[int, int], int] | None = None,
) -> ReplayPeaks:
    """Replay `requests` on a device with `capacity` bytes for PyTorch. Before the first request, `extra` bytes are
    allocated.

    `handle` is the memory in bytes that each cuBLAS handle uses outside PyTorch. This memory is not part of `capacity`,
    but PyTorch can use it until the handle is created. If PyTorch has already reserved this memory, creating the handle
    fails (`CUBLAS_STATUS_ALLOC_FAILED`), because torch does not free its cache for a handle.

    `segment_address(size, stream)` returns the address of each new segment. If an optional request fails, such as the
    workspace of a cuDNN kernel, torch caches a kernel that needs no workspace. Therefore later optional requests of the
    same size are skipped.
    """
    if capacity is not None and handle:
        requests = list(requests)
        capacity += handle * requests.count(LIBRARY_LOADED)
    allocator = Allocator(capacity, settings=settings or default_settings(), base_address=segment_address)
    if extra:
        try:
            allocator.malloc(extra)
        except AllocationFailed:
            return ReplayPeaks(requested=0, allocated=0, reserved=0, failed_at=0)
    blocks: dict[int, Block] = {}
    failed: int | None = None
    failed_sizes: set[int] = set()
    for position, (number, size, stream, optional) in enumerate(requests):
        if size < 0:
            block = blocks.pop(number, None)
            if block is not None:
                allocator.free(block)
        elif size and not (optional and size in failed_sizes):  # torch allocates no block for 0 bytes
            try:
                blocks[number] = allocator.malloc(size, stream)
            except AllocationFailed:
                if not optional:
                    failed = position
                    break
                failed_sizes.add(size)
        elif number == KERNELS_RUN.id:
            allocator.kernels_run()
        elif number == LIBRARY_LOADED.id:
            allocator.library_loaded()
            if not allocator.reduce_capacity(handle):
                failed = position
                break
    return ReplayPeaks(
        requested=allocator.peak_requested,
        allocated=allocator.peak_allocated,
        reserved=allocator.peak_reserved,
        failed_at=failed,
    )


def default_settings() -> AllocatorSettings:
    return AllocatorSettings.from_environment(os.environ, _torch_version())


@functools.cache
def _torch_version() -> str:
    """Return the version of the installed torch without importing it, because a process that only reads traces does not
    need torch.
    """
    torch = sys.modules.get("torch")
    return importlib.metadata.version("torch") if torch is None else str(torch.__version__)
