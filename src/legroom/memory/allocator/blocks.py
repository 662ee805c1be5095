"""The state of the caching allocator: blocks, segments and the two pools.

A segment is memory that was reserved on the device with one request. A segment is divided into a linked list of
blocks. A pool has one list of free blocks per stream. Each list is sorted by size, age of the segment and address, so
the best fit is found by bisection. A list has between ten and a few thousand entries. At this size, lists are faster
than trees.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Final

from legroom.memory.allocator.settings import MIN_BLOCK_SIZE
from legroom.memory.allocator.statistics import PoolStatistics
from legroom.units import MiB

SMALL_SIZE: Final = 1 * MiB
"""The maximum size of a request that uses the small pool."""
SMALL_SEGMENT: Final = 2 * MiB

FREE: Final = 0
ALLOCATED: Final = 1
PENDING_FREE: Final = 2
"""The block was freed by the program, but is still in use by another stream."""
UNMAPPED: Final = 3
"""An address range of an expandable segment to which no memory is mapped."""
STATE_NAMES: Final = ("inactive", "active_allocated", "active_pending_free", "unmapped")

FreeEntry = tuple[Any, ...]
"""A tuple (size, age, address, block), or the first items of this tuple for a search."""


class Segment:
    """Memory that was reserved with one request, or an address range into which memory is mapped page by page."""

    __slots__ = ("address", "age", "expandable", "head", "page", "size")

    def __init__(self, address: int, size: int, age: int, page: int = 0) -> None:
        self.address = address
        self.size = size
        self.age = age
        """The sequence number of the segment, which is lower for an older segment.

        Among free blocks of equal size, the allocator uses the block of the older segment.
        """
        self.page = page
        """The page size, or 0 if the segment is not expandable."""
        self.expandable = page > 0
        self.head: Block


class Block:
    """A contiguous range of memory in a segment, which `malloc` returns and `free` accepts."""

    __slots__ = (
        "address",
        "age",
        "idle_since",
        "next",
        "pool",
        "previous",
        "requested",
        "segment",
        "size",
        "state",
        "stream",
        "stream_uses",
    )

    def __init__(
        self, address: int, size: int, stream: int, pool: "Pool", segment: Segment, age: int
    ) -> None:
        self.address = address
        self.size = size
        """The size of the block: the rounded request plus any remainder that is too small to split off."""
        self.stream = stream
        self.pool = pool
        self.segment = segment
        self.age = age
        """The age of the block's segment, or 0 if the allocator selects blocks of equal size by address."""
        self.requested = 0
        self.state = FREE
        self.previous: Block | None = None
        self.next: Block | None = None
        self.stream_uses: set[int] | None = None
        self.idle_since = 0
        """The number of searches in the pool (`Pool.searches`) when the block became free."""

    def __repr__(self) -> str:
        return f"<Block {self.size} bytes at {self.address:#x}, {STATE_NAMES[self.state]}>"

    @property
    def is_entire_segment(self) -> bool:
        return self.previous is None and self.next is None

    def link(self, previous: "Block | None", following: "Block | None") -> None:
        self.previous = previous
        self.next = following
        if previous is None:
            self.segment.head = self
        else:
            previous.next = self
        if following is not None:
            following.previous = self


class Pool:
    __slots__ = ("free", "is_small", "min_remainder", "searches", "split_below", "statistics", "unmapped")

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.free: dict[int, list[FreeEntry]] = {}
        self.unmapped: dict[int, list[FreeEntry]] = {}
        """The unmapped blocks of expandable segments by stream, as sorted pairs (address, block)."""
        self.searches = 0
        """The number of searches for a free block, counted only if garbage collection is enabled."""
        self.statistics = PoolStatistics()
        self.min_remainder = MIN_BLOCK_SIZE
        """The minimum size of the remainder, in bytes, for which a block is split."""
        self.split_below: float = float("inf")
        """The size in bytes below which a request may split a block."""

    def put(self, block: Block) -> None:
        block.idle_since = self.searches
        insort(self.free.setdefault(block.stream, []), (block.size, block.age, block.address, block))

    def remove(self, block: Block) -> None:
        entries = self.free[block.stream]
        del entries[bisect_left(entries, (block.size, block.age, block.address))]

    def put_unmapped(self, block: Block) -> None:
        insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        entries = self.unmapped[block.stream]
        del entries[bisect_left(entries, (block.address,))]

    def merge(self, block: Block, adjacent: Block | None) -> int:
        """If an adjacent block has the same state, merge it into `block`, and return its size. Otherwise, return 0."""
        if adjacent is None or adjacent.state != block.state:
            return 0
        if adjacent.state == UNMAPPED:
            self.remove_unmapped(adjacent)
        else:
            self.remove(adjacent)
        if adjacent is block.previous:
            block.address = adjacent.address
            block.link(adjacent.previous, block.next)
        else:
            block.link(block.previous, adjacent.next)
        block.size += adjacent.size
        return adjacent.size

    def free_blocks(self) -> Iterator[Block]:
        """Yield the free blocks from a copy of the lists, sorted by stream and then in search order."""
        for stream in sorted(self.free):
            for entry in self.free[stream].copy():
                yield entry[3]
