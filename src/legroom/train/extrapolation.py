"""What a training step would ask of memory at another batch size, and the largest size whose requests are all served.

Two sizes are logged. Where both made the same requests in the same order, each request gets a line of its own through
its two sizes (weights stay, activations grow), and the step at any size is put through the replayed allocator with the
capacity in force: rounding, fragmentation and the cache that is given back before a failure are in the answer. A line
that would start below zero bends upwards (rows times rows, as in contrastive losses) and is taken for a power instead.

Libraries choose their kernels by size, and these take workspaces for the length of a call: such requests, given back before the
next one is made, may differ between the logs. Of a workspace, or of every request where the rest differs too, what both logs have
in one size is taken as fixed and what they do not as growing with the rows: less exact, and `matched` says so.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from legroom.memory.allocator import AllocationFailed, Allocator
from legroom.memory.allocator_blocks import Block
from legroom.memory.allocator_settings import AllocatorSettings
from legroom.predict.trace import Request


@dataclass(frozen=True, slots=True)
class Logged:
    """The requests of a trial that ran."""

    size: int
    held: list[Request]
    requests: list[Request]
    reserved_before: int
    """By the real allocator, when the trial began."""
    peak_reserved: int
    """By the real allocator, within the trial."""


Grow = Callable[[int], int]
"""Bytes at a batch size."""


class Extrapolation:
    """From two trials, the smaller first."""

    def __init__(self, small: Logged, large: Logged, settings: AllocatorSettings) -> None:
        self._large = large
        self._settings = settings
        grows = _lines(small, large)
        self.matched = grows is not None
        self._grows = grows if grows is not None else _by_sizes(small, large)
        self._correction = 0
        replayed = self.peak_reserved(large.size)
        if replayed is not None:
            self._correction = max(0, large.peak_reserved - replayed)

    def is_exact(self, capacity: int) -> bool:
        """Whether replaying the larger trial gives the very peak that was measured."""
        return self.matched and self.peak_reserved(self._large.size, capacity) == self._large.peak_reserved

    def fits(self, size: int, capacity: int, slack: int = 0) -> bool:
        return self.peak_reserved(size, capacity - slack - self._correction) is not None

    def largest(self, capacity: int, *, least: int, most: int, slack: int = 0) -> int:
        """The largest size that fits, from `least`, which is known to; fits are taken to end once."""
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
        return low

    def peak_reserved(self, size: int, capacity: int | None = None) -> int | None:
        """Of the step at this size; None if it does not fit the capacity."""
        allocator = Allocator(settings=self._settings)
        blocks: dict[int, Block] = {}
        for request in self._large.held:
            blocks[request.id] = allocator.malloc(request.bytes, request.stream)
        # What was there before lies in other segments than a fresh allocator gives it: the account is squared.
        shift = allocator.reserved - self._large.reserved_before
        if capacity is not None:
            if capacity + shift < allocator.reserved:
                return None
            allocator.set_limit(capacity + shift)
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
        return allocator.peak_reserved - shift


def _lines(small: Logged, large: Logged) -> list[Grow] | None:
    """How each request of the larger trial grows; None where the two trials did not do the same."""
    if _pattern(small.requests, set()) == _pattern(large.requests, set()):
        passing_small: set[int] = set()
        passing_large: set[int] = set()
    else:
        passing_small, passing_large = _workspaces(small.requests), _workspaces(large.requests)
        if _pattern(small.requests, passing_small) != _pattern(large.requests, passing_large):
            return None
    few = (r.bytes for r in small.requests if r.bytes >= 0 and r.id not in passing_small)
    by_size = iter(_by_sizes(small, large))
    known: dict[tuple[int, int], Grow] = {}
    grows: list[Grow] = []
    for request in large.requests:
        if request.bytes < 0:
            continue
        guessed = next(by_size)
        if request.id in passing_large:
            grows.append(guessed)
        else:
            pair = (next(few), request.bytes)
            grows.append(known.setdefault(pair, _line(small.size, pair[0], large.size, pair[1])))
    return grows


def _pattern(requests: list[Request], without: set[int]) -> list[tuple[bool, int]]:
    """What is asked for and given back, by order of birth instead of by address."""
    order: dict[int, int] = {}
    pattern: list[tuple[bool, int]] = []
    for request in requests:
        if request.id in without:
            continue
        is_birth = request.bytes >= 0
        if is_birth:
            order[request.id] = len(order)
        pattern.append((is_birth, order.get(request.id, -1)))
    return pattern


def _workspaces(requests: list[Request]) -> set[int]:
    """What is given back before anything else is asked for."""
    return {
        request.id
        for request, following in pairwise(requests)
        if request.bytes >= 0 and following.bytes < 0 and following.id == request.id
    }


def _line(small: int, few: int, large: int, many: int) -> Grow:
    if many == few or large == small:
        return lambda size: many
    slope = (many - few) / (large - small)
    start = few - slope * small
    if slope > 0 and few > 0 and start < -0.01 * few:
        power = math.log(many / few) / math.log(large / small)
        return lambda size: round(many * (size / large) ** power)
    return lambda size: max(0, round(start + slope * size))


def _by_sizes(small: Logged, large: Logged) -> list[Grow]:
    fixed = {request.bytes for request in small.requests}

    def grow(bytes: int) -> Grow:
        if bytes in fixed:
            return lambda size: bytes
        return lambda size: round(bytes * size / large.size)

    return [grow(request.bytes) for request in large.requests if request.bytes >= 0]
