"""Segment addresses, compared with recorded runs. Addresses are offsets in MiB from the first segment."""

from legroom.memory.allocator.device import AddressSpace
from legroom.units import MiB


def placed(space: AddressSpace, *sizes: int) -> list[int]:
    """Return the offset of each segment from the first small segment of a run, in MiB."""
    first = AddressSpace().segment(2 * MiB, 0)
    return [(space.segment(size * MiB, 0) - first) // MiB for size in sizes]


def test_before_the_first_kernel_segments_are_placed_downwards_in_units_of_32_mib() -> None:
    assert placed(AddressSpace(), 2, 20, 20, 20, 148) == [0, 74, -446, -478, -638]


def test_after_the_first_kernel_a_wide_gap_is_filled_upwards_before_segments_go_downwards() -> None:
    space = AddressSpace()
    placed(space, 2, 20, 20, 20)
    space.kernels_run()
    assert placed(space, 66, 148, 198, 98, 50) == [-414, -348, -200, -606, -670]


def test_the_lowest_gap_that_is_large_enough_is_used() -> None:
    space = AddressSpace()
    placed(space, 2, 24)
    assert placed(space, 38, 38, 26, 26, 20) == [-478, -542, -504, -440, -574]


def test_small_segments_fill_the_remainder_of_a_large_first_segment() -> None:
    large, small = placed(AddressSpace(), 114, 2)
    assert small - large == 114


def test_after_a_large_first_segment_the_wide_gap_is_filled_from_its_top() -> None:
    space = AddressSpace()
    first = placed(space, 100, 2, 20, 2, 20)[0]
    space.kernels_run()
    offsets = [place - first for place in placed(space, 20, 12, 32, 340, 20)]
    assert offsets == [480, 500, 448, -352, 416]


def test_a_library_is_placed_before_its_workspace() -> None:
    space = AddressSpace()
    placed(space, 2, 20)
    space.kernels_run()
    placed(space, 2)
    space.library_loaded()
    assert placed(space, 32, 20) == [-348, -316]
