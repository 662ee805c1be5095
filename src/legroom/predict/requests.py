"""A list of requests for memory, played through the allocator of a GPU."""

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


class Request(NamedTuple):
    """Memory asked for, or (`bytes` < 0) given back."""

    id: int
    bytes: int
    stream: int
    spare: bool = False
    """Whether the program goes on without it where there is no room (a workspace of cuDNN's)."""


KERNELS_RUN = Request(0, 0, 0)
"""No request: from here on kernels run, which changes where the device puts segments (see `AddressSpace`)."""
LIBRARY_LOADED = Request(-1, 0, 0)
"""No request: cuBLAS takes its part of the address space, just before its workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The highest figures of a replay, in bytes."""

    requested: int
    allocated: int
    reserved: int
    failed_at: int | None
    """The position of the request that failed; None if all were served that could not be done without."""


def play(
    requests: Iterable[Request],
    capacity: int | None = None,
    *,
    extra: int = 0,
    settings: AllocatorSettings | None = None,
    place: Callable[[int, int], int] | None = None,
) -> Peaks:
    """Every request, on a device with `capacity` bytes for PyTorch; `extra` bytes of them taken before.

    `place(size, stream)` says where the device puts each new segment. What can be done without and was refused once is not
    asked for again: torch remembers the kernel that it took instead.
    """
    allocator = Allocator(capacity, settings=settings or default_settings(), base_address=place)
    if extra:
        try:
            allocator.malloc(extra)
        except AllocationFailed:
            return Peaks(requested=0, allocated=0, reserved=0, failed_at=0)
    blocks: dict[int, Block] = {}
    failed: int | None = None
    refused: set[int] = set()
    for position, (number, size, stream, spare) in enumerate(requests):
        if size < 0:
            block = blocks.pop(number, None)
            if block is not None:
                allocator.free(block)
        elif size and not (spare and size in refused):  # torch asks for no block where there are no bytes
            try:
                blocks[number] = allocator.malloc(size, stream)
            except AllocationFailed:
                if not spare:
                    failed = position
                    break
                refused.add(size)
        elif number == KERNELS_RUN.id:
            allocator.kernels_run()
        elif number == LIBRARY_LOADED.id:
            allocator.library_loaded()
    return Peaks(
        requested=allocator.peak_requested,
        allocated=allocator.peak_allocated,
        reserved=allocator.peak_reserved,
        failed_at=failed,
    )


def default_settings() -> AllocatorSettings:
    """The settings that a run from this shell would have."""
    return AllocatorSettings.from_environment(os.environ, _torch_version())


@functools.cache
def _torch_version() -> str:
    """Of the torch that would run it. It is not imported for that: who judges a trace may have no other need of it."""
    torch = sys.modules.get("torch")
    return importlib.metadata.version("torch") if torch is None else str(torch.__version__)
