"""Rows divided by shares: whole, none lost, none twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.scale.shares import checked_shares, divided, shares_of_room

shares = st.lists(st.floats(0, 100), min_size=1, max_size=8).filter(lambda each: sum(each) > 0.01)


@given(st.integers(0, 5000), shares)
def test_all_rows_are_given_out_and_none_is_a_whole_row_off(rows: int, each: list[float]) -> None:
    counts = divided(rows, each)
    assert sum(counts) == rows
    for count, share in zip(counts, each, strict=True):
        assert abs(count - rows * share / sum(each)) < 1 + 1e-6


def test_a_share_of_nothing_gets_no_row() -> None:
    assert divided(7, [0, 1, 1]) == [0, 4, 3]


def test_shares_are_equal_where_none_are_given() -> None:
    assert checked_shares(None, 3, zero_allowed=False) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("given_shares", "sentence"),
    [
        ([1, 2], "2 numbers for 3 devices"),
        ([1, -1, 1], "from 0 up"),
        ([0, 0, 0], "not all are 0"),
        ([0, 1, 1], "leaves a rank without work"),
    ],
)
def test_shares_that_make_no_sense_are_refused(given_shares: list[float], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        checked_shares(given_shares, 3, zero_allowed=False)


def test_gpus_that_hardly_differ_get_the_same() -> None:
    assert shares_of_room([100, 95]) == [1.0, 1.0]


def test_a_gpu_with_half_the_room_gets_half_the_rows() -> None:
    assert shares_of_room([200, 100]) == [1.0, 0.5]
