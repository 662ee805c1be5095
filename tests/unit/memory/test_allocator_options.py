"""What each option of the allocator changes."""

import pytest

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.units import KiB, MiB


def allocator_with(text: str, capacity: int | None = None) -> Allocator:
    return Allocator(capacity, settings=AllocatorSettings.parse(text))


class TestMaxSplitSize:
    def test_a_block_of_that_size_is_not_split_for_a_smaller_request(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(100 * MiB))

        allocator.malloc(30 * MiB)

        assert allocator.reserved == 130 * MiB

    def test_a_block_below_it_is_split(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(60 * MiB))

        allocator.malloc(30 * MiB)

        assert allocator.reserved == 60 * MiB

    def test_a_larger_block_serves_a_request_of_nearly_its_size_whole(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(100 * MiB))

        assert allocator.malloc(90 * MiB).size == 100 * MiB

    def test_a_block_larger_by_twenty_mebibytes_does_not(self) -> None:
        allocator = allocator_with("max_split_size_mb:64")
        allocator.free(allocator.malloc(100 * MiB))

        allocator.malloc(80 * MiB)

        assert allocator.reserved == 180 * MiB

    def test_max_non_split_rounding_says_by_how_much_it_may_be_larger(self) -> None:
        allocator = allocator_with("max_split_size_mb:64,max_non_split_rounding_mb:30")
        allocator.free(allocator.malloc(100 * MiB))

        assert allocator.malloc(80 * MiB).size == 100 * MiB

    def test_on_a_full_device_one_sufficient_oversize_block_is_given_back_and_no_other(self) -> None:
        allocator = allocator_with("max_split_size_mb:64", 400 * MiB)
        for block in [allocator.malloc(size * MiB) for size in (100, 150, 40)]:
            allocator.free(block)

        allocator.malloc(126 * MiB)

        assert allocator.num_alloc_retries == 0
        assert allocator.reserved == (100 + 40 + 126) * MiB

    def test_on_a_full_device_oversize_blocks_go_largest_first_until_enough_is_free(self) -> None:
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
    def test_sizes_go_up_to_the_next_division_of_the_doubling_they_lie_in(
        self, asked: int, charged: int
    ) -> None:
        assert allocator_with("roundup_power2_divisions:4").malloc(asked).size == charged

    def test_a_list_holds_for_its_intervals_only(self) -> None:
        allocator = allocator_with("roundup_power2_divisions:[16:1,32:2,>:1]")

        assert allocator.malloc(17 * MiB).size == 18 * MiB
        assert allocator.malloc(33 * MiB).size == 48 * MiB
        assert allocator.malloc(65 * MiB).size == 66 * MiB


class TestGarbageCollection:
    def make(self, told: list[int] | None = None) -> Allocator:
        settings = AllocatorSettings.parse("garbage_collection_threshold:0.5")
        allocator = Allocator(
            200 * MiB, settings=settings, on_segment=told.append if told is not None else None
        )
        allocator.set_limit(190 * MiB)
        return allocator

    def test_segments_idle_for_longer_than_the_average_are_given_back(self) -> None:
        told: list[int] = []
        allocator = self.make(told)
        idle, busy = allocator.malloc(50 * MiB), allocator.malloc(60 * MiB)
        allocator.free(idle)
        for _ in range(5):
            allocator.free(busy)
            busy = allocator.malloc(60 * MiB)
        allocator.free(busy)

        allocator.malloc(62 * MiB)

        assert told == [50 * MiB, 60 * MiB, -50 * MiB, 62 * MiB]

    def test_below_the_threshold_the_cache_is_left_alone(self) -> None:
        allocator = self.make()
        allocator.free(allocator.malloc(40 * MiB))

        allocator.malloc(50 * MiB)

        assert allocator.reserved == 90 * MiB

    def test_above_the_threshold_idle_segments_go_before_a_new_one_is_taken(self) -> None:
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
    def test_requests_between_one_and_ten_mebibytes_take_such_a_segment(self) -> None:
        allocator = allocator_with("large_segment_size_mb:64")

        allocator.malloc(2 * MiB)
        first = allocator.reserved
        allocator.malloc(70 * MiB)

        assert (first, allocator.reserved) == (64 * MiB, 134 * MiB)


