"""What is not certain in a trace, and how much memory a run may reserve because of it.

Reserved memory depends on two things that a trace does not know. The sizes of some kernels' scratch are guesses (`Take.others` says
what else they may be): each is a small part of the peak, but what does not fit a hole of the cache takes a new segment. And where
free blocks of equal size compete, releases of torch up to 2.12 take the one at the lower address, which the driver decides.

So a trace is replayed several times: as if each guess had turned out as its likeliest, its second likeliest, ... alternative, as one drawn at
random, with the largest for some of them, and with segments placed otherwise. The estimate is the higher of two outcomes, as traced and with every guess
as its likeliest alternative: memory that is foreseen too low costs a run, too high only room. The highest of all is what the safe
bound reckons with. What is drawn is seeded: the same trace has the same doubt.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.observe.cuda_rules.versions import RULES_VERSION
from legroom.predict.requests import Peaks, Request, play

PARTS = (2, 1)
"""The guesses are cut into so many parts, and in each replay another part takes the largest of its alternatives: a half, all."""
PLACEMENTS = 2
"""Replays with other placements of segments."""
DRAWS = 6
"""Replays with alternatives drawn at random."""
LEAST, EFFORT = 8, 500_000
"""So many outcomes of guesses are tried at least; more as long as all their requests together are not more than this."""


VERSION_MARGINS = {"torch": 0.02, "cuDNN": 0.04}
"""Share of the peak that the safe bound adds for a library whose version the rules do not cover. cuDNN 9.21 changed the reserved
memory of 24 networks by -9% to +7%, and the bound adds 4% anyway. Other releases of torch were not measured."""


class Doubtful(Protocol):
    """A trace, as far as it is needed here."""

    @property
    def doubts(self) -> dict[int, tuple[int, ...]]: ...

    def requests(self, *, instead: dict[int, int] | None = None) -> list[Request]: ...


def likely(trace: Doubtful, settings: AllocatorSettings | None = None) -> Peaks:
    """The peaks of a trace on a device without end: the higher of its two likeliest outcomes."""
    peaks = play(trace.requests(), settings=settings)
    if trace.doubts:
        other = play(trace.requests(instead=_of_rank(trace, 0)), settings=settings)
        return max(peaks, other, key=lambda one: one.reserved)
    return peaks


def of(trace: Doubtful, settings: AllocatorSettings | None = None) -> int:
    """Bytes by which reserved memory may exceed what is likely."""
    said = likely(trace, settings).reserved
    worst = max(
        play(requests, settings=settings, place=place).reserved for requests, place in _variations(trace)
    )
    return max(0, worst - said)


def fits(trace: Doubtful, capacity: int, settings: AllocatorSettings | None = None) -> bool:
    """Whether a trace fits `capacity` bytes however its doubts turn out, as far as they are tried here."""
    return all(
        play(requests, capacity, settings=settings, place=place).failed_at is None
        for requests, place in [(trace.requests(), None), *_variations(trace)]
    )


def version_margin(differing: Mapping[str, str]) -> float:
    """Share of the peak that the safe bound adds because installed versions differ from `RULES_VERSION`.

    `differing`: library → its installed version.
    """
    return sum(VERSION_MARGINS[library] for library in differing)


def version_note(differing: Mapping[str, str]) -> str:
    """One line about these differences for the report."""
    measured = f"torch {RULES_VERSION.torch} and cuDNN {RULES_VERSION.cudnn} on an {RULES_VERSION.gpu}"
    found = " and ".join(f"{library} {version}" for library, version in differing.items())
    return (
        f"The CUDA rules were measured with {measured}; {found} {'is' if len(differing) == 1 else 'are'} installed, so the safe "
        f"bound is {version_margin(differing):.0%} higher"
    )


def _variations(trace: Doubtful) -> Iterator[tuple[list[Request], Callable[[int, int], int] | None]]:
    """The trace as it may come out too: requests, and where segments are placed (None: one after the other). Those that say most come first;
    of long traces fewer are tried."""
    requests = trace.requests()
    for seed in range(PLACEMENTS):
        yield requests, _anywhere(seed)
    patience = max(LEAST, EFFORT // (len(requests) + 1))
    tried: list[dict[int, int]] = []
    for instead in _outcomes(trace):
        if len(tried) == patience:
            return
        if instead not in tried:
            tried.append(instead)
            yield trace.requests(instead=instead), None


def _outcomes(trace: Doubtful) -> Iterator[dict[int, int]]:
    """Guesses as they may turn out: sizes for their ids."""
    if not trace.doubts:
        return
    yield _of_rank(trace, 0)
    yield from _largest(trace)
    yield from (_drawn(trace, seed) for seed in range(DRAWS))
    yield from (_of_rank(trace, rank) for rank in range(1, _ranks(trace)))


def _ranks(trace: Doubtful) -> int:
    return max(map(len, trace.doubts.values()), default=0)


def _of_rank(trace: Doubtful, rank: int) -> dict[int, int]:
    """Every guess as its `rank`-th alternative, or its last where there are fewer."""
    return {number: others[min(rank, len(others) - 1)] for number, others in trace.doubts.items()}


def _drawn(trace: Doubtful, seed: int) -> dict[int, int]:
    """For each kind of guess one of its alternatives."""
    dice = random.Random(seed)
    chosen = {others: dice.choice(others) for others in sorted(set(trace.doubts.values()))}
    return {number: chosen[others] for number, others in trace.doubts.items()}


def _largest(trace: Doubtful) -> Iterator[dict[int, int]]:
    """Some guesses as the largest of their alternatives, or as half of it: a middling size may fit no hole where a large one, for which a
    segment is there, does. The same layer gets the same kernel in every step, so guesses with the same alternatives turn out alike."""
    kinds = sorted(set(trace.doubts.values()))
    random.Random(0).shuffle(kinds)
    for parts in PARTS:
        for part in range(parts):
            chosen = set(kinds[part::parts])
            if chosen:
                yield {n: max(others) for n, others in trace.doubts.items() if others in chosen}
    yield {n: max(others) // 2 for n, others in trace.doubts.items()}


def _anywhere(seed: int) -> Callable[[int, int], int]:
    """Places segments in an order that has nothing to do with when they were asked for."""
    dice = random.Random(seed)
    taken: set[int] = set()

    def place(size: int, stream: int) -> int:
        while (slot := dice.randrange(1, 1 << 20)) in taken:
            pass
        taken.add(slot)
        return slot << 40  # far enough from each other for any size

    return place
