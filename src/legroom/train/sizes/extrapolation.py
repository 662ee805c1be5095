"""Predicts the allocation requests of a training step at other batch sizes, and the largest batch size that fits.

The requests of two batch sizes are logged. If both logs have the same requests in the same order, each request is
extrapolated linearly from its two sizes. Requests for weights stay constant, and requests for activations grow.

The predicted requests are replayed in the allocator model with the available capacity. Therefore, the result includes
rounding, fragmentation, and the cache that the allocator frees before it fails. If the line through two sizes has a
negative intercept, memory grows faster than linearly, as in contrastive losses. In that case, a power function
replaces the line.

If a library selected different kernels for the two sizes, some requests have no match in the other log (see
`alignment`). A request without a match is treated as fixed if its size occurs in both logs, and otherwise as
proportional to the batch size. With these assumptions, the prediction is less exact, and `matched` is False.

`predict.extrapolate` needs no assumptions, because it can trace another size at low cost. In this module, each
additional size requires a real run, which may fail. Unlike `predict.extrapolate`, this module must also account for
segments that exist before the step, and for allocations that are not in the log.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import SMALL_SIZE, Block
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.predict.requests import MemoryRequest
from legroom.train.sizes.alignment import matching_sizes
from legroom.train.sizes.request_log import SegmentLayout

SIZES_BEYOND = 3
"""The number of larger sizes that are checked after the first size that does not fit."""
MAX_ASSUMED = 0.02
"""The largest fraction of the peak that may come from requests without a match. If the fraction is larger, the logs are
treated as different.
"""


@dataclass(frozen=True, slots=True)
class LoggedTrial:
    """The memory requests of a trial that did not run out of memory."""

    size: int
    segments: list[SegmentLayout]
    requests: list[MemoryRequest]
    peak_allocated: int
    peak_reserved: int


def _lay_out(allocator: Allocator, segments: list[SegmentLayout]) -> dict[int, Block]:
    """Recreate the existing segments with their blocks. The positions of the free blocks affect later allocations."""
    blocks: dict[int, Block] = {}
    free: list[Block] = []
    for segment in sorted(segments, key=lambda segment: -segment.bytes):
        if segment.bytes > SMALL_SIZE * 2:  # one large block first, so that the segment has the right size
            allocator.free(allocator.malloc(segment.bytes, segment.stream))
        for name, size in segment.blocks:
            block = allocator.malloc(size, segment.stream)
            if name is None:
                free.append(block)
            else:
                blocks[name] = block
    for block in free:
        allocator.free(block)
    return blocks


Growth = Callable[[int], int]


class Extrapolation:
    def __init__(self, small: LoggedTrial, large: LoggedTrial, settings: AllocatorSettings) -> None:
        self._large = large
        self._settings = settings
        self._workspaces = _workspaces(large.requests)
        self._growths, assumed = _growths(small, large)
        self.matched = assumed <= MAX_ASSUMED * large.peak_reserved
        replayed = self._replay(large.size, None)
        assert replayed is not None
        self._unexplained = max(0, large.peak_allocated - replayed[0])
        """The number of allocated bytes that the logged requests do not explain. Reserved memory that is not allocated
        is not included, because the allocator can free it.
        """

    def is_exact(self, capacity: int) -> bool:
        """Return True if the replayed peak of the larger trial equals the measured peak exactly."""
        return self.matched and self.peak_reserved(self._large.size, capacity) == self._large.peak_reserved

    def fits(self, size: int, capacity: int, slack: int = 0, *, optional_workspaces: bool = False) -> bool:
        return self._replay(size, capacity - slack - self._unexplained, optional_workspaces) is not None

    def largest(
        self,
        capacity: int,
        *,
        known_to_fit: int,
        max_size: int,
        slack: int = 0,
        optional_workspaces: bool = False,
    ) -> int:
        """Return the largest size that fits.

        Because of fragmentation, a size can fail although a larger size fits. Therefore, a few larger sizes are
        checked too. With `optional_workspaces`, one of these sizes also fits if only workspaces do not: PyTorch then
        runs the convolution with an algorithm of cuDNN that needs less memory.
        """
        low, high = known_to_fit, min(max_size, max(known_to_fit * 2, 8))
        while high < max_size and self.fits(high, capacity, slack):
            low, high = high, min(max_size, high * 2)
        high += 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle, capacity, slack):
                low = middle
            else:
                high = middle
        fits = partial(self.fits, capacity=capacity, slack=slack, optional_workspaces=optional_workspaces)
        beyond = range(low + 1, min(max_size, low + 1 + SIZES_BEYOND) + 1)
        return max(filter(fits, beyond), default=low)

    def peak_reserved(self, size: int, capacity: int | None = None) -> int | None:
        peaks = self._replay(size, capacity)
        return None if peaks is None else peaks[1]

    def _replay(
        self, size: int, capacity: int | None, optional_workspaces: bool = False
    ) -> tuple[int, int] | None:
        allocator = Allocator(settings=self._settings)
        blocks = _lay_out(allocator, self._large.segments)
        if capacity is not None:
            if capacity < allocator.reserved:
                return None
            allocator.set_limit(capacity)
        number = 0
        for request in self._large.requests:
            if request.bytes < 0:
                if request.id in blocks:
                    allocator.free(blocks.pop(request.id))
                continue
            predicted = self._growths[number](size)
            number += 1
            try:
                blocks[request.id] = allocator.malloc(predicted, request.stream)
            except AllocationFailed:
                if not optional_workspaces or request.id not in self._workspaces:
                    return None
        return allocator.peak_allocated, allocator.peak_reserved


def _workspaces(requests: list[MemoryRequest]) -> set[int]:
    """Return the ids of the requests that are freed before any other request, like the workspaces of convolutions."""
    return {one.id for one, following in pairwise(requests) if following.bytes < 0 and following.id == one.id}


def _growths(small: LoggedTrial, large: LoggedTrial) -> tuple[list[Growth], int]:
    """Return a growth function for each request in the larger trial. Also return the peak size in bytes of the requests
    without a match.
    """
    sizes_in_small = iter(matching_sizes(small.requests, small.size, large.requests, large.size))
    fixed = {request.bytes for request in small.requests}
    cached: dict[tuple[int, int], Growth] = {}
    growths: list[Growth] = []
    assumed = max_assumed = 0
    alive: dict[int, int] = {}
    for request in large.requests:
        if request.bytes < 0:
            assumed -= alive.pop(request.id, 0)
            continue
        small_bytes = next(sizes_in_small)
        if small_bytes is None and request.bytes in fixed:
            small_bytes = request.bytes
        elif small_bytes is None:
            alive[request.id] = request.bytes
            assumed += request.bytes
            max_assumed = max(assumed, max_assumed)
            small_bytes = request.bytes * small.size // large.size
        pair = (small_bytes, request.bytes)
        growths.append(cached.setdefault(pair, _growth(small.size, small_bytes, large.size, request.bytes)))
    return growths, max_assumed


def _growth(small: int, small_bytes: int, large: int, large_bytes: int) -> Growth:
    if large_bytes == small_bytes or large == small:
        return lambda size: large_bytes
    slope = (large_bytes - small_bytes) / (large - small)
    intercept = small_bytes - slope * small
    if slope > 0 and small_bytes > 0 and intercept < -0.01 * small_bytes:
        power = math.log(large_bytes / small_bytes) / math.log(large / small)
        return lambda size: round(large_bytes * (size / large) ** power)
    return lambda size: max(0, round(intercept + slope * size))
