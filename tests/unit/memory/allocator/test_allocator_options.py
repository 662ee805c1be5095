"""The effect of each option of the allocator."""

import pytest

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.units import KiB, MiB


def allocator_with(text: str, capacity: int | None = None) -> Allocator:
    return Allocator(capacity, settings=AllocatorSettings.parse(text))


class TestMaxSplitSize:
    def test_a_block_above_the_limit_is_not_split(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(100 * MiB))

        allocator.malloc(30 * MiB)

        assert allocator.reserved == 130 * MiB

    def test_a_block_below_the_limit_is_split(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(60 * MiB))

        allocator.malloc(30 * MiB)

        assert allocator.reserved == 60 * MiB

    def test_an_oversize_block_serves_a_request_of_similar_size_without_splitting(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(100 * MiB))

        assert allocator.malloc(90 * MiB).size == 100 * MiB

    def test_a_block_more_than_20_mib_larger_is_not_used(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(100 * MiB))

        allocator.malloc(80 * MiB)

        assert allocator.reserved == 180 * MiB

    def test_max_non_split_rounding_limits_the_difference(self) -> None:
        allocator = allocator_with("max_split_size_mb:64,max_non_split_rounding_mb:30")
        allocator.free(allocator.malloc(100 * MiB))

        assert allocator.malloc(80 * MiB).size == 100 * MiB

    def test_a_full_device_releases_one_sufficient_oversize_block(self) -> None:
        allocator = allocator_with("max_split_size_mb:64", 400 * MiB)
        for block in [allocator.malloc(size * MiB) for size in (100, 150, 40)]:
            allocator.free(block)

        allocator.malloc(126 * MiB)

        assert allocator.num_alloc_retries == 0
        assert allocator.reserved == (100 + 40 + 126) * MiB

    def test_a_full_device_releases_oversize_blocks_largest_first(self) -> None:
        allocator = allocator_with("max_split_size_mb:64", 300 * MiB)
        for block in [allocator.malloc(size * MiB) for size in (70, 90, 80, 40)]:
            allocator.free(block)

        allocator.malloc(160 * MiB)

        assert allocator.num_alloc_retries == 0
        assert allocator.reserved == (70 + 40 + 160) * MiB

    def test_oversize_blocks_are_counted(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(64 * MiB))
        allocator.malloc(65 * MiB)

        stats = allocator.stats()

        assert stats["max_split_size"] == 64 * MiB
        assert (stats["oversize_allocations.allocated"], stats["oversize_allocations.current"]) == (2, 1)
        assert stats["oversize_segments.current"] == 2


class TestRoundupPower2Divisions:
    @pytest.mark.parametrize(
        ("asked", "charged"),
        [
            (1200 * KiB, 1280 * KiB),
            (1024 * KiB, 1024 * KiB),
            (1281 * KiB, 1536 * KiB),
            (1200, 1536),
            (2049, 2560),
            (2000, 2048),
        ],
    )
    def test_sizes_are_rounded_up_to_the_next_power_of_two_division(self, asked: int, charged: int) -> None:
        assert allocator_with("roundup_power2_divisions:4").malloc(asked).size == charged

    def test_a_list_applies_to_its_intervals_only(self) -> None:
        allocator = allocator_with("roundup_power2_divisions:[16:1,32:2,>:1]")

        assert allocator.malloc(17 * MiB).size == 18 * MiB
        assert allocator.malloc(33 * MiB).size == 48 * MiB
        assert allocator.malloc(65 * MiB).size == 66 * MiB


class TestGarbageCollection:
    def make(self, changes: list[int] | None = None) -> Allocator:
        settings = AllocatorSettings.parse("garbage_collection_threshold:0.5")
        allocator = Allocator(
            200 * MiB, settings=settings, on_segment=changes.append if changes is not None else None
        )
        allocator.set_limit(190 * MiB)
        return allocator

    def test_segments_idle_for_longer_than_the_average_are_released(self) -> None:
        changes: list[int] = []
        allocator = self.make(changes)
        idle, busy = allocator.malloc(50 * MiB), allocator.malloc(60 * MiB)
        allocator.free(idle)
        for _ in range(5):
            allocator.free(busy)
            busy = allocator.malloc(60 * MiB)
        allocator.free(busy)

        allocator.malloc(62 * MiB)

        assert changes == [50 * MiB, 60 * MiB, -50 * MiB, 62 * MiB]

    def test_below_the_threshold_the_cache_is_kept(self) -> None:
        allocator = self.make()
        allocator.free(allocator.malloc(40 * MiB))

        allocator.malloc(50 * MiB)

        assert allocator.reserved == 90 * MiB

    def test_above_the_threshold_idle_segments_are_released_first(self) -> None:
        allocator = self.make()
        allocator.free(allocator.malloc(100 * MiB))

        allocator.malloc(110 * MiB)

        assert allocator.reserved == 110 * MiB
        assert allocator.num_alloc_retries == 0

    def test_without_a_limit_nothing_is_collected(self) -> None:
        allocator = allocator_with("garbage_collection_threshold:0.5", 300 * MiB)
        allocator.free(allocator.malloc(100 * MiB))

        allocator.malloc(110 * MiB)

        assert allocator.reserved == 210 * MiB


