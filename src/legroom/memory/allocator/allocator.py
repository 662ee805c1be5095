"""A simulation of PyTorch's CUDA caching allocator.

The same requests result in the same blocks, segments, peaks and failures.

The simulation follows c10/cuda/CUDACachingAllocator.cpp from torch 2.11 to 2.13 step by step, in Python and without a
GPU. With the addresses at which CUDA placed the segments, the simulation reproduces recorded histories address by
address. Without these addresses, the simulation reproduces the peaks of allocated and reserved memory. CUDA graphs
and private pools are not simulated, because a virtual GPU does not support them.

`malloc` and `free` work in these steps:

```
malloc   round up → find the best fit in the pool of that stream → split off the remainder if it is large enough
         no block fits: collect garbage if enabled → reserve a segment
         device full:   release oversize cached blocks → reserve → synchronize other streams, release all free
                        segments → reserve → fail
free     merge with adjacent free blocks → put into the pool; if another stream uses the block, wait for that stream first
```

Both methods are called for every storage, so they are optimized for speed.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from legroom.memory.allocator.blocks import (
    ALLOCATED,
    FREE,
    PENDING_FREE,
    SMALL_SIZE,
    Block,
    FreeEntry,
    Pool,
)
from legroom.memory.allocator.device import AddressSpace, DeviceMemory, Trace
from legroom.memory.allocator.expandable_segments import reachable_size
from legroom.memory.allocator.segments import NO_SIZE, SegmentSource, describe_segments, releasable_bytes
from legroom.memory.allocator.settings import MIN_BLOCK_SIZE, AllocatorSettings
from legroom.memory.allocator.statistics import Statistics


class AllocationFailed(Exception):  # noqa: N818  (raised and caught by name)
    """Raised if the device is full even after the cache was released. Callers raise `torch.OutOfMemoryError` from
    this exception."""

    def __init__(self, requested: int, segment_bytes: int) -> None:
        super().__init__(
            f"cannot allocate {requested} bytes: the device does not have {segment_bytes} free bytes"
        )
        self.requested = requested
        self.segment_bytes = segment_bytes
        """The size requested from the device, as in PyTorch's "Tried to allocate"."""


