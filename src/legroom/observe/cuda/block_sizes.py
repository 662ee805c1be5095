"""Computes the block size of an allocation from the addresses in the history.

The history contains the requested size, not the size of the block. The allocator rounds the requested size up. The
block also includes the remainder of the free block if this remainder is too small to split off. The size of the
remainder follows from the addresses: Adjacent free blocks are always merged, so the free block extends to the next
block in use or to the end of the segment. The computed sizes equal torch's own sizes in all histories of the tests,
which include `max_split_size` and expandable segments.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.units import MiB

_MAX_SMALL = 1 * MiB
"""Blocks up to this size use the small pool, which splits off every remainder."""
_MAX_REMAINDER = 1 * MiB
"""In the large pool, a remainder up to this size stays part of the block."""


class BlocksInUse:
    def __init__(self, settings: AllocatorSettings | None = None) -> None:
        settings = replace(settings or AllocatorSettings(), per_process_memory_fraction=1.0)
        self._rounded: Callable[[int], int] = settings.rounded
        self._never_split = settings.max_split_size
        self._addresses: list[int] = []
        self._block_sizes: dict[int, int] = {}
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._uncertain: set[int] = set()
        """Large blocks that were in use before the history started and that may include a remainder."""
        self.corrected: dict[int, int] = {}
        """The corrected sizes of blocks that were in use before the history started, by address. The caller removes
        each entry after it has used the corrected size.
        """
        self.allocated = 0

    def add_segment(self, address: int, size: int) -> None:
        """Add a segment that is not expandable. Do not add expandable segments: the allocator splits off all of their
        remainders.
        """
        if address not in self._sizes:
            self._starts.insert(bisect_left(self._starts, address), address)
        self._sizes[address] = size

    def remove_segment(self, address: int) -> None:
        if self._sizes.pop(address, None) is not None:
            del self._starts[bisect_left(self._starts, address)]

    def add_initial(self, address: int, requested: int, block_size: int | None) -> int:
        """Add a block that was in use before the history started, and return its size. Pass `block_size` if the size is
        known.

        Add the block with the highest address first, because a remainder extends to the next block in use. Free memory
        after the block can be a remainder or a free block. The two cases can be distinguished only when this memory is
        used again.
        """
        is_known = block_size is not None
        block_size = self.add(address, requested, block_size)
        if not is_known and block_size > _MAX_SMALL:
            self._uncertain.add(address)
        return block_size

    def add(self, address: int, requested: int, block_size: int | None = None) -> int:
        if address in self._block_sizes:
            self.remove(address)
        position = bisect_left(self._addresses, address)
        if self._uncertain and position:
            self._correct(self._addresses[position - 1], address)
        if block_size is None:
            block_size = self._rounded(requested)
            if block_size > _MAX_SMALL:
                block_size += self._remainder(address, block_size, position)
        self._addresses.insert(position, address)
        self._block_sizes[address] = block_size
        self.allocated += block_size
        return block_size

    def remove(self, address: int) -> None:
        block_size = self._block_sizes.pop(address, None)
        self._uncertain.discard(address)
        if block_size is not None:
            del self._addresses[bisect_left(self._addresses, address)]
            self.allocated -= block_size

    def _correct(self, before: int, address: int) -> None:
        """Correct the size of the block that starts at `before`, the last block before `address`. A small gap between
        this block and `address` is a remainder that belongs to the block.
        """
        remainder = address - before - self._block_sizes[before]
        if before in self._uncertain and 0 < remainder <= _MAX_REMAINDER:
            self._uncertain.remove(before)
            if self._segment_end(before) == self._segment_end(address):
                self._block_sizes[before] += remainder
                self.allocated += remainder
                self.corrected[before] = self._block_sizes[before]

    def block_at(self, address: int) -> int | None:
        if address in self._block_sizes:
            return address
        position = bisect_right(self._addresses, address) - 1
        if position < 0:
            return None
        start = self._addresses[position]
        return start if address < start + self._block_sizes[start] else None

    def largest_gap(self) -> int:
        """Return the size of the largest free block in the segments that are not expandable."""
        return max(self._gaps(), default=0)

    def _gaps(self) -> Iterator[int]:
        for start in self._starts:
            end = start + self._sizes[start]
            position = bisect_left(self._addresses, start)
            while position < len(self._addresses) and self._addresses[position] < end:
                address = self._addresses[position]
                yield address - start
                start = address + self._block_sizes[address]
                position += 1
            yield end - start

    def _remainder(self, address: int, rounded: int, position: int) -> int:
        end = self._segment_end(address)
        if end is None:
            return 0
        if position < len(self._addresses):
            end = min(end, self._addresses[position])
        remainder = max(end - address - rounded, 0)
        never_split = self._never_split is not None and rounded >= self._never_split
        return remainder if never_split or remainder <= _MAX_REMAINDER else 0

    def _segment_end(self, address: int) -> int | None:
        position = bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        start = self._starts[position]
        end = start + self._sizes[start]
        return end if address < end else None
