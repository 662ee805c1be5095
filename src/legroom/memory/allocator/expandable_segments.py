"""Simulates expandable segments.

Each pool and stream has one long address range, into which memory is mapped page by page.

A segment grows by mapping pages at the lowest address at which the request fits. If there is a free block before this
address, the pages extend this block. A segment shrinks by unmapping the pages that are entirely inside free blocks.
An address range is an eighth longer than the device memory, so that the range does not have to be compacted when
pages in its middle are released.
"""

from collections.abc import Callable

from legroom.memory.allocator.blocks import FREE, UNMAPPED, Block, Pool, Segment
from legroom.memory.allocator.device import UNLIMITED_TOTAL, DeviceMemory
from legroom.memory.allocator.statistics import Statistics


class ExpandableSegments:
    __slots__ = ("device", "new_segment", "segments", "statistics")

    def __init__(
        self,
        device: DeviceMemory,
        statistics: Statistics,
        segments: dict[int, Segment],
        new_segment: Callable[[int, Pool, int, int], Block],
    ) -> None:
        self.device = device
        self.statistics = statistics
        self.segments = segments
        self.new_segment = new_segment
        """A function that creates a segment for (size, pool, stream, page) and returns its block."""

    def reserve(self, pool: Pool, size: int, stream: int, page: int) -> Block | None:
        """Grow a segment and return a free block of at least `size` bytes, or None if memory runs out. The block is
        not in a free list.

        Pages that were mapped before memory ran out stay mapped. The caller releases these pages with all other free pages.
        """
        block = self._find_room(pool, size, stream, page)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            # Mapping merges the block with the previous block. The later block object is kept.
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def release(self, block: Block) -> None:
        """Unmap the pages that are entirely inside a free block, and remove a segment without pages."""
        pool = block.pool
        begin, end = free_pages(block)
        if begin < end:
            pool.remove(block)
            if block.address < begin:
                self._keep_free_part(block.address, begin - block.address, block, block.previous, block)
            if end < block.address + block.size:
                self._keep_free_part(end, block.address + block.size - end, block, block, block.next)
            block.address = begin
            block.size = end - begin
            block.state = UNMAPPED
            pool.merge(block, block.previous)
            pool.merge(block, block.next)
            pool.put_unmapped(block)
            self.device.release("segment_unmap", begin, end - begin, block.stream)
            self._add_reserved(pool, begin - end)
            self.statistics.device_frees += 1
        if block.is_entire_segment:
            pool.remove_unmapped(block)
            del self.segments[block.segment.address]

    def _find_room(self, pool: Pool, size: int, stream: int, page: int) -> Block:
        """Return the first block of a sequence of free and unmapped blocks with at least `size` bytes.

        If no sequence is long enough, create a new segment.
        """
        for entry in pool.unmapped.get(stream, ()):
            unmapped: Block = entry[1]
            before = unmapped.previous
            candidate = before if before is not None and before.state == FREE else unmapped
            if _room(candidate, size) >= size:
                return candidate
        total = self.device.total if self.device.total is not None else UNLIMITED_TOTAL
        length = -(-max(total + total // 8, size if self.device.total is None else 0) // page) * page
        block = self.new_segment(length, pool, stream, page)
        block.state = UNMAPPED
        pool.put_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map the first `size` bytes of an unmapped block, rounded up to pages, and return False if the device is
        full.
        """
        pool, page = block.pool, block.segment.page
        mapped = -(-size // page) * page
        if not self.device.has(mapped):
            return False
        self.device.reserve("segment_map", block.address, mapped, block.stream)
        pool.remove_unmapped(block)
        if mapped < block.size:
            remainder = Block(
                block.address + mapped, block.size - mapped, block.stream, pool, block.segment, block.age
            )
            remainder.state = UNMAPPED
            remainder.link(block, block.next)
            pool.put_unmapped(remainder)
            block.size = mapped
        block.state = FREE
        pool.merge(block, block.previous)
        pool.merge(block, block.next)
        pool.put(block)
        self._add_reserved(pool, mapped)
        self.statistics.device_allocations += 1
        return True

    def _keep_free_part(
        self, address: int, size: int, block: Block, previous: Block | None, following: Block | None
    ) -> None:
        """Create a free block for the part of a released block whose pages stay mapped."""
        remainder = Block(address, size, block.stream, block.pool, block.segment, block.age)
        remainder.link(previous, following)
        block.pool.put(remainder)

    def _add_reserved(self, pool: Pool, size: int) -> None:
        self.statistics.reserved.add(size)
        pool.statistics.reserved.add(size)


def free_pages(block: Block) -> tuple[int, int]:
    """Return the start and the end of the pages that are entirely inside a block."""
    base, page = block.segment.address, block.segment.page
    begin = base + -(-(block.address - base) // page) * page
    end = base + (block.address + block.size - base) // page * page
    return begin, max(begin, end)


def reachable_size(block: Block) -> int:
    """Return the size to which a free block can grow: its size plus that of an unmapped block after it."""
    following = block.next
    return block.size + (following.size if following is not None and following.state == UNMAPPED else 0)


def _room(block: Block | None, size: int) -> int:
    """Return the number of consecutive free and unmapped bytes that start at this block, up to about `size`."""
    room = 0
    while room < size and block is not None and block.state in (FREE, UNMAPPED):
        room += block.size
        block = block.next
    return room
