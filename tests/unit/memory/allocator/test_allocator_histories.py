"""The simulated allocator, compared with recordings of the real allocator (H200, torch 2.11; see
tests/gpu/record_histories.py)."""

from functools import cache
from pathlib import Path

import pytest

from history_replay import History, Replay
from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import Block
from legroom.units import GiB, KiB, MiB

PATHS = sorted((Path(__file__).parents[3] / "data" / "histories").glob("*.json.gz"))
NAMES = [path.name.removesuffix(".json.gz") for path in PATHS]
WITH_STATS = [path for path in PATHS if "_step_" not in path.name]
ERRORS = [path for path in PATHS if "_error_" in path.name]

PLACED_BY_CHANCE = "h200_roundup_transformer"
"""In this recording, CUDA placed segments upwards in a gap of 400 MiB that a library had left. The recorded program
does not show this gap. As a result, the allocator chose the other of two blocks of equal size and needed one 20 MiB
segment less."""


@cache
def read(path: Path) -> History:
    return History.read(path)


@cache
def replayed(path: Path) -> Replay:
    return read(path).replay()


def test_there_are_recordings_of_every_kind() -> None:
    kinds = {
        "step",
        "cap",
        "expandable",
        "max_split",
        "roundup",
        "collect",
        "streams",
        "error",
        "large_segment",
    }

    assert kinds <= {kind for kind in kinds if any(f"h200_{kind}" in name for name in NAMES)}


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_addresses_segments_failures_and_peaks_agree(path: Path) -> None:
    result = replayed(path)

    assert result.mismatches == 0, "\n".join(result.examples)
    assert result.events > 40


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_the_peaks_agree_without_recorded_addresses(path: Path) -> None:
    history = read(path)
    result = history.replay(with_addresses=False)

    if PLACED_BY_CHANCE in path.name:
        assert abs(result.allocator.peak_reserved - history.peaks[1]) == 20 * MiB
    else:
        assert result.mismatches == 0, "\n".join(result.examples)


@pytest.mark.parametrize("path", WITH_STATS, ids=lambda path: path.name)
def test_memory_stats_agree(path: Path) -> None:
    history = read(path)
    # If several streams finish at once, the order in which their blocks are merged is not recorded.
    ignored = "inactive_split" if "streams" in path.name else "nothing"

    stats = replayed(path).allocator.stats()

    assert history.stats.keys() == stats.keys()
    assert {key: value for key, value in stats.items() if not key.startswith(ignored)} == {
        key: value for key, value in history.stats.items() if not key.startswith(ignored)
    }


@pytest.mark.parametrize("path", WITH_STATS, ids=lambda path: path.name)
def test_the_final_segments_agree_block_by_block(path: Path) -> None:
    history = read(path)

    segments = replayed(path).allocator.segments()

    assert [
        {
            **{key: segment[key] for key in recorded if key != "blocks"},
            "blocks": [[block["address"], block["size"], block["state"]] for block in segment["blocks"]],
        }
        for segment, recorded in zip(segments, history.segments, strict=True)
    ] == [
        {**recorded, "blocks": [[address, size, state] for address, size, _, state in recorded["blocks"]]}
        for recorded in history.segments
    ]


@pytest.mark.parametrize("path", ERRORS, ids=lambda path: path.name)
def test_the_sizes_in_error_messages_agree(path: Path) -> None:
    history = read(path)
    allocator = Allocator(history.capacity, settings=history.settings, total=history.total)
    live: dict[int, Block] = {}
    errors = iter(history.errors)

    for action, address, size, _ in history.rows:
        if action == "set_limit":
            allocator.set_limit(size)
        elif action == "alloc":
            live[address] = allocator.malloc(size)
        elif action == "free_requested":
            allocator.free(live.pop(address))
        elif action == "oom":
            with pytest.raises(AllocationFailed) as failure:
                allocator.malloc(size)
            text = next(errors)["text"]
            unallocated = allocator.reserved - allocator.allocated
            assert f"Tried to allocate {in_torch_format(failure.value.segment_bytes)}. GPU 0" in text
            assert f"Of the allocated memory {in_torch_format(allocator.allocated)} is allocated" in text
            assert f"and {in_torch_format(unallocated)} is reserved by PyTorch but unallocated" in text

    assert next(errors, None) is None


def in_torch_format(size: int) -> str:
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size > unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
