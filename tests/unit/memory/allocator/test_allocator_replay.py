"""A replay reports differences between a history and the allocator."""

from pathlib import Path
from typing import Any

import pytest

from history_replay import History, replay
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.units import MiB

A, B = 0x5000_0000, 0x4000_0000


def rows() -> list[list[Any]]:
    """Return a history with two requests in one segment and one in another. All are freed, and then the cache is
    emptied."""
    return [
        ["segment_alloc", A, 20 * MiB, 0],
        ["alloc", A, 4 * MiB, 0],
        ["alloc", A + 4 * MiB, 4 * MiB, 0],
        ["segment_alloc", B, 30 * MiB, 0],
        ["alloc", B, 30 * MiB, 0],
        ["free_requested", B, 30 * MiB, 0],
        ["free_completed", B, 30 * MiB, 0],
        ["free_requested", A, 4 * MiB, 0],
        ["free_completed", A, 4 * MiB, 0],
        ["empty_cache", 0, 0, 0],
        ["segment_free", B, 30 * MiB, 0],
    ]


def test_a_correct_history_has_no_mismatch() -> None:
    assert replay(rows(), peaks=(38 * MiB, 50 * MiB)).mismatches == 0


def test_without_a_limit_released_memory_means_empty_cache() -> None:
    unmarked = [row for row in rows() if row[0] != "empty_cache"]

    assert replay([*unmarked, ["segment_alloc", B, 40 * MiB, 0], ["alloc", B, 40 * MiB, 0]]).mismatches == 0


@pytest.mark.parametrize(
    ("number", "row", "words"),
    [
        (2, ["alloc", A + 8 * MiB, 4 * MiB, 0], "4194304 bytes lie at 0x50800000, replayed at 0x50400000"),
        (3, ["segment_alloc", B, 32 * MiB, 0], "segments [('segment_alloc', 1073741824, 33554432, 0)]"),
        (10, ["segment_free", A, 20 * MiB, 0], "segments [('segment_free', 1342177280, 20971520, 0)]"),
        (4, ["oom", 0, 30 * MiB, 0], "31457280 bytes could not be allocated, replayed they could"),
        (7, ["free_requested", 0x1234, 4 * MiB, 0], "0x1234 is freed and was not allocated"),
    ],
)
def test_a_wrong_entry_is_reported(number: int, row: list[Any], words: str) -> None:
    false = rows()
    false[number] = row

    result = replay(false)

    assert result.mismatches > 0
    assert any(words in example for example in result.examples), result.examples


def test_wrong_peaks_are_reported() -> None:
    assert "peaks are (1, 2), replayed" in replay(rows(), peaks=(1, 2), with_addresses=False).examples[0]


def test_a_request_that_should_have_succeeded_is_reported() -> None:
    result = replay(rows(), capacity=40 * MiB)

    assert "31457280 bytes could be allocated, replayed they could not" in result.examples[0]


def test_wrong_settings_are_detected() -> None:
    path = Path(__file__).parents[3] / "data" / "histories" / "h200_max_split_sizes.json.gz"
    history = History.read(path)

    assert (
        replay(history.rows, settings=AllocatorSettings(ties="address"), capacity=history.total).mismatches
        > 0
    )