class Allocator:
    """The allocator of one device.

    `capacity` is the number of bytes that this process can use, or None for no limit. `total` is the total memory
    that torch reports, which exceeds `capacity` by the CUDA context. Memory fractions refer to `total`.
    `base_address(size, stream)` returns the address of the next segment, for replays. `on_segment(bytes)` is called
    when device memory is reserved, and with a negative size when it is released. `trace` is called with the same
    actions as in torch's history. With `streams_are_synchronous`, a freed block that other streams used can be reused
    at the next `malloc`. Without `streams_are_synchronous`, the block can be reused only after `complete_free`.

    `free` may be called at any moment, even during `malloc`, because the garbage collector may free a tensor at any
    moment. If `free` is called during `malloc`, the block is freed when `malloc` ends. Two threads must not allocate
    at the same time.
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        settings: AllocatorSettings | None = None,
        total: int | None = None,
        base_address: Callable[[int, int], int] | None = None,
        on_segment: Callable[[int], None] | None = None,
        streams_are_synchronous: bool = True,
        trace: Trace | None = None,
    ) -> None:
        self._small = Pool(is_small=True)
        self._large = Pool(is_small=False)
        self._statistics = Statistics(self._small.statistics, self._large.statistics)
        self._device = DeviceMemory(capacity, total, on_segment, trace)
        self._space = AddressSpace()
        self._source = SegmentSource(
            self._device,
            base_address or self._space.segment,
            base_address or self._space.range,
            self._small,
            self._large,
            self._statistics,
        )
        self._streams_are_synchronous = streams_are_synchronous
        self._pending_frees: dict[int, Block] = {}
        self._is_busy = False
        self._deferred_frees: list[Block] = []
        self._has_risen = False
        """True if memory has been allocated since the last free. The allocated memory may then be at a peak."""
        self._inactive_has_risen = False
        """True if the number of free bytes in partly used segments may be at a peak."""
        self.change_settings(settings or AllocatorSettings())
        self._max_split_size_at_first = self.settings.max_split_size
        if self.settings.per_process_memory_fraction < 1:
            self.set_memory_fraction(self.settings.per_process_memory_fraction)

    # --- allocating and freeing

    def malloc(self, size: int, stream: int = 0) -> Block:
        """Return a block for `size` bytes on `stream`, or raise AllocationFailed if the device is full.

        PyTorch requests no block for an empty tensor. For 0 bytes, this method returns a block of the smallest size.
        """
        self._is_busy = True
        try:
            if self._pending_frees and self._streams_are_synchronous:
                self._complete_all_frees()
            if self._simple_rounding:
                rounded = (size + 511) & -512 if size else MIN_BLOCK_SIZE
            else:
                rounded = self._round(size)
            pool = self._small if rounded <= SMALL_SIZE else self._large

            entries = pool.free.get(stream)
            if entries is None:
                entries = pool.free[stream] = []
            block: Block | None = None
            if self._simple_search:
                position = bisect_left(entries, (rounded,))
                if position < len(entries):
                    block = entries.pop(position)[3]
            else:
                block = self._search(pool, entries, rounded)
            if block is None:
                block = self._allocate_from_device(pool, rounded, stream, size)

            statistics = pool.statistics
            segment = block.segment
            block_size = block.size
            remainder = block_size - rounded
            if remainder >= pool.min_remainder and rounded < pool.split_below:
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
                block_size = rounded
                remaining.previous = block
                remaining.address = address = address + rounded
                remaining.size = remainder
                insort(entries, (remainder, remaining.age, address, remaining))
                if not segment.expandable:
                    if previous is None and remaining.next is None:
                        statistics.inactive_up += 1
                        statistics.inactive_bytes_up += remainder
                        self._inactive_has_risen = True
                    else:
                        if self._inactive_has_risen:
                            self._statistics.update_inactive_peaks()
                            self._inactive_has_risen = False
                        statistics.inactive_bytes_down += rounded
            elif (block.previous is not None or block.next is not None) and not segment.expandable:
                if self._inactive_has_risen:
                    self._statistics.update_inactive_peaks()
                    self._inactive_has_risen = False
                statistics.inactive_down += 1
                statistics.inactive_bytes_down += block_size

            block.state = ALLOCATED
            block.requested = size
            statistics.allocated_count += 1
            statistics.allocated_bytes_total += block_size
            statistics.requested_total += size
            self._has_risen = True
            if block_size >= self._max_split_size:
                self._statistics.oversize_allocations.add(1)
            return block
        finally:
            self._is_busy = False
            if self._deferred_frees:
                self._process_deferred_frees()

    def free(self, block: Block) -> None:
        """Free a block.

        If other streams used the block, the free is pending until these streams are done, usually at the next
        `malloc`.
        """
        if block.state != ALLOCATED:
            raise ValueError(f"{block!r} cannot be freed because it is not allocated")
        if self._is_busy:
            self._deferred_frees.append(block)
            return
        self._is_busy = True
        try:
            if self._has_risen:
                self._statistics.update_peaks()
                self._has_risen = False
            size = block.size
            statistics = block.pool.statistics
            statistics.freed += 1
            statistics.bytes_freed += size
            if size >= self._max_split_size:
                self._statistics.oversize_allocations.add(-1)
            if block.stream_uses is None:
                self._make_free(block)
            else:
                block.stream_uses = None
                block.state = PENDING_FREE
                statistics.pending += 1
                statistics.pending_bytes += size
                self._pending_frees[block.address] = block
        finally:
            self._is_busy = False
            if self._deferred_frees:
                self._process_deferred_frees()

    def record_stream(self, block: Block, stream: int) -> None:
        """Record that `stream` also uses the block, so that the block is not reused before this stream is done."""
        if stream != block.stream:
            if block.stream_uses is None:
                block.stream_uses = set()
            block.stream_uses.add(stream)

    def complete_free(self, block: Block) -> None:
        with self._busy():
            self._complete_free(block)

    def complete_frees(self) -> None:
        with self._busy():
            self._complete_all_frees()

    def empty_cache(self) -> None:
        with self._busy():
            self._release_cache()

    # --- limits and settings

    @property
    def capacity(self) -> int | None:
        return self._device.capacity

    @property
    def limit(self) -> int | None:
        return self._device.limit

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit the allocator to a fraction of the total memory, like `torch.cuda.set_per_process_memory_fraction`."""
        self._device.set_fraction(fraction)
        self._select_fast_paths()

    def set_limit(self, limit: int | None) -> None:
        self._device.allowed = limit
        self._select_fast_paths()

    def kernels_run(self) -> None:
        """Record that the first operation has run. After the first operation, CUDA places new segments according to
        different rules.
        """
        self._space.kernels_run()

    def library_loaded(self) -> None:
        """Record that cuBLAS created a handle, which uses address space."""
        self._space.library_loaded()

    def reduce_capacity(self, size: int) -> bool:
        """Reduce the memory that PyTorch can use by `size` bytes.

        Return False if PyTorch has already reserved more than the remaining capacity.
        """
        if self._device.capacity is None:
            return True
        self._device.capacity -= size
        return self._device.reserved <= self._device.capacity

    def change_settings(self, settings: AllocatorSettings) -> None:
        """Change the settings. As in torch, a change of the settings does not affect existing blocks."""
        self.settings = settings
        self._source.change_settings(settings)
        self._max_split_size = self._source.max_split_size
        self._large.min_remainder = MIN_BLOCK_SIZE if settings.expandable_segments else SMALL_SIZE + 1
        self._large.split_below = NO_SIZE if settings.expandable_segments else self._max_split_size
        self._simple_rounding = max(settings.roundup_power2_divisions) <= 1
        self._select_fast_paths()

    def _select_fast_paths(self) -> None:
        """Determine whether the settings allow the fast search for a free block, which is one bisection.

        The default settings allow the fast search.
        """
        self._collects_garbage = (
            self._device.allowed is not None and self.settings.garbage_collection_threshold > 0
        )
        self._simple_search = not (
            self._collects_garbage
            or self.settings.expandable_segments
            or self._source.has_expandable
            or self.settings.max_split_size is not None
        )

    # --- statistics

    @property
    def allocated(self) -> int:
        return self._statistics.allocated

    @property
    def requested(self) -> int:
        """The requested size of all allocated blocks, and of freed blocks that other streams still use."""
        return self._statistics.requested

    @property
    def reserved(self) -> int:
        return self._statistics.reserved.current

    @property
    def peak_allocated(self) -> int:
        self._statistics.update_peaks()
        return self._statistics.peaks[3]

    @property
    def peak_requested(self) -> int:
        self._statistics.update_peaks()
        return self._statistics.peaks[6]

    @property
    def peak_reserved(self) -> int:
        return self._statistics.reserved.peak

    @property
    def cached(self) -> int:
        """The number of bytes that `empty_cache` would release."""
        pools = (self._small, self._large)
        with self._busy():
            return sum(releasable_bytes(block) for pool in pools for block in pool.free_blocks())

    @property
    def fragmented(self) -> int:
        """The number of free bytes that cannot be released, because their segment or page is partly in use."""
        pending = self._small.statistics.pending_bytes + self._large.statistics.pending_bytes
        return self.reserved - self.allocated - pending - self.cached

    @property
    def largest_free_block(self) -> int:
        lists = [*self._small.free.values(), *self._large.free.values()]
        return max((entries[-1][0] for entries in lists if entries), default=0)

    @property
    def num_ooms(self) -> int:
        return self._statistics.num_ooms

    def discount_oom(self) -> None:
        """Exclude the last failure from the statistics, because the caller repeats the request."""
        self._statistics.num_ooms -= 1

    @property
    def num_alloc_retries(self) -> int:
        return self._statistics.num_alloc_retries

    def reset_peaks(self) -> None:
        self._statistics.reset_peaks()

    def reset_accumulated(self) -> None:
        self._statistics.reset_accumulated()

    def stats(self) -> dict[str, int]:
        return self._statistics.as_dict(self._max_split_size_at_first)

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments like `torch.cuda.memory_snapshot()`. An expandable segment has one entry per mapped
        range.
        """
        with self._busy():
            return describe_segments(self._source.segments.values())

    # --- blocks

    @contextmanager
    def _busy(self) -> Iterator[None]:
        was_busy, self._is_busy = self._is_busy, True
        try:
            yield
        finally:
            self._is_busy = was_busy
            if not was_busy:
                self._process_deferred_frees()

    def _process_deferred_frees(self) -> None:
        while self._deferred_frees:
            self.free(self._deferred_frees.pop())

    def _make_free(self, block: Block) -> None:
        """Merge a freed block with adjacent free blocks, and put the merged block into its pool."""
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
                if self._inactive_has_risen:
                    self._statistics.update_inactive_peaks()
                    self._inactive_has_risen = False
                statistics.inactive_down += merged
                statistics.inactive_bytes_down += size - freed
            return
        if merged == 0:
            statistics.inactive_up += 1
        elif merged == 2:
            if self._inactive_has_risen:
                self._statistics.update_inactive_peaks()
            statistics.inactive_down += 1
        statistics.inactive_bytes_up += freed
        self._inactive_has_risen = True

    def _complete_free(self, block: Block) -> None:
        del self._pending_frees[block.address]
        if self._has_risen:
            self._statistics.update_peaks()
            self._has_risen = False
        statistics = block.pool.statistics
        statistics.pending -= 1
        statistics.pending_bytes -= block.size
        self._make_free(block)

    def _complete_all_frees(self) -> None:
        for block in list(self._pending_frees.values()):
            self._complete_free(block)

    def _round(self, size: int) -> int:
        return self.settings.rounded(size)

    def _search(self, pool: Pool, entries: list[FreeEntry], size: int) -> Block | None:
        """Find the free block that fits best according to all settings, and remove it from the free list."""
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

    # --- device memory

    def _release_cache(self) -> None:
        """Release all cached segments, after a synchronization that may free blocks of other streams."""
        self._statistics.num_synchronizations += 1
        self._complete_all_frees()
        self._source.release_all()

    def _allocate_from_device(self, pool: Pool, size: int, stream: int, requested: int) -> Block:
        """Reserve a segment. If the device is full, release cached memory and try again."""
        source = self._source
        if self._collects_garbage and self._device.allowed is not None:
            source.collect_garbage(self._device.allowed)
        block = source.reserve(pool, size, stream)
        if block is None and source.release_oversize(pool, size, stream):
            block = source.reserve(pool, size, stream)
        if block is None:
            self._release_cache()
            self._statistics.num_alloc_retries += 1
            block = source.reserve(pool, size, stream)
        if source.has_expandable and self._simple_search:
            self._select_fast_paths()
        if block is None:
            self._statistics.num_ooms += 1
            raise AllocationFailed(requested, source.segment_bytes(size))
        return block
