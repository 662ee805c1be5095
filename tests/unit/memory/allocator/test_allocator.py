"""The allocator with torch's default settings."""

import gc
import weakref

import pytest

from legroom.errors import UsageError
from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import Block
from legroom.units import GiB, KiB, MiB


class TestRounding:
    @pytest.mark.parametrize(
        ("asked", "charged"),
        [(0, 512), (1, 512), (512, 512), (513, 1024), (100_000, 100_352), (MiB - 1, MiB)],
    )
    def test_sizes_are_rounded_up_to_512_bytes(self, asked: int, charged: int) -> None:
        block = Allocator().malloc(asked)

        assert (block.requested, block.size) == (asked, charged)

    def test_a_remainder_too_small_to_split_off_is_charged(self) -> None:
        allocator = Allocator()

        block = allocator.malloc(19 * MiB + 512 * KiB)

        assert block.size == allocator.allocated == allocator.reserved == 20 * MiB
        assert allocator.requested == 19 * MiB + 512 * KiB


class TestSegments:
    @pytest.mark.parametrize(
        ("asked", "segment"),
        [
            (1, 2 * MiB),
            (MiB, 2 * MiB),
            (MiB + 1, 20 * MiB),
            (10 * MiB - 512, 20 * MiB),
            (10 * MiB, 10 * MiB),
            (10 * MiB + 1, 12 * MiB),
            (101 * MiB, 102 * MiB),
        ],
    )
    def test_the_size_of_the_first_segment_depends_on_the_request(self, asked: int, segment: int) -> None:
        allocator = Allocator()

        allocator.malloc(asked)

        assert allocator.reserved == segment

    def test_small_and_large_requests_never_share_a_segment(self) -> None:
        allocator = Allocator()
        allocator.malloc(2 * MiB)

        allocator.malloc(4 * KiB)

        assert allocator.reserved == 20 * MiB + 2 * MiB

    def test_streams_never_share_a_segment(self) -> None:
        allocator = Allocator()
        allocator.free(allocator.malloc(4 * MiB, stream=0))

        allocator.malloc(4 * MiB, stream=7)

        assert allocator.reserved == 40 * MiB

    def test_the_callback_receives_every_segment_change(self) -> None:
        changes: list[int] = []
        allocator = Allocator(on_segment=changes.append)

        allocator.free(allocator.malloc(30 * MiB))
        allocator.malloc(1)
        allocator.empty_cache()

        assert changes == [30 * MiB, 2 * MiB, -30 * MiB]

    def test_segments_are_placed_at_given_addresses(self) -> None:
        allocator = Allocator(base_address=lambda size, stream: 0x1000_0000 + size + stream)

        assert allocator.malloc(30 * MiB, stream=2).address == 0x1000_0000 + 30 * MiB + 2


class TestBestFit:
    def test_the_smallest_free_block_that_fits_is_used(self) -> None:
        allocator = Allocator()
        held = [allocator.malloc(size * MiB) for size in (50, 30, 40)]
        for block in held:
            allocator.free(block)

        assert allocator.malloc(30 * MiB).address == held[1].address

    def test_among_equal_blocks_the_older_segment_is_used(self) -> None:
        allocator = Allocator()
        older, newer = allocator.malloc(30 * MiB), allocator.malloc(30 * MiB)
        allocator.free(newer)
        allocator.free(older)

        assert newer.address < older.address
        assert allocator.malloc(30 * MiB).address == older.address

    def test_the_remainder_of_a_large_block_is_split_off_above_1_mib(self) -> None:
        allocator = Allocator()

        first, second = allocator.malloc(2 * MiB), allocator.malloc(3 * MiB)

        assert second.address == first.address + 2 * MiB
        assert allocator.reserved == 20 * MiB

    def test_the_remainder_of_a_small_block_is_split_off_from_512_bytes(self) -> None:
        allocator = Allocator()

        first, second = allocator.malloc(MiB), allocator.malloc(MiB - 512)

        assert (first.size, second.size) == (MiB, MiB - 512)
        assert allocator.largest_free_block == 512


