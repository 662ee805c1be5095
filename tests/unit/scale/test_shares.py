"""Splitting a batch by shares: every sample is assigned exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.scale.shares import checked_shares, shares_by_memory, split_by_shares

shares = st.lists(st.floats(0, 100), min_size=1, max_size=8).filter(lambda each: sum(each) > 0.01)


@given(st.integers(0, 5000), shares)
def test_all_samples_are_assigned_and_counts_are_within_one_sample_of_the_share(
    samples: int, each: list[float]
) -> None:
    counts = split_by_shares(samples, each)
    assert sum(counts) == samples
    for count, share in zip(counts, each, strict=True):
        assert abs(count - samples * share / sum(each)) < 1 + 1e-6


def test_a_share_of_zero_gets_no_samples() -> None:
    assert split_by_shares(7, [0, 1, 1]) == [0, 4, 3]


def test_shares_are_equal_by_default() -> None:
    assert checked_shares(None, 3, zero_allowed=False) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("given_shares", "message"),
    [
        ([1, 2], "expected 3, got 2"),
        ([1, -1, 1], "must contain non-negative numbers"),
        ([0, 0, 0], "at least one must be greater than 0"),
        ([0, 1, 1], "would receive no samples"),
    ],
)
def test_invalid_shares_are_rejected(given_shares: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        checked_shares(given_shares, 3, zero_allowed=False)


def test_similar_gpus_get_equal_shares() -> None:
    assert shares_by_memory([100, 95]) == [1.0, 1.0]


def test_a_gpu_with_half_the_memory_gets_half_the_share() -> None:
    assert shares_by_memory([200, 100]) == [1.0, 0.5]
