"""What was there before a CUDA history started.

A history is a ring: of a long run it holds the end. But it starts from a state that it betrays: blocks that are alive
now and were not allocated in it, and blocks freed in it that it never allocated. Read backwards from the present, both
the blocks and the segments of its first moment follow.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Entry = Mapping[str, Any]
"""As torch gives it: action, addr, size, stream, time_us, frames, user_metadata."""

SEGMENT_ACTIONS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Whether an action takes memory from the device or gives it back."""


class InitialBlock(NamedTuple):
    """A block that was there."""

    requested: int
    block_size: int | None
    """None where nothing says, because the block is gone by now: its addresses tell (see `cuda_blocks`)."""
    stream: int
    frames: Sequence[Mapping[str, Any]]
    """The stack that allocated it."""


class InitialState(NamedTuple):
    """A device at the first moment of its history."""

    blocks: dict[int, InitialBlock]
    """By address."""
    segments: dict[int, int]
    """Address → size of the segments that are no expandable ones."""
    reserved: int


def initial_state(trace: Sequence[Entry], segments: Sequence[Mapping[str, Any]]) -> InitialState:
    """The state before `trace`, given the segments after it."""
    blocks = blocks_in_use(segments)
    plain = {
        segment["address"]: segment["total_size"] for segment in segments if not segment.get("is_expandable")
    }
    reserved = sum(segment["total_size"] for segment in segments)
    for entry in reversed(trace):
        action = entry["action"]
        if action == "alloc":
            blocks.pop(entry["addr"], None)
        elif action == "free_requested":
            blocks[entry["addr"]] = InitialBlock(
                entry["size"], None, entry["stream"], entry.get("frames", ())
            )
        elif action in SEGMENT_ACTIONS:
            reserved -= SEGMENT_ACTIONS[action] * entry["size"]
            if action == "segment_alloc":
                plain.pop(entry["addr"], None)
            elif action == "segment_free":
                plain[entry["addr"]] = entry["size"]
    return InitialState(blocks, plain, reserved)


def blocks_in_use(segments: Sequence[Mapping[str, Any]]) -> dict[int, InitialBlock]:
    """Address → block, of those in the program's hands."""
    blocks: dict[int, InitialBlock] = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"] == "active_allocated":
                requested = block.get("requested_size", block["size"])
                blocks[address] = InitialBlock(
                    requested, block["size"], segment["stream"], block.get("frames", ())
                )
            address += block["size"]
    return blocks


def largest_free_block(segments: Sequence[Mapping[str, Any]]) -> int:
    """The largest block that is free now."""
    sizes = (
        block["size"] for segment in segments for block in segment["blocks"] if block["state"] == "inactive"
    )
    return max(sizes, default=0)