class TestFree:
    def test_adjacent_free_blocks_are_merged(self) -> None:
        allocator = Allocator()
        blocks = [allocator.malloc(4 * MiB) for _ in range(5)]
        allocator.free(blocks[1])
        allocator.free(blocks[3])

        allocator.free(blocks[2])

        assert allocator.largest_free_block == 12 * MiB

    def test_memory_stays_reserved_until_the_cache_is_emptied(self) -> None:
        allocator = Allocator()
        allocator.free(allocator.malloc(30 * MiB))
        before = allocator.reserved

        allocator.empty_cache()

        assert (before, allocator.reserved) == (30 * MiB, 0)

    def test_empty_cache_keeps_partly_used_segments(self) -> None:
        allocator = Allocator()
        kept = allocator.malloc(4 * MiB)
        allocator.free(allocator.malloc(4 * MiB))

        allocator.empty_cache()

        assert allocator.reserved == 20 * MiB
        assert allocator.allocated == kept.size

    def test_a_block_cannot_be_freed_twice(self) -> None:
        allocator = Allocator()
        block = allocator.malloc(1)
        allocator.free(block)

        with pytest.raises(ValueError, match="it is not allocated"):
            allocator.free(block)

    def test_a_block_freed_during_an_allocation_is_free_afterwards(self) -> None:
        allocator = Allocator(on_segment=lambda _: allocator.free(victims.pop()) if victims else None)
        victims: list[Block] = []
        victims.append(allocator.malloc(4 * MiB))

        kept = allocator.malloc(30 * MiB)

        assert allocator.allocated == kept.size
        assert allocator.cached == 20 * MiB

    def test_frees_by_the_garbage_collector_during_an_allocation_are_safe(self) -> None:
        class Owner:
            pass

        allocator = Allocator()
        blocks: dict[int, Block] = {}
        refs = []
        gc.collect()
        threshold = gc.get_threshold()
        gc.set_threshold(5)
        try:
            for number in range(3000):
                owner = Owner()
                owner.itself = owner  # type: ignore[attr-defined]
                blocks[number] = allocator.malloc(700 + 512 * (number % 37))
                refs.append(weakref.ref(owner, lambda _, n=number: allocator.free(blocks.pop(n))))
                del owner
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        allocator.empty_cache()

        assert (allocator.allocated, allocator.reserved, blocks) == (0, 0, {})


class TestStreams:
    def test_a_block_used_on_another_stream_is_reused_only_after_the_next_allocation(self) -> None:
        allocator = Allocator()
        block = allocator.malloc(30 * MiB)
        allocator.record_stream(block, 5)

        allocator.free(block)

        assert allocator.allocated == 0
        assert allocator.stats()["active_bytes.all.current"] == 30 * MiB
        assert allocator.largest_free_block == 0
        assert allocator.malloc(30 * MiB).address == block.address

    def test_use_on_its_own_stream_does_not_delay_reuse(self) -> None:
        allocator = Allocator()
        block = allocator.malloc(30 * MiB, stream=5)
        allocator.record_stream(block, 5)

        allocator.free(block)

        assert allocator.largest_free_block == 30 * MiB

    def test_with_asynchronous_streams_a_block_is_reused_only_after_its_stream_is_done(self) -> None:
        allocator = Allocator(streams_are_synchronous=False)
        block = allocator.malloc(30 * MiB)
        allocator.record_stream(block, 5)
        allocator.free(block)

        other = allocator.malloc(30 * MiB)
        allocator.complete_free(block)

        assert other.address != block.address
        assert allocator.malloc(30 * MiB).address == block.address

    def test_a_full_device_synchronizes_other_streams(self) -> None:
        allocator = Allocator(40 * MiB, streams_are_synchronous=False)
        block = allocator.malloc(30 * MiB)
        allocator.record_stream(block, 5)
        allocator.free(block)

        allocator.malloc(40 * MiB)

        assert allocator.reserved == 40 * MiB


