"""Expandable segments: one long range of addresses for each pool and stream, backed by memory page by page.

Growing means mapping pages at the lowest address where the request then fits, after a free block if one lies there;
giving back means unmapping the pages that lie wholly inside free blocks. A range is longer than the device's memory
(by an eighth), so that it need not be compacted when pages in its middle have been given back.
"""

from collections.abc import Callable

from legroom.memory.allocator.blocks import FREE, UNMAPPED, Block, Pool, Segment
from legroom.memory.allocator.device import UNLIMITED_TOTAL, DeviceMemory
from legroom.memory.allocator.statistics import Statistics


class ExpandableSegments:
    """Every expandable segment of a device."""

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
        """The allocator's own, of every kind, by address."""
        self.new_segment = new_segment
        """The allocator's own: (size, pool, stream, page) -> the block that is all of a new segment."""

    def take(self, pool: Pool, size: int, stream: int, page: int) -> Block | None:
        """A free block of at least `size`, out of its pool's list, grown for the purpose; None if memory is short.

        What was mapped before memory ran out stays mapped: the caller releases it with all other free pages.
        """
        block = self._lowest_room(pool, size, stream, page)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            # Mapping merges with what lies before: the later block survives.
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def give_back(self, block: Block) -> None:
        """Unmaps the pages that lie wholly inside a free block, and forgets a segment that has no page left."""
        pool = block.pool
        begin, end = free_pages(block)
        if begin < end:
            pool.remove(block)
            if block.address < begin:
                self._leave(block.address, begin - block.address, block, block.previous, block)
            if end < block.address + block.size:
                self._leave(end, block.address + block.size - end, block, block, block.next)
            block.address = begin
            block.size = end - begin
            block.state = UNMAPPED
            pool.absorb(block, block.previous)
            pool.absorb(block, block.next)
            pool.put_unmapped(block)
            self.device.give_back("segment_unmap", begin, end - begin, block.stream)
            self._account(pool, begin - end)
            self.statistics.device_frees += 1
        if block.is_whole:
            pool.remove_unmapped(block)
            del self.segments[block.segment.address]

    def _lowest_room(self, pool: Pool, size: int, stream: int, page: int) -> Block:
        """The first of a chain of free and unmapped blocks with room for `size`, in a new segment if need be."""
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
        """Puts memory behind the first `size` bytes of an unmapped block, rounded up to pages; whether there was any."""
        pool, page = block.pool, block.segment.page
        mapped = -(-size // page) * page
        if not self.device.has(mapped):
            return False
        self.device.take("segment_map", block.address, mapped, block.stream)
        pool.remove_unmapped(block)
        if mapped < block.size:
            rest = Block(
                block.address + mapped, block.size - mapped, block.stream, pool, block.segment, block.age
            )
            rest.state = UNMAPPED
            rest.link(block, block.next)
            pool.put_unmapped(rest)
            block.size = mapped
        block.state = FREE
        pool.absorb(block, block.previous)
        pool.absorb(block, block.next)
        pool.put(block)
        self._account(pool, mapped)
        self.statistics.device_allocations += 1
        return True

    def _leave(
        self, address: int, size: int, block: Block, previous: Block | None, following: Block | None
    ) -> None:
        """A free block where part of a page remains mapped."""
        rest = Block(address, size, block.stream, block.pool, block.segment, block.age)
        rest.link(previous, following)
        block.pool.put(rest)

    def _account(self, pool: Pool, size: int) -> None:
        self.statistics.reserved.add(size)
        pool.statistics.reserved.add(size)


def free_pages(block: Block) -> tuple[int, int]:
    """Where the pages that lie wholly inside a block of an expandable segment begin and end."""
    base, page = block.segment.address, block.segment.page
    begin = base + -(-(block.address - base) // page) * page
    end = base + (block.address + block.size - base) // page * page
    return begin, max(begin, end)


def reachable_size(block: Block) -> int:
    """What a free block could grow to: a good fit is one that needs no pages that a smaller one could use."""
    following = block.next
    return block.size + (following.size if following is not None and following.state == UNMAPPED else 0)


def _room(block: Block | None, size: int) -> int:
    """How many bytes, up to what is needed, lie free or unmapped from this block on."""
    room = 0
    while room < size and block is not None and block.state in (FREE, UNMAPPED):
        room += block.size
        block = block.next
    return room
