"""Reserves segments on the device, releases them in the same order as torch, and describes them for snapshots."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, Final

from legroom.memory.allocator.blocks import (
    ALLOCATED,
    FREE,
    SMALL_SEGMENT,
    SMALL_SIZE,
    STATE_NAMES,
    UNMAPPED,
    Block,
    Pool,
    Segment,
)
from legroom.memory.allocator.device import DeviceMemory
from legroom.memory.allocator.expandable_segments import ExpandableSegments, free_pages
from legroom.memory.allocator.settings import MIN_LARGE_ALLOC, AllocatorSettings
from legroom.memory.allocator.statistics import Statistics
from legroom.units import MiB

ROUND_LARGE: Final = 2 * MiB
"""The size of a segment for requests of 10 MiB or more is a multiple of this number of bytes."""
NO_SIZE: Final = 1 << 62
"""A split limit that is larger than every block, so every block can be split."""


class SegmentSource:
    def __init__(
        self,
        device: DeviceMemory,
        segment_address: Callable[[int, int], int],
        range_address: Callable[[int, int], int],
        small: Pool,
        large: Pool,
        statistics: Statistics,
    ) -> None:
        self.device = device
        self.segment_address = segment_address
        self.range_address = range_address
        """A function that returns the address of the next range for an expandable segment, given (size, stream)."""
        self.small = small
        self.large = large
        self.statistics = statistics
        self.segments: dict[int, Segment] = {}
        self.has_expandable = False
        self._expandable = ExpandableSegments(device, statistics, self.segments, self._new_segment)
        self._segments_made = 0
        self.settings = AllocatorSettings()
        self.max_split_size = NO_SIZE

    def change_settings(self, settings: AllocatorSettings) -> None:
        self.settings = settings
        self.max_split_size = settings.max_split_size or NO_SIZE

    def segment_bytes(self, size: int) -> int:
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < MIN_LARGE_ALLOC:
            return self.settings.large_segment_size
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def reserve(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Return a new block of at least `size` bytes, or None if the device is full or the limit would be exceeded.

        The new block is not in a free list.

        An expandable segment maps whole pages. As in torch, the limit is compared with the size of an ordinary
        segment, so the mapped pages can exceed the limit by part of a page.
        """
        segment_bytes = self.segment_bytes(size)
        if not self.device.allows(segment_bytes):
            return None
        if self.settings.expandable_segments:
            self.has_expandable = True
            page = SMALL_SEGMENT if pool.is_small else self.settings.large_segment_size
            return self._expandable.reserve(pool, size, stream, page)
        if not self.device.has(segment_bytes):
            return None
        block = self._new_segment(segment_bytes, pool, stream)
        self.device.reserve("segment_alloc", block.address, segment_bytes, stream)
        for part in (self.statistics, pool.statistics):
            part.segments.add(1)
            part.reserved.add(segment_bytes)
        self.statistics.device_allocations += 1
        if segment_bytes >= self.max_split_size:
            self.statistics.oversize_segments.add(1)
        return block

    def release_all(self) -> None:
        for pool in (self.large, self.small):
            free_blocks = list(pool.free_blocks())
            for block in free_blocks:
                if not block.segment.expandable and block.is_entire_segment:
                    self._release(block)
            for block in free_blocks:
                if block.segment.expandable:
                    self._expandable.release(block)

    def release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """Release cached oversize blocks until a request of `size` bytes can be served. Return True on success."""
        if self.max_split_size == NO_SIZE:
            return False
        needed = max(size, self.max_split_size)
        entries = pool.free[stream]
        position = bisect_left(entries, (needed,))
        if position < len(entries) and not entries[position][3].segment.expandable:
            self._release(entries[position][3])
            return True
        released = 0
        for entry in entries[:position][::-1]:
            block: Block = entry[3]
            if released >= needed or block.size < self.max_split_size:
                break
            if not block.segment.expandable:
                released += block.size
                self._release(block)
        return released >= needed

    def collect_garbage(self, limit: int) -> None:
        """Release cached segments of the large pool that have been unused for longer than average."""
        target = self.device.reserved - int(self.settings.garbage_collection_threshold * limit)
        if target <= 0:
            return
        searches = self.large.searches
        entire = [block for block in self.large.free_blocks() if block.is_entire_segment]
        candidates = [block for block in entire if not block.segment.expandable]
        total_age = sum(searches - block.idle_since for block in entire)
        count = len(entire)
        reclaimed = 0
        while reclaimed < target and count > 0:
            average = total_age / count
            old = [block for block in candidates if searches - block.idle_since >= average]
            if not old:
                break
            for block in old:
                reclaimed += block.size
                total_age -= searches - block.idle_since
                count -= 1
                candidates.remove(block)
                self._release(block)

    def _new_segment(self, size: int, pool: Pool, stream: int, page: int = 0) -> Block:
        """Create a segment and return its block, which is not in a free list."""
        self._segments_made += 1
        age = self._segments_made if self.settings.ties == "age" else 0
        address = self.range_address(size, stream) if page else self.segment_address(size, stream)
        segment = Segment(address, size, age, page)
        segment.head = Block(address, size, stream, pool, segment, age)
        self.segments[address] = segment
        return segment.head

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        del self.segments[block.segment.address]
        self.device.release("segment_free", block.address, block.size, block.stream)
        for part in (self.statistics, block.pool.statistics):
            part.segments.add(-1)
            part.reserved.add(-block.size)
        self.statistics.device_frees += 1
        if block.size >= self.max_split_size:
            self.statistics.oversize_segments.add(-1)


def describe_segments(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """Return the segments sorted by address, with one entry per mapped range of an expandable segment."""
    in_order = sorted(segments, key=lambda segment: segment.address)
    return [_describe(run) for segment in in_order for run in _mapped_runs(segment)]


def releasable_bytes(block: Block) -> int:
    if block.segment.expandable:
        begin, end = free_pages(block)
        return end - begin
    return block.size if block.is_entire_segment else 0


def _mapped_runs(segment: Segment) -> list[list[Block]]:
    runs: list[list[Block]] = [[]]
    block: Block | None = segment.head
    while block is not None:
        if block.state == UNMAPPED:
            runs.append([])
        else:
            runs[-1].append(block)
        block = block.next
    return [run for run in runs if run]


def _describe(run: list[Block]) -> dict[str, Any]:
    first = run[0]
    active = [block for block in run if block.state != FREE]
    return {
        "address": first.address,
        "total_size": sum(block.size for block in run),
        "allocated_size": sum(block.size for block in run if block.state == ALLOCATED),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": first.stream,
        "segment_type": "small" if first.pool.is_small else "large",
        "is_expandable": first.segment.expandable,
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested if block.state != FREE else 0,
                "state": STATE_NAMES[block.state],
            }
            for block in run
        ],
    }
