"""Which parameter mattered: the share of the metric's variation, by rank, that each parameter explains alone.

Trials are put into groups by the parameter's value (numbers into groups of equal count), and the variation between the
groups is set against the whole: the correlation ratio. Ranks instead of values, because one diverged trial would
outweigh all others; the epsilon-squared correction, because chance alone makes groups differ, the more so the smaller they are. It needs no
model, no library and no seed. What it cannot show is what two parameters do only together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

FEWEST_TRIALS = 6
"""Below this, groups are so small that any share would be chance."""


def importance(
    configs: Sequence[Mapping[str, Any]], values: Sequence[float], names: Sequence[str]
) -> dict[str, float]:
    """The share, 0 to 1, of each parameter that was tried with different values; largest first, {} for too few trials."""
    if len(values) < FEWEST_TRIALS:
        return {}
    ranks = _ranks(values)
    shares = {name: _explained(_groups([config.get(name) for config in configs]), ranks) for name in names}
    told = {name: share for name, share in shares.items() if share is not None}
    return dict(sorted(told.items(), key=lambda item: -item[1]))


def _ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their places."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2 + 1
        start = end + 1
    return ranks


def _groups(values: Sequence[Any]) -> list[int]:
    """Each trial's group: by value where there are few values, else numbers in groups of equal count."""
    most = max(2, min(5, len(values) // 4))
    numbers = [value for value in values if _is_number(value)]
    if len(set(numbers)) <= most or len(numbers) < len(values) - values.count(None):
        distinct: list[Any] = []  # choices may be lists, which no set takes
        for value in values:
            if value not in distinct:
                distinct.append(value)
        return [distinct.index(value) for value in values]
    ranks = _ranks(numbers)
    placed = iter(ranks)
    return [
        most if value is None else min(most - 1, int((next(placed) - 1) * most / len(ranks)))
        for value in values
    ]


def _explained(groups: Sequence[int], ranks: Sequence[float]) -> float | None:
    """Epsilon squared; None where all trials are in one group, or each in its own."""
    members: dict[int, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        members.setdefault(group, []).append(rank)
    count, kinds = len(ranks), len(members)
    mean = sum(ranks) / count
    whole = sum((rank - mean) ** 2 for rank in ranks)
    if kinds < 2 or kinds >= count or whole == 0:
        return None
    within = sum((rank - sum(of) / len(of)) ** 2 for of in members.values() for rank in of)
    between = whole - within
    return max(0.0, (between - (kinds - 1) * within / (count - kinds)) / whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
