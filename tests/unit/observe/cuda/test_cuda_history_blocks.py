"""Block sizes, compared with histories of the real allocator."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.observe.cuda.block_sizes import BlocksInUse
from legroom.observe.cuda.initial_state import initial_state
from legroom.units import MiB

HISTORIES = sorted((Path(__file__).parents[3] / "data" / "histories").glob("h200_*.json.gz"))


def load(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return data


def entries(rows: list[list[Any]]) -> list[dict[str, Any]]:
    return [
        {"action": action, "addr": addr, "size": size, "stream": stream}
        for action, addr, size, stream in rows
    ]


def segments(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        segment
        | {
            "blocks": [
                dict(zip(("address", "size", "requested_size", "state"), b, strict=True))
                for b in segment["blocks"]
            ]
        }
        for segment in data["segments"]
    ]


def process_entries(blocks: BlocksInUse, rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the peak of the total block size, and the sum of all block sizes."""
    peak, total = blocks.allocated, 0
    for row in rows:
        if row["action"] == "alloc":
            total += blocks.add(row["addr"], row["size"])
            peak = max(peak, blocks.allocated)
        elif row["action"] == "free_requested":
            blocks.remove(row["addr"])
        elif row["action"] == "segment_alloc":
            blocks.add_segment(row["addr"], row["size"])
        elif row["action"] == "segment_free":
            blocks.remove_segment(row["addr"])
    return peak, total


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.name.split(".")[0])
def test_block_sizes_agree_with_recorded_histories(path: Path) -> None:
    data = load(path)
    peak, total = process_entries(BlocksInUse(AllocatorSettings.parse(data["conf"])), entries(data["rows"]))
    assert peak == data["peak_alloc"]
    if "stats" in data:
        assert total == data["stats"]["allocated_bytes.all.allocated"]


@pytest.mark.parametrize(
    "path",
    [path for path in HISTORIES if "_step_" not in path.name][::3],
    ids=lambda path: path.name.split(".")[0],
)
def test_the_initial_state_is_computed_from_the_history(path: Path) -> None:
    """The second half of a history starts with the state after the first half."""
    data = load(path)
    rows = entries(data["rows"])
    settings = AllocatorSettings.parse(data["conf"])
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    whole = BlocksInUse(settings)
    process_entries(whole, first)
    start = initial_state(second, segments(data))
    half = BlocksInUse(settings)
    for address, size in start.segments.items():
        half.add_segment(address, size)
    for address in sorted(start.blocks, reverse=True):
        half.add_initial(address, start.blocks[address].requested, start.blocks[address].block_size)
    assert half.allocated == pytest.approx(whole.allocated, rel=0.01)
    assert process_entries(half, second)[0] == pytest.approx(process_entries(whole, second)[0], rel=0.01)


def test_a_small_remainder_belongs_to_the_block() -> None:
    blocks = BlocksInUse()
    blocks.add_segment(0, 20 * MiB)
    assert blocks.add(0, 19 * MiB + 1) == 20 * MiB


def test_a_large_remainder_is_split_off() -> None:
    blocks = BlocksInUse()
    blocks.add_segment(0, 20 * MiB)
    assert blocks.add(0, 18 * MiB) == 18 * MiB


def test_an_adjacent_segment_is_not_a_remainder() -> None:
    blocks = BlocksInUse()
    blocks.add_segment(0, 20 * MiB)
    blocks.add_segment(20 * MiB, 20 * MiB)
    assert blocks.add(0, 20 * MiB) == 20 * MiB


def test_a_block_is_found_by_any_address_in_it() -> None:
    blocks = BlocksInUse()
    blocks.add(1000, 512)
    assert blocks.block_at(1000) == 1000
    assert blocks.block_at(1511) == 1000
    assert blocks.block_at(1512) is None
    assert blocks.block_at(999) is None


def test_the_largest_gap_is_between_or_after_blocks() -> None:
    blocks = BlocksInUse()
    blocks.add_segment(0, 20 * MiB)
    blocks.add(4 * MiB, 2 * MiB)
    blocks.add(15 * MiB, 2 * MiB)
    assert blocks.largest_gap() == 9 * MiB


def test_a_remainder_from_before_the_history_is_found_when_the_next_block_is_allocated() -> None:
    blocks = BlocksInUse()
    blocks.add_segment(0, 40 * MiB)
    assert blocks.add_initial(0, 10 * MiB, None) == 10 * MiB
    blocks.add(10 * MiB + 512 * 1024, 5 * MiB)
    assert blocks.corrected == {0: 10 * MiB + 512 * 1024}


def test_a_distant_block_does_not_reveal_a_remainder() -> None:
    blocks = BlocksInUse()
    blocks.add_segment(0, 40 * MiB)
    blocks.add_initial(0, 10 * MiB, None)
    blocks.add(12 * MiB, 5 * MiB)
    assert blocks.corrected == {}
