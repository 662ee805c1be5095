"""What the CUDA allocator block_size for a block, read off the addresses in its history.

A history says what the program asked for, not what it was block_size: the size is rounded up, and a rest too small to be
split off comes on top. The rest follows from the addresses. Free neighbours are always merged, so at the moment of an
allocation the free block it was cut from reached up to the next block in use, or to the end of the segment; the
allocator keeps what lies beyond the rounded size only where that is worth a block of its own. On recorded histories
(some with a finite `max_split_size`, some with expandable segments) every charge so found agrees with torch's figures.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.units import MiB

_MAX_SMALL = 1 * MiB
"""Up to here the small pool serves, which splits off every rest."""
_MAX_REMAINDER = 1 * MiB
"""In the large pool, a rest up to here stays with its block."""


class BlocksInUse:
    """The addresses in use on one device, at one moment of its history."""

    def __init__(self, settings: AllocatorSettings | None = None) -> None:
        settings = replace(settings or AllocatorSettings(), per_process_memory_fraction=1.0)
        self._rounded: Callable[[int], int] = settings.rounded
        self._never_split = settings.max_split_size
        self._addresses: list[int] = []
        self._block_sizes: dict[int, int] = {}
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._uncertain: set[int] = set()
        """Large blocks from before the history that may have been block_size a rest."""
        self.corrected: dict[int, int] = {}
        """Address → charge of those that turned out to have been; for the reader to take out."""
        self.allocated = 0
        """Charged for all blocks in use."""

    def add_segment(self, address: int, size: int) -> None:
        """A segment of the plain kind; expandable ones are not wanted here, since they split off every rest."""
        if address not in self._sizes:
            self._starts.insert(bisect_left(self._starts, address), address)
        self._sizes[address] = size

    def remove_segment(self, address: int) -> None:
        if self._sizes.pop(address, None) is not None:
            del self._starts[bisect_left(self._starts, address)]

    def add_initial(self, address: int, requested: int, block_size: int | None) -> int:
        """A block was in use before the history started; `block_size` where that is known.

        They come from the top down: a rest reaches up to the next block in use, so that one must be there already.
        Where the neighbour was free at that record, a rest cannot be told from it until somebody moves in there.
        """
        is_known = block_size is not None
        block_size = self.add(address, requested, block_size)
        if not is_known and block_size > _MAX_SMALL:
            self._uncertain.add(address)
        return block_size

    def add(self, address: int, requested: int, block_size: int | None = None) -> int:
        """A block comes into use; gives what it is block_size (`block_size`, where that is known)."""
        if address in self._block_sizes:
            self.remove(address)
        position = bisect_left(self._addresses, address)
        if self._uncertain and position:
            self._correct(self._addresses[position - 1], address)
        if block_size is None:
            block_size = self._rounded(requested)
            if block_size > _MAX_SMALL:
                block_size += self._rest(address, block_size, position)
        self._addresses.insert(position, address)
        self._block_sizes[address] = block_size
        self.allocated += block_size
        return block_size

    def remove(self, address: int) -> None:
        """A block is given back."""
        block_size = self._block_sizes.pop(address, None)
        self._uncertain.discard(address)
        if block_size is not None:
            del self._addresses[bisect_left(self._addresses, address)]
            self.allocated -= block_size

    def _correct(self, before: int, address: int) -> None:
        """A block begins at `address`: what lies between it and the one before cannot be free, if it is little."""
        rest = address - before - self._block_sizes[before]
        if before in self._uncertain and 0 < rest <= _MAX_REMAINDER:
            self._uncertain.remove(before)
            if self._segment_end(before) == self._segment_end(address):
                self._block_sizes[before] += rest
                self.allocated += rest
                self.corrected[before] = self._block_sizes[before]

    def block_at(self, address: int) -> int | None:
        """The address of the block in use that `address` lies in."""
        if address in self._block_sizes:
            return address
        position = bisect_right(self._addresses, address) - 1
        if position < 0:
            return None
        start = self._addresses[position]
        return start if address < start + self._block_sizes[start] else None

    def largest_gap(self) -> int:
        """The largest free block of the plain segments."""
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

    def _rest(self, address: int, rounded: int, position: int) -> int:
        end = self._segment_end(address)
        if end is None:
            return 0
        if position < len(self._addresses):
            end = min(end, self._addresses[position])
        rest = max(end - address - rounded, 0)
        whole = self._never_split is not None and rounded >= self._never_split
        return rest if whole or rest <= _MAX_REMAINDER else 0

    def _segment_end(self, address: int) -> int | None:
        position = bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        start = self._starts[position]
        end = start + self._sizes[start]
        return end if address < end else None
