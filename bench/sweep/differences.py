"""Compares the requests of sweep cases on a GPU with the requests of a trace."""

import itertools
from collections import Counter, defaultdict
from typing import NamedTuple

from bench.lib.table import print_table

BLOCK = 512
NOTABLE = 16 << 10
"""Differences below this number of bytes are not visible in a peak."""


class Difference(NamedTuple):
    """One case whose requests differ from the prediction."""

    name: str
    measured: int
    """The number of bytes at the peak on the GPU."""
    traced: int
    only_measured: list[int]
    """The requests that only the GPU made, largest first."""
    only_traced: list[int]

    @property
    def size(self) -> int:
        """The error of the peak in bytes or, if the peak is correct, the largest request that differs."""
        return abs(self.measured - self.traced) or max((*self.only_measured, *self.only_traced), default=0)


def peak(requests: list[int]) -> int:
    """Return the peak of allocated bytes, rounded to blocks."""
    blocks = ((size + BLOCK - 1) // BLOCK * BLOCK if size > 0 else -((-size + BLOCK - 1) // BLOCK * BLOCK) for size in requests)  # fmt: skip
    return max(itertools.accumulate(blocks), default=0)


def difference(name: str, real: list[int], traced: list[int]) -> Difference:
    on_gpu, predicted = (Counter(size for size in one if size > BLOCK) for one in (real, traced))
    return Difference(
        name, peak(real), peak(traced), sorted((on_gpu - predicted).elements(), reverse=True),
        sorted((predicted - on_gpu).elements(), reverse=True),
    )  # fmt: skip


class Comparison:
    """Counts cases by agreement and collects the differences."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.others: dict[str, list[Difference]] = defaultdict(list)
        self.failures: dict[str, list[str]] = defaultdict(list)

    def add(self, name: str, real: list[int], traced: list[int]) -> None:
        operation = name.split(" ")[0]
        self.totals[operation] += 1
        found = difference(name, real, traced)
        if real == traced:
            self.counts["every request equal, in order"] += 1
        elif found.measured != found.traced:
            near = abs(found.measured - found.traced) <= NOTABLE
            self.counts["peak within 16 KiB" if near else "another peak"] += 1
        elif found.only_measured or found.only_traced:
            self.counts["peak equal, other requests"] += 1
        else:
            self.counts["peak and requests equal, in another order"] += 1
        if found.size > NOTABLE:
            self.others[operation].append(found)

    def report(self, rows: int) -> None:
        ordered = sorted(self.others.items(), key=lambda item: -max(one.size for one in item[1]))
        for operation, found in ordered[:rows]:
            wrong_peaks = sum(one.measured != one.traced for one in found)
            print(
                f"{operation}: {len(found)} of {self.totals[operation]} differ, {wrong_peaks} in their peaks"
            )
            for one in sorted(found, key=lambda one: -one.size)[:6]:
                print(
                    f"    {one.name.partition(' ')[2]}: {one.measured:,} measured, {one.traced:,} traced ({one.traced / max(1, one.measured) - 1:+.1%});"
                    f" only measured {one.only_measured[:5]}, only traced {one.only_traced[:5]}"
                )
        for why, names in sorted(self.failures.items(), key=lambda item: -len(item[1])):
            print(f"{why}: {len(names)}, {sorted({name.split(' ')[0] for name in names})[:12]}")
        print_table(
            f"{sum(self.totals.values())} cases of {len(self.totals)} operations",
            ["", "cases"],
            [[what, str(count)] for what, count in self.counts.most_common()],
        )
