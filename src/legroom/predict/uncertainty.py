"""Computes the uncertainty of a prediction: the number of bytes by which the reserved memory of a run may exceed it.

The reserved memory depends on two properties that a trace does not contain. First, the workspace sizes of some kernels
are uncertain (`ScratchAlloc.alternatives` lists the possible sizes). Each workspace is a small part of the peak, but a
workspace that does not fit any free block in the cache needs a new segment. Second, if several free blocks have the
same size, torch up to 2.12 uses the block at the lowest address, and the driver chooses the addresses.

Therefore a trace is replayed several times. The first replay uses the most likely alternative of every uncertain size,
the second replay uses the second most likely alternative, and so on. Other replays use random alternatives, the largest
alternative for some of the sizes, or other segment addresses. The estimate is the higher of two peaks: the peak of the
trace itself, and the peak with the most likely alternatives. The higher peak is used because a run fails if its
estimate is too low, but only wastes memory if its estimate is too high. The safe bound is based on the highest peak of
all replays. The random numbers are seeded, so the result for a trace is always the same.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.observe.cuda_rules.versions import RULES_VERSION
from legroom.predict.requests import MemoryRequest, ReplayPeaks, replay_requests

SUBSETS = (2, 1)
"""The numbers of subsets into which the uncertain sizes are divided. In each replay, the sizes of one subset use their
largest alternatives.
"""
ADDRESS_ORDERS = 2
RANDOM_DRAWS = 6
MIN_CASES, MAX_REQUESTS = 8, 500_000
"""`MIN_CASES` is the minimum number of combinations of alternatives that are tried. More combinations are tried until
the replays contain `MAX_REQUESTS` requests in total.
"""


VERSION_MARGINS = {"torch": 0.02, "cuDNN": 0.04}
"""The fraction of the peak that the safe bound adds if the rules do not cover the version of a library. With cuDNN
9.21, the reserved memory of 24 networks changed by -9% to +7%. The bound adds another 4% of the peak for all versions.
Releases of torch other than the measured release were not tested.
"""


class UncertainTrace(Protocol):
    @property
    def alternatives(self) -> dict[int, tuple[int, ...]]: ...

    def requests(self, *, instead: dict[int, int] | None = None) -> list[MemoryRequest]: ...


def likely_peaks(trace: UncertainTrace, settings: AllocatorSettings | None = None) -> ReplayPeaks:
    """Return the peaks of a trace on an unlimited device. The trace is replayed with the recorded sizes and with the
    most likely alternatives, and the higher peaks are returned.
    """
    peaks = replay_requests(trace.requests(), settings=settings)
    if trace.alternatives:
        other = replay_requests(trace.requests(instead=_of_rank(trace, 0)), settings=settings)
        return max(peaks, other, key=lambda one: one.reserved)
    return peaks


def uncertain_bytes(trace: UncertainTrace, settings: AllocatorSettings | None = None) -> int:
    """Return the number of bytes by which reserved memory may exceed `likely_peaks`."""
    likely = likely_peaks(trace, settings).reserved
    worst = max(
        replay_requests(requests, settings=settings, segment_address=segment_address).reserved
        for requests, segment_address in _cases(trace)
    )
    return max(0, worst - likely)


def fits(trace: UncertainTrace, capacity: int, settings: AllocatorSettings | None = None) -> bool:
    return all(
        replay_requests(requests, capacity, settings=settings, segment_address=segment_address).failed_at
        is None
        for requests, segment_address in [(trace.requests(), None), *_cases(trace)]
    )


def version_margin(differing: Mapping[str, str]) -> float:
    """Return the fraction of the peak that the safe bound adds for installed versions that differ from `RULES_VERSION`.

    `differing` maps each library to its installed version.
    """
    return sum(VERSION_MARGINS[library] for library in differing)


def version_note(differing: Mapping[str, str]) -> str:
    measured = f"torch {RULES_VERSION.torch} and cuDNN {RULES_VERSION.cudnn} on an {RULES_VERSION.gpu}"
    found = " and ".join(f"{library} {version}" for library, version in differing.items())
    return (
        f"The CUDA rules are based on measurements with {measured}, but {found} {'is' if len(differing) == 1 else 'are'} "
        f"installed, so the safe bound is {version_margin(differing):.0%} higher"
    )


def _cases(trace: UncertainTrace) -> Iterator[tuple[list[MemoryRequest], Callable[[int, int], int] | None]]:
    """Yield variants of the trace: memory requests, and a function that assigns addresses to segments. If the function
    is None, the addresses are consecutive.

    The most informative variants come first, because fewer variants are tried for long traces.
    """
    requests = trace.requests()
    for seed in range(ADDRESS_ORDERS):
        yield requests, _random_addresses(seed)
    most = max(MIN_CASES, MAX_REQUESTS // (len(requests) + 1))
    tried: list[dict[int, int]] = []
    for instead in _combinations(trace):
        if len(tried) == most:
            return
        if instead not in tried:
            tried.append(instead)
            yield trace.requests(instead=instead), None


def _combinations(trace: UncertainTrace) -> Iterator[dict[int, int]]:
    if not trace.alternatives:
        return
    yield _of_rank(trace, 0)
    yield from _largest(trace)
    yield from (_random(trace, seed) for seed in range(RANDOM_DRAWS))
    ranks = max(map(len, trace.alternatives.values()), default=0)
    yield from (_of_rank(trace, rank) for rank in range(1, ranks))


def _of_rank(trace: UncertainTrace, rank: int) -> dict[int, int]:
    """Return the `rank`-th alternative of every uncertain size. If a size has fewer alternatives, its last alternative
    is returned.
    """
    return {number: others[min(rank, len(others) - 1)] for number, others in trace.alternatives.items()}


def _random(trace: UncertainTrace, seed: int) -> dict[int, int]:
    """Return a random alternative for each uncertain size. Sizes with the same list of alternatives get the same
    alternative.
    """
    generator = random.Random(seed)
    chosen = {others: generator.choice(others) for others in sorted(set(trace.alternatives.values()))}
    return {number: chosen[others] for number, others in trace.alternatives.items()}


def _largest(trace: UncertainTrace) -> Iterator[dict[int, int]]:
    """Yield combinations with the largest alternatives of some uncertain sizes. In the last combination, every size is
    half its largest alternative. A workspace of medium size may fit in no free block, whereas a large workspace gets
    its own segment.

    A layer uses the same kernel in every step, so sizes with the same alternatives change together.
    """
    kinds = sorted(set(trace.alternatives.values()))
    random.Random(0).shuffle(kinds)
    for subsets in SUBSETS:
        for subset in range(subsets):
            chosen = set(kinds[subset::subsets])
            if chosen:
                yield {n: max(others) for n, others in trace.alternatives.items() if others in chosen}
    yield {n: max(others) // 2 for n, others in trace.alternatives.items()}


def _random_addresses(seed: int) -> Callable[[int, int], int]:
    generator = random.Random(seed)
    used: set[int] = set()

    def address(size: int, stream: int) -> int:
        while (slot := generator.randrange(1, 1 << 20)) in used:
            pass
        used.add(slot)
        return slot << 40  # far enough apart for any size

    return address
