"""Computes the state of a device before its CUDA history starts.

The history is a ring buffer, so the history of a long run contains only the last entries. The state before the first
entry is derived from the current state and the entries. The initial state consists of all blocks that are alive now or
were freed in the history, but whose allocation is not in the history.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Entry = Mapping[str, Any]
"""An entry of the history, as torch returns it: action, addr, size, stream, time_us, frames, user_metadata."""

SEGMENT_ACTIONS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""The actions that reserve device memory (1) or release it (-1)."""


class InitialBlock(NamedTuple):
    requested: int
    block_size: int | None
    """The size of the block, or None if the block has since been freed. The size of a freed block is computed from the
    addresses (`block_sizes`).
    """
    stream: int
    frames: Sequence[Mapping[str, Any]]


class InitialState(NamedTuple):
    blocks: dict[int, InitialBlock]
    segments: dict[int, int]
    """The sizes of the segments that are not expandable, by address."""
    reserved: int


def initial_state(trace: Sequence[Entry], segments: Sequence[Mapping[str, Any]]) -> InitialState:
    """Return the state before the entries of `trace`. `segments` is the state after these entries."""
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
    sizes = (
        block["size"] for segment in segments for block in segment["blocks"] if block["state"] == "inactive"
    )
    return max(sizes, default=0)
