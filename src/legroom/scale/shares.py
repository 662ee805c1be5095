"""How the rows of a batch are divided: in whole rows, as near to the shares as can be, none lost and none twice.

Shares are any numbers that are not negative; only their ratio counts. Every rank computes the same division by itself.
"""

from collections.abc import Sequence

from legroom.errors import UsageError


def divided(rows: int, shares: Sequence[float]) -> list[int]:
    """`rows` as one whole number per share; what is left over goes to the largest fractions, the first one at a tie.

    >>> divided(10, [1, 1, 1]), divided(8, [3, 1]), divided(6, [0, 1, 1])
    ([4, 3, 3], [6, 2], [0, 3, 3])
    """
    whole = sum(shares)
    exact = [rows * share / whole for share in shares]
    counts = [int(each) for each in exact]
    by_fraction = sorted(range(len(shares)), key=lambda place: (counts[place] - exact[place], place))
    for place in by_fraction[: rows - sum(counts)]:
        counts[place] += 1
    return counts


def checked_shares(shares: Sequence[float] | None, places: int, *, zero_allowed: bool) -> list[float]:
    """Shares as a person gave them, one per place; equal ones where none were given."""
    if shares is None:
        return [1.0] * places
    given = [float(share) for share in shares]
    if len(given) != places:
        raise UsageError(f"shares= has {len(given)} numbers for {places} devices: give one for each")
    if any(not share >= 0 for share in given) or sum(given) == 0:
        raise UsageError("shares= are numbers from 0 up, and not all are 0")
    if not zero_allowed and 0 in given:
        raise UsageError(
            "a share of 0 leaves a rank without work: start one rank less, or give it a small share"
        )
    return given


ALIKE = 0.1
"""Room that differs by no more than this part is taken for the same."""


def shares_of_room(room: Sequence[float]) -> list[float]:
    """Shares in the ratio of each device's room for rows; equal ones where the room hardly differs."""
    least, most = min(room), max(room)
    if least <= 0 or most <= least * (1 + ALIKE):
        return [1.0] * len(room)
    return [each / most for each in room]
