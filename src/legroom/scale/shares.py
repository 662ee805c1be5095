"""Splits a global batch among ranks or devices by shares.

Shares are non-negative numbers, and only their ratio matters. Every rank computes the same split.
"""

from collections.abc import Sequence

from legroom.errors import UsageError


def split_by_shares(batch_size: int, shares: Sequence[float]) -> list[int]:
    """Split a batch in proportion to `shares`, and return the number of samples for each share. The numbers are
    rounded down, and the remaining samples are assigned to the shares with the largest fractional parts. If fractions
    are equal, the first share gets the sample.

    >>> split_by_shares(10, [1, 1, 1]), split_by_shares(8, [3, 1]), split_by_shares(6, [0, 1, 1])
    ([4, 3, 3], [6, 2], [0, 3, 3])
    """
    total = sum(shares)
    exact = [batch_size * share / total for share in shares]
    counts = [int(each) for each in exact]
    by_fraction = sorted(range(len(shares)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_fraction[: batch_size - sum(counts)]:
        counts[index] += 1
    return counts


def numbers_of(shares: Sequence[float]) -> list[float]:
    try:
        return [float(share) for share in shares]
    except (TypeError, ValueError):
        raise UsageError(
            f"shares={shares!r} is not valid. Pass one number per GPU, for example `shares=[2, 1]`."
        ) from None


def checked_shares(shares: Sequence[float] | None, count: int, *, zero_allowed: bool) -> list[float]:
    """Return the user's shares, or equal shares if `shares` is None. Raises UsageError if the shares are invalid."""
    if shares is None:
        return [1.0] * count
    given = numbers_of(shares)
    if len(given) != count:
        raise UsageError(f"shares= must contain one number per device: expected {count}, got {len(given)}.")
    if any(not share >= 0 for share in given) or sum(given) == 0:
        raise UsageError(
            "shares= must contain non-negative numbers, and at least one must be greater than 0."
        )
    if not zero_allowed and 0 in given:
        raise UsageError(
            "A rank with a share of 0 would receive no samples. Start fewer ranks, or pass shares greater than 0."
        )
    return given


MIN_DIFFERENCE = 0.1
"""Devices whose memory differs by less than this fraction get equal shares."""


def shares_by_memory(available: Sequence[float]) -> list[float]:
    """Return shares in proportion to the available memory, or equal shares if the memory is nearly the same."""
    smallest, largest = min(available), max(available)
    if smallest <= 0 or largest <= smallest * (1 + MIN_DIFFERENCE):
        return [1.0] * len(available)
    return [each / largest for each in available]
