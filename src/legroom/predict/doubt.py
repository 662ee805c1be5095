"""How much more memory a run may reserve than its trace says, for reasons that are known.

Two things in a trace are not certain, and reserved memory depends on both. The sizes of some kernels' scratch are guesses
(`Take.most` says what they may be instead): each is a small part of the peak, but what does not fit a hole of the cache takes
a new segment. And where free blocks of equal size compete, releases of torch up to 2.12 take the one at the lower
address, which the driver decides. So the trace is replayed a few times with other sizes for some guesses and with
segments placed otherwise; the highest outcome is the doubt. What is drawn is seeded: the same trace has the same doubt.
"""

import random
from collections.abc import Callable, Iterator
from typing import Protocol

from legroom.memory.allocator_settings import AllocatorSettings
from legroom.predict.requests import Request, play

PARTS = (4, 2, 1)
"""The guesses are cut into so many parts, and in each replay another part is replaced by what they may be instead: a quarter,
a half, all. In the survey of convolutions a sixth of the guessed kernels took more than was guessed."""
PLACEMENTS = 2
"""Replays with other placements of segments."""


class Doubtful(Protocol):
    """A trace, as far as it is needed here."""

    @property
    def doubts(self) -> dict[int, int]: ...

    def requests(self, *, instead: dict[int, int] | None = None) -> list[Request]: ...


def of(trace: Doubtful, settings: AllocatorSettings | None = None) -> int:
    """Bytes by which reserved memory may exceed what the trace says."""
    said = play(trace.requests(), settings=settings).reserved
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


def _variations(trace: Doubtful) -> Iterator[tuple[list[Request], Callable[[int, int], int] | None]]:
    """The trace as it may come out too: requests, and where segments are placed (None: one after the other)."""
    requests = trace.requests()
    for seed in range(PLACEMENTS):
        yield requests, _anywhere(seed)
    # The same layer gets the same kernel in every step, so guesses with the same alternative turn out alike.
    alternatives = sorted(set(trace.doubts.values()))
    random.Random(0).shuffle(alternatives)
    chosen = [set(alternatives[part::parts]) for parts in PARTS for part in range(parts)]
    for part in dict.fromkeys(frozenset(part) for part in chosen if part):
        instead = {number: most for number, most in trace.doubts.items() if most in part}
        yield trace.requests(instead=instead), None


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