class TestLargeSegmentSize:
    def test_requests_from_1_to_10_mib_use_a_large_segment(self) -> None:
        allocator = allocator_with("large_segment_size_mb:64")

        allocator.malloc(2 * MiB)
        first = allocator.reserved
        allocator.malloc(70 * MiB)

        assert (first, allocator.reserved) == (64 * MiB, 134 * MiB)


class TestFractionOption:
    def test_the_limit_applies_from_the_start(self) -> None:
        assert allocator_with("per_process_memory_fraction:0.25", 400 * MiB).limit == 100 * MiB


class TestExpandableSegments:
    def test_segments_grow_by_pages_of_2_and_20_mib(self) -> None:
        allocator = allocator_with("expandable_segments:True")

        allocator.malloc(1)
        small = allocator.reserved
        allocator.malloc(21 * MiB)

        assert (small, allocator.reserved) == (2 * MiB, 42 * MiB)

    def test_a_larger_request_uses_the_free_end_of_the_segment(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        first = allocator.malloc(15 * MiB)

        second = allocator.malloc(25 * MiB)

        assert second.address == first.address + 15 * MiB
        assert allocator.reserved == 40 * MiB

    def test_remainders_are_split_off_from_512_bytes(self) -> None:
        allocator = allocator_with("expandable_segments:True")

        assert allocator.malloc(20 * MiB - 512).size == 20 * MiB - 512

    def test_empty_cache_releases_only_completely_free_pages(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        blocks = [allocator.malloc(10 * MiB) for _ in range(10)]
        for block in blocks[1:7]:
            allocator.free(block)
        releasable = allocator.cached

        allocator.empty_cache()

        assert releasable == 40 * MiB
        assert allocator.reserved == 60 * MiB
        assert allocator.allocated == 40 * MiB
        assert allocator.fragmented == 20 * MiB

    def test_released_pages_are_mapped_first(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        blocks = [allocator.malloc(20 * MiB) for _ in range(5)]
        allocator.free(blocks[1])
        allocator.free(blocks[2])
        allocator.empty_cache()

        assert allocator.malloc(40 * MiB).address == blocks[1].address

    def test_a_segment_without_pages_is_removed(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        allocator.free(allocator.malloc(100 * MiB))

        allocator.empty_cache()

        assert (allocator.reserved, allocator.segments()) == (0, [])

    def test_a_larger_gap_is_preferred_to_the_end_of_the_segment(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        gap = allocator.malloc(15 * MiB)
        for size in (5, 8):
            allocator.malloc(size * MiB)
        allocator.free(gap)
        assert allocator.largest_free_block == 15 * MiB
        address = gap.address

        # 12 MiB are mapped at the end, which is a closer fit than the gap of 15 MiB, but the end could grow further.
        assert allocator.malloc(11 * MiB).address == address

    def test_a_full_device_releases_pages_of_other_streams(self) -> None:
        allocator = allocator_with("expandable_segments:True", 100 * MiB)
        allocator.free(allocator.malloc(60 * MiB, stream=1))

        allocator.malloc(80 * MiB, stream=2)

        assert allocator.reserved == 80 * MiB
        assert allocator.num_alloc_retries == 1

    def test_the_statistics_are_correct_after_a_failure(self) -> None:
        allocator = allocator_with("expandable_segments:True", 100 * MiB)
        held = allocator.malloc(60 * MiB)

        with pytest.raises(AllocationFailed):
            allocator.malloc(60 * MiB)
        allocator.free(held)
        allocator.empty_cache()

        assert (allocator.allocated, allocator.reserved) == (0, 0)

    def test_a_request_larger_than_the_address_space_fails(self) -> None:
        with pytest.raises(AllocationFailed):
            allocator_with("expandable_segments:True", 100 * MiB).malloc(1 << 50)

    def test_a_device_without_a_limit_serves_any_request(self) -> None:
        assert allocator_with("expandable_segments:True").malloc(1 << 42).size == 1 << 42

    def test_a_second_address_range_is_reserved_if_the_first_has_no_room(self) -> None:
        ranges: list[int] = []

        def base_address(size: int, stream: int) -> int:
            ranges.append(size)
            return len(ranges) << 40

        settings = AllocatorSettings(expandable_segments=True)
        allocator = Allocator(160 * MiB, settings=settings, base_address=base_address)
        gap = allocator.malloc(40 * MiB)
        allocator.malloc(60 * MiB)
        allocator.free(gap)

        # The range of 180 MiB has 40 MiB free before and 80 MiB free after the used part.
        allocator.malloc(100 * MiB)

        assert ranges == [180 * MiB, 180 * MiB]
        assert allocator.reserved == 160 * MiB

    def test_after_switching_off_expandable_blocks_are_not_reused(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        allocator.free(allocator.malloc(40 * MiB))

        allocator.change_settings(AllocatorSettings())
        allocator.malloc(30 * MiB)

        assert [segment["is_expandable"] for segment in allocator.segments()] == [True, False]
