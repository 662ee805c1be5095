"""What a trace at another batch size would ask for, foretold from two traces of the same program.

A training step asks for the same memory in the same order at every batch size, only for more or less of it, and nearly
every request grows in a straight line. So two traces give all of a third, request by request, and it can be replayed like a
true one: fragmentation and the allocator's cache are foretold too, not only a peak. It is never an answer: what is
foretold is traced before it is said.

Nothing is guessed here. Where two traces do not ask for the same things in the same order, there is no foretelling and another
size is traced, which is cheap and certain. `train.sizes.extrapolation` does the like for a step that runs on a GPU, where each
further size costs a run: it aligns what differs and guesses the rest, and begins with the memory that others hold there.
"""

from collections.abc import Callable
from dataclasses import dataclass

from legroom.predict.tracing.trace import Request, Trace


@dataclass(slots=True, kw_only=True)
class ForetoldTrace(Trace):
    """Requests that nobody traced."""

    asked: list[Request]

    def requests(self, device: int = 0, *, instead: dict[int, int] | None = None) -> list[Request]:
        if not instead:
            return self.asked
        return [
            request._replace(bytes=instead[request.id])
            if request.bytes >= 0 and request.id in instead
            else request
            for request in self.asked
        ]


def foretelling(a: int, small: Trace, b: int, large: Trace) -> Callable[[int], ForetoldTrace] | None:
    """From traces at sizes `a` and `b`, a function of the size; None where they did not ask for the same things in the same
    order (a kernel that takes memory at one size and none at another)."""
    pairs = _aligned(small.requests(), large.requests())
    if pairs is None:
        return None
    others = {
        number: list(zip(small.doubts[number], large.doubts[other], strict=False))
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
            differing_versions=small.differing_versions,
            doubt=max(0, round(small.doubt + (large.doubt - small.doubt) * share)),
            doubts={
                number: tuple(between(*pair, share) for pair in sizes) for number, sizes in others.items()
            },
            asked=[
                request._replace(bytes=between(request.bytes, other, share))
                for request, other in pairs.requests
            ],
        )

    return at


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Each request of one trace with the bytes of its counterpart in another, and the counterparts' ids."""

    requests: list[tuple[Request, int]]
    counterparts: dict[int, int]


def _aligned(first: list[Request], second: list[Request]) -> _Pairs | None:
    if len(first) != len(second):
        return None
    counterparts: dict[int, int] = {}
    pairs: list[tuple[Request, int]] = []
    for one, other in zip(first, second, strict=True):
        if (one.bytes < 0) is not (other.bytes < 0) or one.stream != other.stream:
            return None
        if counterparts.setdefault(one.id, other.id) != other.id:  # something else is given back
            return None
        pairs.append((one, other.bytes))
    return _Pairs(pairs, counterparts)
