"""Finds groups of storages that stay alive and whose number grows over most of the run.

Scans in a few consecutive iterations cannot distinguish a leak from a container that is being filled. A leak grows
until the end of the run, and none of its storages is freed. At each of the infrequent scans, this module counts the
live storages of each size. The counts are grouped by the scan in which the storages were first seen.

The growth of a group of storages (one size, or all sizes together) is steady if three conditions hold in the last two
thirds of the run:

- The number of storages that survived at least one scan increases at every scan.
- The rate of the growth stays about the same.
- Almost none of these storages is freed.

A container that is full after a third of the run, that is emptied, or whose items are replaced does not pass this test.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch

from legroom.observe.leaks.live_objects import bytes_of

MIN_ITERATIONS = 24
"""Before this number of iterations, growth does not count as steady."""
MIN_SCANS = 4
"""Growth is steady only if there are at least this many scans in the last two thirds of the run."""
MIN_DISTANCE = 1 / 16
"""The minimum distance between two compared scans, as a fraction of all iterations so far."""
MIN_RATE = 0.4
"""Growth is steady only if it never slows down below this fraction of the mean growth per iteration. The growth is
measured between consecutive scans.
"""
MAX_FREED = 0.1
"""Growth is steady only if at most this fraction of the added storages is freed."""
MAX_GROUPS = 2
TENSORS_PER_GROUP = 4
ALL_SIZES = -1

_Counts = Counter[tuple[int, int]]
"""The number of live storages for each size and for each scan in which they were first seen."""


class _Scan(NamedTuple):
    iteration: int
    previous: int
    """The iteration of the previous scan. All storages that survived a scan were created before this iteration."""
    counts: _Counts


class SurvivorHistory:
    """Counts, at each scan, the storages that have survived earlier scans. Only numbers are stored, no references."""

    def __init__(self) -> None:
        self._scans: list[_Scan] = []

    @property
    def last_iteration(self) -> int:
        return self._scans[-1].iteration if self._scans else 0

    def record(self, iteration: int, by_first_scan: Mapping[int, Iterable[torch.Tensor]]) -> None:
        counts: _Counts = Counter()
        for first, tensors in by_first_scan.items():
            for tensor in tensors:
                counts[bytes_of(tensor), first] += 1
                counts[ALL_SIZES, first] += 1
        self._scans.append(_Scan(iteration, self.last_iteration, counts))

    def steady_sizes(self) -> list[int]:
        """Return the storage sizes of the groups that grow steadily. The group that grows by the most bytes comes
        first. If only the total number of storages grows steadily, return `[ALL_SIZES]`.
        """
        recent = self._recent()
        if len(recent) < MIN_SCANS:
            return []
        sizes = {size for size, _ in recent[-1][1].counts}
        steady = {size: rate for size in sizes if (rate := _steady_rate(recent, size))}
        single = sorted((size for size in steady if size > 0), key=lambda size: -size * steady[size])
        return single[:MAX_GROUPS] or [size for size in steady if size == ALL_SIZES]

    def growth_per_iteration(self, size: int) -> float:
        """Return how many storages of this size are added per iteration, or 0 if the growth is not steady."""
        return _steady_rate(self._recent(), size)

    def survivors(self, size: int) -> int:
        """Return the number of live storages of this size that survived at least one scan. Storages that the first scan
        found are not counted.
        """
        counts, number = self._scans[-1].counts, len(self._scans)
        return sum(count for (each, first), count in counts.items() if each == size and 1 < first < number)

    def sample(
        self, size: int, by_first_scan: Mapping[int, list[torch.Tensor]], on_device: Iterable[int]
    ) -> list[torch.Tensor]:
        """Return surviving tensors of different ages, newest first. Storages first seen in the newest scan may be
        temporary, so they are excluded. `on_device` contains the `id`s of the tensors to choose from.
        """
        allowed = set(on_device)
        firsts = [first for first in sorted(by_first_scan, reverse=True) if 1 < first < len(self._scans)]
        chosen = []
        for first in firsts:
            fitting = [
                each
                for each in by_first_scan[first]
                if id(each) in allowed and size in (ALL_SIZES, bytes_of(each))
            ]
            chosen += fitting[-1:]
        if len(chosen) > TENSORS_PER_GROUP:
            chosen = [*chosen[: TENSORS_PER_GROUP - 1], chosen[-1]]
        return chosen

    def _recent(self) -> list[tuple[int, _Scan]]:
        """Return the scans in the last two thirds of the run, each with its index (starting at 1). Scans that follow
        another scan too closely are omitted, because rare growth is not visible between them.
        """
        last = self.last_iteration
        if last < MIN_ITERATIONS:
            return []
        recent: list[tuple[int, _Scan]] = []
        for number, scan in reversed(list(enumerate(self._scans, start=1))):
            if scan.iteration < last / 3:
                break
            if not recent or recent[0][1].previous - scan.previous >= MIN_DISTANCE * last:
                recent.insert(0, (number, scan))
        return recent


def _steady_rate(scans: list[tuple[int, _Scan]], size: int) -> float:
    totals = [
        sum(count for (each, first), count in scan.counts.items() if each == size and 1 < first < number)
        for number, scan in scans
    ]
    iterations = [scan.previous for _, scan in scans]
    grown = totals[-1] - totals[0]
    if len(scans) < MIN_SCANS or grown < MIN_SCANS:
        return 0.0
    mean = grown / (iterations[-1] - iterations[0])
    for (earlier, before), (later, after) in pairwise(zip(iterations, totals, strict=True)):
        if after - before < min(MIN_RATE * mean * (later - earlier), grown):
            return 0.0
    freed = sum(
        max(count - after.counts[size, first], 0)
        for (number, before), (_, after) in pairwise(scans)
        for (each, first), count in before.counts.items()
        if each == size and 1 < first < number
    )
    return mean if freed <= MAX_FREED * grown else 0.0


class DeviceTrend:
    """Determines at the end of the run whether the device memory still grew. Call `add` after a sampled iteration."""

    MAX_SAMPLES = 256

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []
        self._every = 1

    def add(self, iteration: int, allocated: int) -> None:
        if iteration % self._every:
            return
        self._samples.append((iteration, allocated))
        if len(self._samples) > self.MAX_SAMPLES:
            self._every *= 2
            self._samples = [each for each in self._samples if not each[0] % self._every]

    def growth_at_end(self) -> int | None:
        """Return by how many bytes device memory grew in the second half of the run, or None if unknown. The minimum
        over several iterations is used, so temporary tensors do not affect the result.
        """
        count = len(self._samples) // 8
        if count < 2 or not any(size for _, size in self._samples):
            return None
        middle, end = self._samples[len(self._samples) // 2 :][:count], self._samples[-count:]
        return min(size for _, size in end) - min(size for _, size in middle)
