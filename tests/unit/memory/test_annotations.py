"""Annotations: how a run ended."""

from legroom.memory.annotations import ExitReason, GapEnded, RunEnded, find_ending


def test_the_last_ending_is_used() -> None:
    first = RunEnded(1.0, 1, ExitReason.RAISED, "E: x")
    last = RunEnded(2.0, 3, ExitReason.OS_EXIT)
    assert find_ending([first, last, GapEnded(3.0)]) == last


def test_a_killed_run_has_an_unknown_ending() -> None:
    assert find_ending([GapEnded(2.0)]) == RunEnded(2.0, None, ExitReason.UNKNOWN)
    assert find_ending([]).reason is ExitReason.UNKNOWN
