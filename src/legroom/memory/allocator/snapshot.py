"""Segments in the format of `torch.cuda.memory_snapshot()`."""

from collections.abc import Iterable
from typing import Any

from legroom.memory.allocator.blocks import ALLOCATED, FREE, STATE_NAMES, UNMAPPED, Block, Segment
from legroom.memory.allocator.expandable_segments import free_pages


def describe_segments(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """The segments by address. An expandable segment has one entry per mapped range."""
    in_order = sorted(segments, key=lambda segment: segment.address)
    return [_describe(run) for segment in in_order for run in _mapped_runs(segment)]


def releasable_bytes(block: Block) -> int:
    """The bytes of a free block that can be released."""
    if block.segment.expandable:
        begin, end = free_pages(block)
        return end - begin
    return block.size if block.is_entire_segment else 0


def _mapped_runs(segment: Segment) -> list[list[Block]]:
    """The blocks of a segment, grouped by mapped range."""
    runs: list[list[Block]] = [[]]
    block: Block | None = segment.head
    while block is not None:
        if block.state == UNMAPPED:
            runs.append([])
        else:
            runs[-1].append(block)
        block = block.next
    return [run for run in runs if run]


def _describe(run: list[Block]) -> dict[str, Any]:
    first = run[0]
    active = [block for block in run if block.state != FREE]
    return {
        "address": first.address,
        "total_size": sum(block.size for block in run),
        "allocated_size": sum(block.size for block in run if block.state == ALLOCATED),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": first.stream,
        "segment_type": "small" if first.pool.is_small else "large",
        "is_expandable": first.segment.expandable,
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested if block.state != FREE else 0,
                "state": STATE_NAMES[block.state],
            }
            for block in run
        ],
    }