class TestFractionOption:
    def test_it_limits_from_the_start(self) -> None:
        assert allocator_with("per_process_memory_fraction:0.25", 400 * MiB).limit == 100 * MiB


class TestExpandableSegments:
    def test_memory_grows_by_pages_of_2_and_20_mebibytes(self) -> None:
        allocator = allocator_with("expandable_segments:True")

        allocator.malloc(1)
        small = allocator.reserved
        allocator.malloc(21 * MiB)

        assert (small, allocator.reserved) == (2 * MiB, 42 * MiB)

    def test_a_growing_request_uses_the_free_end_of_the_segment(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        first = allocator.malloc(15 * MiB)

        second = allocator.malloc(25 * MiB)

        assert second.address == first.address + 15 * MiB
        assert allocator.reserved == 40 * MiB

    def test_rests_are_split_off_from_512_bytes_on(self) -> None:
        allocator = allocator_with("expandable_segments:True")

        assert allocator.malloc(20 * MiB - 512).size == 20 * MiB - 512

    def test_emptying_the_cache_gives_back_wholly_free_pages_only(self) -> None:
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

    def test_gaps_that_were_given_back_are_filled_first(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        blocks = [allocator.malloc(20 * MiB) for _ in range(5)]
        allocator.free(blocks[1])
        allocator.free(blocks[2])
        allocator.empty_cache()

        assert allocator.malloc(40 * MiB).address == blocks[1].address

    def test_a_segment_with_no_page_left_is_forgotten(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        allocator.free(allocator.malloc(100 * MiB))

        allocator.empty_cache()

        assert (allocator.reserved, allocator.segments()) == (0, [])

    def test_a_larger_gap_fits_better_than_the_end_of_the_segment_which_can_grow(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        gap = allocator.malloc(15 * MiB)
        for size in (5, 8):
            allocator.malloc(size * MiB)
        allocator.free(gap)
        assert allocator.largest_free_block == 15 * MiB
        address = gap.address

        # The end has 12 MiB mapped: closer to 11 than the gap's 15, were it not for all that it could grow to.
        assert allocator.malloc(11 * MiB).address == address

    def test_a_full_device_gives_back_pages_of_other_streams(self) -> None:
        allocator = allocator_with("expandable_segments:True", 100 * MiB)
        allocator.free(allocator.malloc(60 * MiB, stream=1))

        allocator.malloc(80 * MiB, stream=2)

        assert allocator.reserved == 80 * MiB
        assert allocator.num_alloc_retries == 1

    def test_a_failure_leaves_the_account_right(self) -> None:
        allocator = allocator_with("expandable_segments:True", 100 * MiB)
        held = allocator.malloc(60 * MiB)

        with pytest.raises(AllocationFailed):
            allocator.malloc(60 * MiB)
        allocator.free(held)
        allocator.empty_cache()

        assert (allocator.allocated, allocator.reserved) == (0, 0)

    def test_a_request_beyond_any_device_fails(self) -> None:
        with pytest.raises(AllocationFailed):
            allocator_with("expandable_segments:True", 100 * MiB).malloc(1 << 50)

    def test_a_device_without_end_serves_any_request(self) -> None:
        assert allocator_with("expandable_segments:True").malloc(1 << 42).size == 1 << 42

    def test_where_neither_gap_nor_end_has_room_for_a_request_a_second_range_is_opened(self) -> None:
        ranges: list[int] = []

        def base_address(size: int, stream: int) -> int:
            ranges.append(size)
            return len(ranges) << 40

        settings = AllocatorSettings(expandable_segments=True)
        allocator = Allocator(160 * MiB, settings=settings, base_address=base_address)
        gap = allocator.malloc(40 * MiB)
        allocator.malloc(60 * MiB)
        allocator.free(gap)

        # The range of 180 MiB has 40 before and 80 behind what is in use.
        allocator.malloc(100 * MiB)

        assert ranges == [180 * MiB, 180 * MiB]
        assert allocator.reserved == 160 * MiB

    def test_switched_off_while_running_its_blocks_serve_no_new_request(self) -> None:
        allocator = allocator_with("expandable_segments:True")
        allocator.free(allocator.malloc(40 * MiB))

        allocator.change_settings(AllocatorSettings())
        allocator.malloc(30 * MiB)

        assert [segment["is_expandable"] for segment in allocator.segments()] == [True, False]
