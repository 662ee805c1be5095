"""What a training step would ask of memory at another batch size, and the largest size whose requests are all served.

Two sizes are logged. Where both made the same requests in the same order, each request gets a line of its own through
its two sizes (weights stay, activations grow), and the step at any size is put through the replayed allocator with the
capacity in force: rounding, fragmentation and the cache that is given back before a failure are in the answer. A line
that would start below zero bends upwards (rows times rows, as in contrastive losses) and is taken for a power instead.

Where a library chose other kernels for the two sizes, some requests have no partner in the other log (`alignment`). Of these,
what both logs have in one size is taken as fixed and the rest as growing with the rows: less exact, and `matched` says so.

`predict.foretold` does the like for traces and guesses nothing, since another trace costs little. Here another size costs a run that may
fail, the allocator begins with what others hold, and some of what was allocated is in no log.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import LARGEST_SMALL, Block
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.predict.tracing.trace import Request
from legroom.train.sizes.alignment import partners
from legroom.train.sizes.request_log import Held

A_FEW = 3
"""Sizes that are looked at beyond the first that does not fit."""
GUESSED = 0.02
"""Of the peak: with more guessed at one time, two logs do not match."""


@dataclass(frozen=True, slots=True)
class Logged:
    """The requests of a trial that ran."""

    size: int
    held: list[Held]
    requests: list[Request]
    peak_allocated: int
    peak_reserved: int
    """Both by the real allocator, within the trial."""


def _laid_out(allocator: Allocator, held: list[Held]) -> dict[int, Block]:
    """What was there before, each block in its place: where free memory lies between decides what fits later."""
    blocks: dict[int, Block] = {}
    free: list[Block] = []
    for segment in sorted(held, key=lambda held: -held.bytes):
        if segment.bytes > LARGEST_SMALL * 2:  # taken whole first, so that the segment has its size
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


Grow = Callable[[int], int]
"""Bytes at a batch size."""


class Extrapolation:
    """From two trials, the smaller first."""

    def __init__(self, small: Logged, large: Logged, settings: AllocatorSettings) -> None:
        self._large = large
        self._settings = settings
        self._grows, guessed = _growths(small, large)
        self.matched = guessed <= GUESSED * large.peak_reserved
        replayed = self._play(large.size, None)
        assert replayed is not None
        self._unexplained = max(0, large.peak_allocated - replayed[0])
        """What was allocated and is in no log. (Of what was reserved, a part could have been given back.)"""

    def is_exact(self, capacity: int) -> bool:
        """Whether replaying the larger trial gives the very peak that was measured."""
        return self.matched and self.peak_reserved(self._large.size, capacity) == self._large.peak_reserved

    def fits(self, size: int, capacity: int, slack: int = 0) -> bool:
        return self.peak_reserved(size, capacity - slack - self._unexplained) is not None

    def largest(self, capacity: int, *, least: int, most: int, slack: int = 0) -> int:
        """The largest size that fits, from `least`, which is known to.

        Fits end once as a rule. Gaps between blocks can make one size fail where the next fits: a few are looked at.
        """
        low, high = least, min(most, max(least * 2, 8))
        while high < most and self.fits(high, capacity, slack):
            low, high = high, min(most, high * 2)
        high += 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle, capacity, slack):
                low = middle
            else:
                high = middle
        beyond = range(low + 2, min(most, low + 1 + A_FEW) + 1)
        return max((size for size in beyond if self.fits(size, capacity, slack)), default=low)

    def peak_reserved(self, size: int, capacity: int | None = None) -> int | None:
        """Of the step at this size; None if it does not fit the capacity."""
        peaks = self._play(size, capacity)
        return None if peaks is None else peaks[1]

    def _play(self, size: int, capacity: int | None) -> tuple[int, int] | None:
        """The step through the replayed allocator: its peaks, allocated and reserved; None where it fails."""
        allocator = Allocator(settings=self._settings)
        blocks = _laid_out(allocator, self._large.held)
        if capacity is not None:
            if capacity < allocator.reserved:
                return None
            allocator.set_limit(capacity)
        number = 0
        for request in self._large.requests:
            if request.bytes < 0:
                allocator.free(blocks.pop(request.id))
                continue
            grown = self._grows[number](size)
            number += 1
            try:
                blocks[request.id] = allocator.malloc(grown, request.stream)
            except AllocationFailed:
                return None
        return allocator.peak_allocated, allocator.peak_reserved


def _growths(small: Logged, large: Logged) -> tuple[list[Grow], int]:
    """How each request of the larger trial grows, and how many bytes at most were guessed at one time."""
    of_smaller = iter(partners(small.requests, small.size, large.requests, large.size))
    fixed = {request.bytes for request in small.requests}
    known: dict[tuple[int, int], Grow] = {}
    grows: list[Grow] = []
    guessed = most_guessed = 0
    alive: dict[int, int] = {}
    for request in large.requests:
        if request.bytes < 0:
            guessed -= alive.pop(request.id, 0)
            continue
        before = next(of_smaller)
        if before is None and request.bytes in fixed:
            before = request.bytes
        elif before is None:
            alive[request.id] = request.bytes
            guessed += request.bytes
            most_guessed = max(guessed, most_guessed)
            before = request.bytes * small.size // large.size
        pair = (before, request.bytes)
        grows.append(known.setdefault(pair, _line(small.size, before, large.size, request.bytes)))
    return grows, most_guessed


def _line(small: int, few: int, large: int, many: int) -> Grow:
    if many == few or large == small:
        return lambda size: many
    slope = (many - few) / (large - small)
    start = few - slope * small
    if slope > 0 and few > 0 and start < -0.01 * few:
        power = math.log(many / few) / math.log(large / small)
        return lambda size: round(many * (size / large) ** power)
    return lambda size: max(0, round(start + slope * size))