class TestFullDevice:
    def test_free_segments_are_released_before_an_allocation_fails(self) -> None:
        allocator = Allocator(50 * MiB)
        allocator.free(allocator.malloc(30 * MiB))

        allocator.malloc(40 * MiB)

        assert allocator.reserved == 40 * MiB
        assert (allocator.num_alloc_retries, allocator.num_ooms) == (1, 0)

    def test_a_failure_has_the_requested_and_the_segment_size(self) -> None:
        allocator = Allocator(10 * MiB)

        with pytest.raises(AllocationFailed) as failure:
            allocator.malloc(3 * MiB)

        assert (failure.value.requested, failure.value.segment_bytes) == (3 * MiB, 20 * MiB)
        assert allocator.num_ooms == 1

    def test_allocations_continue_after_a_failure(self) -> None:
        allocator = Allocator(64 * MiB)
        held = [allocator.malloc(30 * MiB), allocator.malloc(30 * MiB)]
        with pytest.raises(AllocationFailed):
            allocator.malloc(30 * MiB)

        allocator.free(held.pop())

        assert allocator.malloc(30 * MiB).size == 30 * MiB

    def test_fragmented_memory_does_not_help_a_large_request(self) -> None:
        allocator = Allocator(40 * MiB)
        blocks = [allocator.malloc(5 * MiB) for _ in range(8)]
        for block in blocks[::2]:
            allocator.free(block)

        with pytest.raises(AllocationFailed):
            allocator.malloc(10 * MiB)

        assert (allocator.fragmented, allocator.cached) == (20 * MiB, 0)


class TestFraction:
    def test_the_memory_fraction_is_of_the_total(self) -> None:
        allocator = Allocator(7 * GiB, total=8 * GiB)

        allocator.set_memory_fraction(0.5)

        assert allocator.limit == 4 * GiB

    def test_an_allocation_beyond_the_memory_fraction_fails(self) -> None:
        allocator = Allocator(100 * MiB)
        allocator.set_memory_fraction(0.5)
        allocator.malloc(40 * MiB)

        with pytest.raises(AllocationFailed):
            allocator.malloc(12 * MiB)

    def test_a_fraction_of_one_removes_the_limit(self) -> None:
        allocator = Allocator(100 * MiB)
        allocator.set_memory_fraction(0.5)

        allocator.set_memory_fraction(1.0)

        assert allocator.limit == 100 * MiB

    def test_an_invalid_fraction_is_rejected(self) -> None:
        with pytest.raises(UsageError, match=r"must be between 0 and 1, not 1\.5"):
            Allocator(GiB).set_memory_fraction(1.5)

    def test_a_device_without_a_size_rejects_a_fraction(self) -> None:
        with pytest.raises(UsageError, match="requires a device with a known capacity"):
            Allocator().set_memory_fraction(0.5)


class TestFigures:
    def test_peaks_stay_until_they_are_reset(self) -> None:
        allocator = Allocator()
        allocator.free(allocator.malloc(30 * MiB))
        peaks = (allocator.peak_allocated, allocator.peak_requested, allocator.peak_reserved)

        allocator.empty_cache()
        allocator.malloc(100)
        allocator.reset_peaks()

        assert peaks == (30 * MiB, 30 * MiB, 30 * MiB)
        assert (allocator.peak_allocated, allocator.peak_requested, allocator.peak_reserved) == (
            512,
            100,
            2 * MiB,
        )

    def test_reserved_memory_is_allocated_cached_or_fragmented(self) -> None:
        allocator = Allocator()
        kept = allocator.malloc(4 * MiB)
        allocator.free(allocator.malloc(30 * MiB))

        assert kept.size == allocator.allocated == 4 * MiB
        assert allocator.cached == 30 * MiB
        assert allocator.fragmented == 16 * MiB
        assert allocator.reserved == 50 * MiB

    def test_accumulated_statistics_can_be_reset(self) -> None:
        allocator = Allocator()
        kept = allocator.malloc(30 * MiB)
        allocator.reset_accumulated()

        allocator.free(kept)

        stats = allocator.stats()
        assert stats["allocated_bytes.all.allocated"] == 0
        assert stats["allocated_bytes.all.freed"] == 30 * MiB
        assert stats["allocated_bytes.all.current"] == 0

    def test_segments_are_described_block_by_block(self) -> None:
        allocator = Allocator(base_address=lambda size, stream: 0x4000_0000)
        allocator.malloc(3_000_000)

        assert allocator.segments() == [
            {
                "address": 0x4000_0000,
                "total_size": 20 * MiB,
                "allocated_size": 3_000_320,
                "active_size": 3_000_320,
                "requested_size": 3_000_000,
                "stream": 0,
                "segment_type": "large",
                "is_expandable": False,
                "blocks": [
                    {
                        "address": 0x4000_0000,
                        "size": 3_000_320,
                        "requested_size": 3_000_000,
                        "state": "active_allocated",
                    },
                    {
                        "address": 0x4000_0000 + 3_000_320,
                        "size": 20 * MiB - 3_000_320,
                        "requested_size": 0,
                        "state": "inactive",
                    },
                ],
            }
        ]
