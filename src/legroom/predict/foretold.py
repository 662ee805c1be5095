"""What a trace at another batch size would ask for, foretold from two traces of the same program.

A training step asks for the same memory in the same order at every batch size, only for more or less of it, and nearly
every request grows in a straight line. So two traces give all of a third, request by request, and it can be replayed like a
true one: fragmentation and the allocator's cache are foretold too, not only a peak. It is never an answer: what is
foretold is traced before it is said.
"""

from collections.abc import Callable
from dataclasses import dataclass

from legroom.predict.trace import Request, Trace


@dataclass(slots=True, kw_only=True)
class ForetoldTrace(Trace):
    """Requests that nobody traced."""

    asked: list[Request]

    def requests(
        self, device: int = 0, *, further_steps: int = 2, instead: dict[int, int] | None = None
    ) -> list[Request]:
        if not instead:
            return self.asked
        return [
            Request(number, instead.get(number, size) if size >= 0 else size, stream)
            for number, size, stream in self.asked
        ]


def foretelling(a: int, small: Trace, b: int, large: Trace) -> Callable[[int], ForetoldTrace] | None:
    """From traces at sizes `a` and `b`, a function of the size; None where they did not ask for the same things in the same
    order (a kernel that takes memory at one size and none at another)."""
    pairs = _aligned(small.requests(), large.requests())
    if pairs is None:
        return None
    most = {
        number: (small.doubts[number], large.doubts[other])
        for number, other in pairs.counterparts.items()
        if number in small.doubts and other in large.doubts
    }

    def between(first: int, second: int, share: float) -> int:
        return first if first == second else max(1, round(first + (second - first) * share))

    def at(size: int) -> ForetoldTrace:
        share = (size - a) / (b - a)
        return ForetoldTrace(
            gpu=small.gpu,
            mode=small.mode,
            steps=small.steps,
            trains=small.trains,
            batch_size=size,
            doubt=max(0, round(small.doubt + (large.doubt - small.doubt) * share)),
            doubts={number: between(*pair, share) for number, pair in most.items()},
            asked=[
                Request(number, between(first, second, share), stream)
                for number, first, second, stream in pairs.requests
            ],
        )

    return at


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Each request of one trace with the bytes of its counterpart in another, and the counterparts' ids."""

    requests: list[tuple[int, int, int, int]]
    counterparts: dict[int, int]


def _aligned(first: list[Request], second: list[Request]) -> _Pairs | None:
    if len(first) != len(second):
        return None
    counterparts: dict[int, int] = {}
    pairs: list[tuple[int, int, int, int]] = []
    for (number, size, stream), (other, other_size, other_stream) in zip(first, second, strict=True):
        if (size < 0) is not (other_size < 0) or stream != other_stream:
            return None
        if counterparts.setdefault(number, other) != other:  # something else is given back
            return None
        pairs.append((number, size, other_size, stream))
    return _Pairs(pairs, counterparts)
