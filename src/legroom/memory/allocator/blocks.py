"""The parts of the caching allocator's state: blocks, the segments they lie in, and the two pools.

A segment is what was taken from the device in one piece, a chain of blocks from its head on. A pool holds the free
blocks of its kind, for each stream a list sorted by (size, age of the segment, address), so that the best fit is
one bisection away. Plain lists beat every tree here: they hold tens to a few thousand entries.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Final

from legroom.memory.allocator.settings import SMALLEST_BLOCK
from legroom.memory.allocator.statistics import PoolStatistics
from legroom.units import MiB

LARGEST_SMALL: Final = 1 * MiB
"""Requests up to here are served by the small pool."""
SMALL_SEGMENT: Final = 2 * MiB
"""What the small pool takes from the device at a time."""

FREE: Final = 0
"""In its pool's free list."""
ALLOCATED: Final = 1
"""In the program's hands."""
WAITING: Final = 2
"""Given back by the program, still in use by another stream."""
UNMAPPED: Final = 3
"""Address space of an expandable segment with no memory behind it."""
STATE_NAMES: Final = ("inactive", "active_allocated", "active_pending_free", "unmapped")
"""As torch.cuda.memory_snapshot() calls them."""

FreeEntry = tuple[Any, ...]
"""(size, age, address, block), or the first of these to search for."""


class Segment:
    """Memory taken from the device in one piece, or a range of addresses that memory is mapped into page by page."""

    __slots__ = ("address", "age", "expandable", "head", "page", "size")

    def __init__(self, address: int, size: int, age: int, page: int = 0) -> None:
        self.address = address
        self.size = size
        self.age = age
        """Which segment it is, counted from the first: where blocks fit equally, the older segment's is taken."""
        self.page = page
        """The granularity at which an expandable segment maps; 0 for any other."""
        self.expandable = page > 0
        self.head: Block


class Block:
    """A piece of a segment. To the program: what `malloc` gave, to be handed back to `free`."""

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
        "uses",
    )

    def __init__(
        self, address: int, size: int, stream: int, pool: "Pool", segment: Segment, age: int
    ) -> None:
        self.address = address
        self.size = size
        """As charged: rounded up, with a rest too small to split off."""
        self.stream = stream
        self.pool = pool
        self.segment = segment
        self.age = age
        """Of its segment; 0 throughout where ties go by address alone."""
        self.requested = 0
        """As the program asked for."""
        self.state = FREE
        self.previous: Block | None = None
        self.next: Block | None = None
        self.uses: set[int] | None = None
        """Other streams that it was used on."""
        self.idle_since = 0
        """The pool's count of searches when the block became free."""

    def __repr__(self) -> str:
        return f"<Block {self.size} bytes at {self.address:#x}, {STATE_NAMES[self.state]}>"

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.previous is None and self.next is None

    def link(self, previous: "Block | None", following: "Block | None") -> None:
        """Puts this block between two neighbours."""
        self.previous = previous
        self.next = following
        if previous is None:
            self.segment.head = self
        else:
            previous.next = self
        if following is not None:
            following.previous = self


class Pool:
    """The free blocks for small requests, or for large ones."""

    __slots__ = ("free", "is_small", "least_rest", "searches", "split_below", "statistics", "unmapped")

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.free: dict[int, list[FreeEntry]] = {}
        self.unmapped: dict[int, list[FreeEntry]] = {}
        """Of expandable segments: for each stream (address, block), sorted."""
        self.searches = 0
        """How often a free block was looked for; counted only while garbage collection is on."""
        self.statistics = PoolStatistics()
        self.least_rest = SMALLEST_BLOCK
        """A block is split where at least this much remains ..."""
        self.split_below: float = float("inf")
        """... and less than this is asked for."""

    def put(self, block: Block) -> None:
        """Into the free list."""
        block.idle_since = self.searches
        insort(self.free.setdefault(block.stream, []), (block.size, block.age, block.address, block))

    def remove(self, block: Block) -> None:
        """Out of the free list."""
        entries = self.free[block.stream]
        del entries[bisect_left(entries, (block.size, block.age, block.address))]

    def put_unmapped(self, block: Block) -> None:
        insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        entries = self.unmapped[block.stream]
        del entries[bisect_left(entries, (block.address,))]

    def absorb(self, block: Block, neighbour: Block | None) -> int:
        """Merges a neighbour of the same kind, free or unmapped, into `block`; how many bytes that brought."""
        if neighbour is None or neighbour.state != block.state:
            return 0
        if neighbour.state == UNMAPPED:
            self.remove_unmapped(neighbour)
        else:
            self.remove(neighbour)
        if neighbour is block.previous:
            block.address = neighbour.address
            block.link(neighbour.previous, block.next)
        else:
            block.link(block.previous, neighbour.next)
        block.size += neighbour.size
        return neighbour.size

    def free_blocks(self) -> Iterator[Block]:
        """All of them as they were at the call, in the allocator's own order: by stream, then as searched."""
        for stream in sorted(self.free):
            for entry in self.free[stream].copy():
                yield entry[3]
