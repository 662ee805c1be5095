"""Properties after any sequence of requests with any settings."""

from itertools import pairwise

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import Block
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.units import KiB, MiB

pytestmark = pytest.mark.slow

CONFIGURATIONS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:32,expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:2,>:1],garbage_collection_threshold:0.4",
    "garbage_collection_threshold:0.4,max_split_size_mb:24",
    "large_segment_size_mb:12,expandable_segments:True,garbage_collection_threshold:0.6",
)
CAPACITY = 300 * MiB
LARGEST_PAGE = 20 * MiB
"""The largest page of an expandable segment. A request fails if its whole page cannot be mapped, even if the request
is smaller."""
SIZES = st.one_of(
    st.integers(0, 4 * KiB),
    st.integers(4 * KiB, 2 * MiB),
    st.integers(2 * MiB, 90 * MiB),
    st.sampled_from([512, MiB - 512, MiB, MiB + 1, 10 * MiB, 20 * MiB, 32 * MiB, 400 * MiB]),
)
STREAMS = st.sampled_from([0, 0, 0, 7, 9])


class AnySequence(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live: list[Block] = []

    @initialize(
        text=st.sampled_from(CONFIGURATIONS), ties=st.sampled_from(["age", "address"]), keep_up=st.booleans()
    )
    def start(self, text: str, ties: str, keep_up: bool) -> None:
        settings = AllocatorSettings.parse(text, AllocatorSettings(ties=ties))
        self.reserved = 0
        self.highest = (0, 0, 0)
        self.allocator = Allocator(
            CAPACITY, settings=settings, on_segment=self.reserve, streams_are_synchronous=keep_up
        )

    def reserve(self, size: int) -> None:
        self.reserved += size

    @rule(size=SIZES, stream=STREAMS)
    def malloc(self, size: int, stream: int) -> None:
        try:
            block = self.allocator.malloc(size, stream)
        except AllocationFailed as failure:
            asked_of_device = failure.segment_bytes
        else:
            assert block.size >= max(size, 512)
            assert block.requested == size
            self.live.append(block)
            return
        limit = self.allocator.limit
        assert limit is not None
        assert self.allocator.reserved + asked_of_device > limit - LARGEST_PAGE

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.allocator.free(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stream=STREAMS)
    def record_stream(self, data: st.DataObject, stream: int) -> None:
        self.allocator.record_stream(data.draw(st.sampled_from(self.live)), stream)

    @rule()
    def empty_cache(self) -> None:
        self.allocator.empty_cache()

        assert self.allocator.cached == 0

    @rule()
    def complete_frees(self) -> None:
        self.allocator.complete_frees()

    @rule(limit=st.sampled_from([None, 100 * MiB, 250 * MiB]))
    def set_limit(self, limit: int | None) -> None:
        self.allocator.set_limit(limit)

    @rule()
    def reset_peaks(self) -> None:
        self.allocator.reset_peaks()
        self.highest = (0, 0, 0)

    @rule(text=st.sampled_from(CONFIGURATIONS))
    def change_settings(self, text: str) -> None:
        self.allocator.change_settings(AllocatorSettings.parse(text, self.allocator.settings))

    @invariant()
    def blocks_never_overlap_and_fill_their_segments(self) -> None:
        end_of_last = 0
        for segment in self.allocator.segments():
            assert segment["address"] >= end_of_last
            position = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == position
                position += block["size"]
            end_of_last = position
            assert position == segment["address"] + segment["total_size"]

    @invariant()
    def live_blocks_equal_those_of_the_program(self) -> None:
        allocated = {
            (block["address"], block["size"], block["requested_size"])
            for segment in self.allocator.segments()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }
        assert allocated == {(block.address, block.size, block.requested) for block in self.live}

    @invariant()
    def adjacent_free_blocks_are_merged(self) -> None:
        for segment in self.allocator.segments():
            for one, other in pairwise(segment["blocks"]):
                assert (one["state"], other["state"]) != ("inactive", "inactive")

    @invariant()
    def bytes_are_conserved(self) -> None:
        allocator = self.allocator
        by_state = {"inactive": 0, "active_allocated": 0, "active_pending_free": 0}
        for segment in allocator.segments():
            for block in segment["blocks"]:
                by_state[block["state"]] += block["size"]
        assert sum(by_state.values()) == allocator.reserved == self.reserved
        assert by_state["active_allocated"] == allocator.allocated
        assert by_state["inactive"] == allocator.cached + allocator.fragmented
        assert allocator.stats()["active_bytes.all.current"] == (
            by_state["active_allocated"] + by_state["active_pending_free"]
        )

    @invariant()
    def the_capacity_is_never_exceeded(self) -> None:
        assert self.allocator.reserved <= CAPACITY

    @invariant()
    def peaks_never_decrease(self) -> None:
        allocator = self.allocator
        peaks = (allocator.peak_allocated, allocator.peak_requested, allocator.peak_reserved)
        now = (allocator.allocated, allocator.requested, allocator.reserved)
        assert all(peak >= before for peak, before in zip(peaks, self.highest, strict=True))
        assert all(peak >= current for peak, current in zip(peaks, now, strict=True))
        self.highest = peaks

    @invariant()
    def free_blocks_of_partly_used_segments_are_counted(self) -> None:
        inactive = [
            block["size"]
            for segment in self.allocator.segments()
            if not segment["is_expandable"] and len(segment["blocks"]) > 1
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]
        stats = self.allocator.stats()
        assert stats["inactive_split.all.current"] == len(inactive)
        assert stats["inactive_split_bytes.all.current"] == sum(inactive)

    @invariant()
    def every_statistic_is_consistent(self) -> None:
        stats = self.allocator.stats()
        for key, value in stats.items():
            name, _, kind = key.rpartition(".")
            if kind == "current":
                assert value == stats[f"{name}.allocated"] - stats[f"{name}.freed"]
                assert value <= stats[f"{name}.peak"]
                # If the oversize limit changes during a run, a block may be counted only when it is freed.
                assert value >= 0 or name.startswith("oversize")
            if name.endswith(".all") and kind != "peak":
                pools = [
                    stats[f"{name.removesuffix('all')}{pool}.{kind}"] for pool in ("large_pool", "small_pool")
                ]
                assert value == sum(pools)

    def teardown(self) -> None:
        if not hasattr(self, "allocator"):
            return
        for block in self.live:
            self.allocator.free(block)
        self.allocator.complete_frees()
        self.live.clear()
        for segment in self.allocator.segments():
            assert [block["state"] for block in segment["blocks"]] == ["inactive"]
        assert self.allocator.allocated == self.allocator.requested == self.allocator.fragmented == 0
        self.allocator.empty_cache()
        assert self.allocator.reserved == self.reserved == 0
        assert self.allocator.segments() == []


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
