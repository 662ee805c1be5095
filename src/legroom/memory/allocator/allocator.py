"""PyTorch's CUDA caching allocator, replayed: the same requests give the same blocks, segments, peaks and failures.

It follows c10/cuda/CUDACachingAllocator.cpp of torch 2.11 to 2.13 step by step, in plain Python and without a GPU.
Given the addresses at which CUDA placed the segments, it reproduces recorded histories address by address; without
them, both peaks. What it leaves out: CUDA graphs and private pools, which a virtual GPU has not.

The order of things, because everything depends on it:

    malloc   round up → best fit of the pool, for that stream → split off the rest, if it is worth a block
             none fits: collect garbage, if that is on → take a segment from the device
             no room:   give back oversize cached blocks → take → wait for other streams, give back all free
                        segments → take → fail
    free     merge with free neighbours → into the pool; a block that another stream uses waits first

Every storage of a live run passes through `malloc` and `free`, so these two are written out flat; all else is not.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from legroom.memory.allocator.blocks import (
    ALLOCATED,
    FREE,
    LARGEST_SMALL,
    WAITING,
    Block,
    FreeEntry,
    Pool,
)
from legroom.memory.allocator.device import AddressSpace, DeviceMemory, Trace
from legroom.memory.allocator.expandable_segments import reachable_size
from legroom.memory.allocator.segments import NO_SIZE, SegmentSupply
from legroom.memory.allocator.settings import SMALLEST_BLOCK, AllocatorSettings
from legroom.memory.allocator.snapshot import describe_segments, releasable_bytes
from legroom.memory.allocator.statistics import Statistics


class AllocationFailed(Exception):  # noqa: N818  (what happened, as a caller reads it)
    """The device is full, and giving back the cache did not help. Callers raise torch's own error from this."""

    def __init__(self, requested: int, segment_bytes: int) -> None:
        super().__init__(f"no room for {requested} bytes: the device did not have {segment_bytes} bytes left")
        self.requested = requested
        """What the program asked for."""
        self.segment_bytes = segment_bytes
        """What was asked of the device: the figure in PyTorch's "Tried to allocate"."""


