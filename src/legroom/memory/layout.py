"""The segments and blocks of a device at one moment in a run.

A capture does not contain addresses, so the simulated allocator replays the recorded requests. If events were dropped,
the replay may reserve a different amount of memory than the recorded run, and `is_exact` is False.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legroom.memory.allocator.allocator import Allocator
from legroom.memory.allocator.blocks import Block
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc, Event, Free, SegmentChange


@dataclass(frozen=True, slots=True)
class LaidOutBlock:
    """A block of a segment."""

    size: int
    alloc: Alloc | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOutSegment:
    """A segment with its blocks in the order of their addresses."""

    size: int
    is_small: bool
    stream: int
    blocks: tuple[LaidOutBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The segments of a device, in the order of their addresses."""

    segments: tuple[LaidOutSegment, ...]
    reserved: int
    is_exact: bool
    """True if the simulated allocator reserves the same amount of memory as the recorded run."""


def layout_after(
    events: Sequence[Event],
    index: int,
    device: int,
    tags: Mapping[int, Category],
    settings: AllocatorSettings | None = None,
) -> Layout:
    allocator = Allocator(settings=settings)
    blocks: dict[int, tuple[Block, Alloc]] = {}
    recorded = 0
    for event in events[: index + 1]:
        if isinstance(event, Alloc):
            if event[4] == device and event[3] > 0:
                old = blocks.pop(event[1], None)
                if old is not None:
                    allocator.free(old[0])
                blocks[event[1]] = allocator.malloc(event[2] or event[3], event[5]), event
        elif isinstance(event, Free):
            freed = blocks.pop(event[1], None)
            if freed is not None:
                allocator.free(freed[0])
        elif isinstance(event, SegmentChange) and event.device == device:
            recorded += event.bytes
            if event.bytes < 0 and allocator.reserved > recorded:
                allocator.empty_cache()
    owners = {
        block.address: alloc._replace(category=tags.get(alloc.id, alloc.category))
        for block, alloc in blocks.values()
    }
    segments = tuple(
        LaidOutSegment(
            size=segment["total_size"],
            is_small=segment["segment_type"] == "small",
            stream=segment["stream"],
            blocks=tuple(
                LaidOutBlock(each["size"], owners.get(each["address"])) for each in segment["blocks"]
            ),
        )
        for segment in allocator.segments()
    )
    return Layout(segments=segments, reserved=allocator.reserved, is_exact=allocator.reserved == recorded)