class Allocator:
    """One device's allocator.

    `capacity` is what the device has for this process, None for no end of it; `total` what torch reports as its
    memory where that is more (a CUDA context takes its part): fractions are of `total`. `base_address(size, stream)`
    gives the address of the next new segment, for replays that know it. `on_segment(bytes)` is told what is taken
    from the device, and, negative, given back; `trace` the same as torch's own history would record it.
    `streams_keep_up`: a freed block that other streams used is usable at the next `malloc`; otherwise only once
    `complete_free` says so.

    `free` may be called at any moment, even in the middle of a `malloc`, as it is when the garbage collector finds
    a dead tensor there: such a block is freed when that call ends. Two threads must not allocate at once.
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        settings: AllocatorSettings | None = None,
        total: int | None = None,
        base_address: Callable[[int, int], int] | None = None,
        on_segment: Callable[[int], None] | None = None,
        streams_keep_up: bool = True,
        trace: Trace | None = None,
    ) -> None:
        self._small = Pool(is_small=True)
        self._large = Pool(is_small=False)
        self._statistics = Statistics(self._small.statistics, self._large.statistics)
        self._device = DeviceMemory(capacity, total, on_segment, trace)
        self._space = AddressSpace()
        self._supply = SegmentSupply(
            self._device,
            base_address or self._space.segment,
            base_address or self._space.range,
            self._small,
            self._large,
            self._statistics,
        )
        self._streams_keep_up = streams_keep_up
        self._waiting: dict[int, Block] = {}
        self._is_busy = False
        self._freed_meanwhile: list[Block] = []
        self._is_rising = False
        """Whether something was allocated since the last free: then this may be a peak."""
        self._is_inactive_rising = False
        """The same of free memory in segments that are partly in use."""
        self.change_settings(settings or AllocatorSettings())
        self._max_split_size_at_first = self.settings.max_split_size
        if self.settings.per_process_memory_fraction < 1:
            self.set_memory_fraction(self.settings.per_process_memory_fraction)

    # ------------------------------------------------------------ requests

    def malloc(self, size: int, stream: int = 0) -> Block:
        """A block for `size` bytes on `stream`; raises AllocationFailed when there is none to be had.

        Torch asks for no block when a tensor has no bytes; asked all the same, this gives the smallest there is.
        """
        self._is_busy = True
        try:
            if self._waiting and self._streams_keep_up:
                self._end_all_waits()
            if self._rounds_plainly:
                rounded = (size + 511) & -512 if size else SMALLEST_BLOCK
            else:
                rounded = self._round(size)
            pool = self._small if rounded <= LARGEST_SMALL else self._large

            entries = pool.free.get(stream)
            if entries is None:
                entries = pool.free[stream] = []
            block: Block | None = None
            if self._searches_plainly:
                position = bisect_left(entries, (rounded,))
                if position < len(entries):
                    block = entries.pop(position)[3]
            else:
                block = self._search(pool, entries, rounded)
            if block is None:
                block = self._grow(pool, rounded, stream, size)

            statistics = pool.statistics
            segment = block.segment
            charged = block.size
            rest = charged - rounded
            if rest >= pool.least_rest and rounded < pool.split_below:
                remaining = block
                address = remaining.address
                previous = remaining.previous
                block = Block(address, rounded, stream, pool, segment, remaining.age)
                if previous is not None:
                    previous.next = block
                    block.previous = previous
                else:
                    segment.head = block
                block.next = remaining
                charged = rounded
                remaining.previous = block
                remaining.address = address = address + rounded
                remaining.size = rest
                insort(entries, (rest, remaining.age, address, remaining))
                if not segment.expandable:
                    if previous is None and remaining.next is None:
                        statistics.inactive_up += 1
                        statistics.inactive_bytes_up += rest
                        self._is_inactive_rising = True
                    else:
                        if self._is_inactive_rising:
                            self._statistics.note_inactive_peaks()
                            self._is_inactive_rising = False
                        statistics.inactive_bytes_down += rounded
            elif (block.previous is not None or block.next is not None) and not segment.expandable:
                if self._is_inactive_rising:
                    self._statistics.note_inactive_peaks()
                    self._is_inactive_rising = False
                statistics.inactive_down += 1
                statistics.inactive_bytes_down += charged

            block.state = ALLOCATED
            block.requested = size
            statistics.made += 1
            statistics.bytes_made += charged
            statistics.requested_made += size
            self._is_rising = True
            if charged >= self._max_split_size:
                self._statistics.oversize_allocations.add(1)
            return block
        finally:
            self._is_busy = False
            if self._freed_meanwhile:
                self._free_the_rest()

    def free(self, block: Block) -> None:
        """Gives a block back. One that other streams used waits for them: until the next `malloc`, as a rule."""
        if block.state != ALLOCATED:
            raise ValueError(f"{block!r} cannot be freed: it is not allocated")
        if self._is_busy:
            self._freed_meanwhile.append(block)
            return
        self._is_busy = True
        try:
            if self._is_rising:
                self._statistics.note_peaks()
                self._is_rising = False
            size = block.size
            statistics = block.pool.statistics
            statistics.freed += 1
            statistics.bytes_freed += size
            if size >= self._max_split_size:
                self._statistics.oversize_allocations.add(-1)
            if block.uses is None:
                self._settle(block)
            else:
                block.uses = None
                block.state = WAITING
                statistics.waiting += 1
                statistics.waiting_bytes += size
                self._waiting[block.address] = block
        finally:
            self._is_busy = False
            if self._freed_meanwhile:
                self._free_the_rest()

    def record_stream(self, block: Block, stream: int) -> None:
        """Says that `stream` uses the block too: its memory is not used again before that work is done."""
        if stream != block.stream:
            if block.uses is None:
                block.uses = set()
            block.uses.add(stream)

    def complete_free(self, block: Block) -> None:
        """Ends the wait of one freed block: the other streams are done with it."""
        with self._at_work():
            self._end_wait(block)

    def complete_frees(self) -> None:
        """Ends the wait of every freed block, as waiting for the whole device does."""
        with self._at_work():
            self._end_all_waits()

    def empty_cache(self) -> None:
        """Gives back every wholly free segment, and every wholly free page of expandable ones."""
        with self._at_work():
            self._give_back_cache()

    # ------------------------------------------------------------ limits and settings

    @property
    def capacity(self) -> int | None:
        return self._device.capacity

    @property
    def limit(self) -> int | None:
        """How many bytes this process may take; None for any number."""
        return self._device.limit

    def set_memory_fraction(self, fraction: float) -> None:
        """As torch.cuda.set_per_process_memory_fraction: of the device's total memory."""
        self._device.set_fraction(fraction)
        self._choose_paths()

    def set_limit(self, limit: int | None) -> None:
        """The same, in bytes."""
        self._device.allowed = limit
        self._choose_paths()

    def kernels_run(self) -> None:
        """The program's first operation has run, after which CUDA places segments otherwise."""
        self._space.kernels_run()

    def library_loaded(self) -> None:
        """cuBLAS was asked for a handle, and takes of the address space as well."""
        self._space.library_loaded()

    def change_settings(self, settings: AllocatorSettings) -> None:
        """Also while running, as torch allows: what is allocated stays as it is."""
        self.settings = settings
        self._supply.change_settings(settings)
        self._max_split_size = self._supply.max_split_size
        self._large.least_rest = SMALLEST_BLOCK if settings.expandable_segments else LARGEST_SMALL + 1
        self._large.split_below = NO_SIZE if settings.expandable_segments else self._max_split_size
        self._rounds_plainly = max(settings.roundup_power2_divisions) <= 1
        self._choose_paths()

    def _choose_paths(self) -> None:
        """Whether the search for a free block can be a bisection and nothing else: it is, by default."""
        self._collects_garbage = (
            self._device.allowed is not None and self.settings.garbage_collection_threshold > 0
        )
        self._searches_plainly = not (
            self._collects_garbage
            or self.settings.expandable_segments
            or self._supply.has_expandable
            or self.settings.max_split_size is not None
        )

    # ------------------------------------------------------------ figures

    @property
    def allocated(self) -> int:
        """Bytes in live blocks, as charged."""
        return self._statistics.allocated

    @property
    def requested(self) -> int:
        """Bytes in live blocks, as asked for, and in freed blocks that other streams still use."""
        return self._statistics.requested

    @property
    def reserved(self) -> int:
        """Bytes taken from the device."""
        return self._statistics.reserved.current

    @property
    def peak_allocated(self) -> int:
        self._statistics.note_peaks()
        return self._statistics.peaks[3]

    @property
    def peak_requested(self) -> int:
        self._statistics.note_peaks()
        return self._statistics.peaks[6]

    @property
    def peak_reserved(self) -> int:
        return self._statistics.reserved.peak

    @property
    def cached(self) -> int:
        """Bytes that `empty_cache` would give back."""
        pools = (self._small, self._large)
        with self._at_work():
            return sum(releasable_bytes(block) for pool in pools for block in pool.free_blocks())

    @property
    def fragmented(self) -> int:
        """Bytes that are free and cannot be given back, because something else in their segment or page is alive."""
        waiting = self._small.statistics.waiting_bytes + self._large.statistics.waiting_bytes
        return self.reserved - self.allocated - waiting - self.cached

    @property
    def largest_free_block(self) -> int:
        lists = [*self._small.free.values(), *self._large.free.values()]
        return max((entries[-1][0] for entries in lists if entries), default=0)

    @property
    def num_ooms(self) -> int:
        return self._statistics.num_ooms

    def forgive(self) -> None:
        """The latest failure does not count: it is asked again, and nobody heard of it."""
        self._statistics.num_ooms -= 1

    @property
    def num_alloc_retries(self) -> int:
        """How often the cache had to be given back for a request."""
        return self._statistics.num_alloc_retries

    def reset_peaks(self) -> None:
        self._statistics.reset_peaks()

    def reset_accumulated(self) -> None:
        self._statistics.reset_accumulated()

    def stats(self) -> dict[str, int]:
        """Every figure of torch.cuda.memory_stats(), under the same keys."""
        return self._statistics.as_dict(self._max_split_size_at_first)

    def segments(self) -> list[dict[str, Any]]:
        """In the spirit of torch.cuda.memory_snapshot(): an expandable segment is one entry per mapped range."""
        with self._at_work():
            return describe_segments(self._supply.segments.values())

    # ------------------------------------------------------------ blocks

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Keeps frees that come meanwhile until the end."""
        was_busy, self._is_busy = self._is_busy, True
        try:
            yield
        finally:
            self._is_busy = was_busy
            if not was_busy:
                self._free_the_rest()

    def _free_the_rest(self) -> None:
        """What was freed while another call was at work."""
        while self._freed_meanwhile:
            self.free(self._freed_meanwhile.pop())

    def _settle(self, block: Block) -> None:
        """Merges a block that is free from now on with free neighbours, and puts it into its pool."""
        pool = block.pool
        entries = pool.free[block.stream]
        size = freed = block.size
        merged = 0
        previous = block.previous
        if previous is not None and previous.state == FREE:
            address = previous.address
            del entries[bisect_left(entries, (previous.size, previous.age, address))]
            block.address = address
            size += previous.size
            merged = 1
            block.previous = previous = previous.previous
            if previous is None:
                block.segment.head = block
            else:
                previous.next = block
        following = block.next
        if following is not None and following.state == FREE:
            del entries[bisect_left(entries, (following.size, following.age, following.address))]
            size += following.size
            merged += 1
            block.next = following = following.next
            if following is not None:
                following.previous = block
        block.size = size
        block.state = FREE
        block.idle_since = pool.searches
        insort(entries, (size, block.age, block.address, block))

        statistics = pool.statistics
        statistics.requested_freed += block.requested
        if block.segment.expandable:
            return
        if previous is None and following is None:
            if merged:
                if self._is_inactive_rising:
                    self._statistics.note_inactive_peaks()
                    self._is_inactive_rising = False
                statistics.inactive_down += merged
                statistics.inactive_bytes_down += size - freed
            return
        if merged == 0:
            statistics.inactive_up += 1
        elif merged == 2:
            if self._is_inactive_rising:
                self._statistics.note_inactive_peaks()
            statistics.inactive_down += 1
        statistics.inactive_bytes_up += freed
        self._is_inactive_rising = True

    def _end_wait(self, block: Block) -> None:
        del self._waiting[block.address]
        if self._is_rising:
            self._statistics.note_peaks()
            self._is_rising = False
        statistics = block.pool.statistics
        statistics.waiting -= 1
        statistics.waiting_bytes -= block.size
        self._settle(block)

    def _end_all_waits(self) -> None:
        for block in list(self._waiting.values()):
            self._end_wait(block)

    def _round(self, size: int) -> int:
        return self.settings.rounded(size)

    def _search(self, pool: Pool, entries: list[FreeEntry], size: int) -> Block | None:
        """The best fit, with every setting minded, out of its list."""
        if self._collects_garbage:
            pool.searches += 1
        position = bisect_left(entries, (size,))
        if position == len(entries):
            return None
        block: Block = entries[position][3]
        if block.segment.expandable:
            if self.settings.expandable_segments:
                while block.segment.expandable and position + 1 < len(entries):
                    larger: Block = entries[position + 1][3]
                    if reachable_size(larger) >= reachable_size(block):
                        break
                    block = larger
                    position += 1
            else:
                while position < len(entries) and entries[position][3].segment.expandable:
                    position += 1
                if position == len(entries):
                    return None
                block = entries[position][3]
        if size < self._max_split_size:
            if block.size >= self._max_split_size:
                return None
        elif block.size >= size + self.settings.max_non_split_rounding:
            return None
        del entries[position]
        return block

    # ------------------------------------------------------------ memory from the device

    def _give_back_cache(self) -> None:
        """Waits for other streams first: what they used may be free then."""
        self._statistics.num_synchronizations += 1
        self._end_all_waits()
        self._supply.release_all()

    def _grow(self, pool: Pool, size: int, stream: int, requested: int) -> Block:
        """A block from the device, with all that is tried when it is full."""
        supply = self._supply
        if self._collects_garbage and self._device.allowed is not None:
            supply.collect_garbage(self._device.allowed)
        block = supply.take(pool, size, stream)
        if block is None and supply.release_oversize(pool, size, stream):
            block = supply.take(pool, size, stream)
        if block is None:
            self._give_back_cache()
            self._statistics.num_alloc_retries += 1
            block = supply.take(pool, size, stream)
        if supply.has_expandable and self._searches_plainly:
            self._choose_paths()
        if block is None:
            self._statistics.num_ooms += 1
            raise AllocationFailed(requested, supply.segment_bytes(size))
        return block
