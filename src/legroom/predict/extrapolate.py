"""Extrapolates the memory requests of a step to a different batch size, from two traces of the same program.

A training step usually makes the same requests in the same order at every batch size. The size of nearly every request
is linear in the batch size. Two traces therefore determine a third trace, request by request. The extrapolated trace
can be replayed like a real trace, so it includes fragmentation and the allocator's cache. The extrapolated trace is
never the final result, because the batch size that it suggests is then traced.

Two traces that do not make the same requests in the same order are not extrapolated. Another batch size is traced
instead, which is cheap. On a real GPU, each additional size requires a run. Therefore `train.sizes.extrapolation` also
aligns requests that differ, estimates requests without a counterpart, and starts with the memory that is already in use
on the GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass

from legroom.predict.requests import MemoryRequest
from legroom.predict.tracing.trace import Trace


@dataclass(slots=True, kw_only=True)
class ExtrapolatedTrace(Trace):
    """A trace that was computed from two other traces."""

    extrapolated: list[MemoryRequest]

    def requests(self, device: int = 0, *, instead: dict[int, int] | None = None) -> list[MemoryRequest]:
        if not instead:
            return self.extrapolated
        return [
            request._replace(bytes=instead[request.id])
            if request.bytes >= 0 and request.id in instead
            else request
            for request in self.extrapolated
        ]


def extrapolation(a: int, small: Trace, b: int, large: Trace) -> Callable[[int], ExtrapolatedTrace] | None:
    """Return a function that predicts the trace at any batch size from the traces at sizes `a` and `b`.

    Return None if the two traces do not make the same requests in the same order. Optional workspaces may differ.
    """
    aligned = _align(small.requests(), large.requests())
    if aligned is None:
        return None
    alternatives = {
        number: list(zip(small.alternatives[other], large.alternatives[number], strict=False))
        for number, other in aligned.counterparts.items()
        if other in small.alternatives and number in large.alternatives
    }

    def interpolate(first: int, second: int, share: float) -> int:
        return first if first == second else max(1, round(first + (second - first) * share))

    def at(size: int) -> ExtrapolatedTrace:
        share = (size - a) / (b - a)
        return ExtrapolatedTrace(
            gpu=small.gpu,
            mode=small.mode,
            steps=small.steps,
            trains=small.trains,
            batch_size=size,
            differing_versions=small.differing_versions,
            uncertain_bytes=max(
                0, round(small.uncertain_bytes + (large.uncertain_bytes - small.uncertain_bytes) * share)
            ),
            alternatives={
                number: tuple(interpolate(*pair, share) for pair in sizes)
                for number, sizes in alternatives.items()
            },
            extrapolated=[
                request._replace(bytes=interpolate(smaller, request.bytes, share))
                for request, smaller in aligned.requests
            ],
        )

    return at


@dataclass(frozen=True, slots=True)
class _Aligned:
    """The requests of the trace at the large batch size. Each request is paired with the size of the matching request
    at the small batch size.
    """

    requests: list[tuple[MemoryRequest, int]]
    counterparts: dict[int, int]
    """The id of the matching allocation in the small trace, for each allocation in the large trace."""


def _align(small: list[MemoryRequest], large: list[MemoryRequest]) -> _Aligned | None:
    """Pair each memory request of one trace with the matching request of the other trace. Optional requests may differ,
    because a convolution may need a workspace at only one of the two batch sizes. An optional request without a
    counterpart keeps its size.
    """
    ignored: set[int] = set()
    if [(one.bytes < 0, one.stream) for one in small] != [(one.bytes < 0, one.stream) for one in large]:
        ignored = {request.id for request in large if request.optional}
        optional = {request.id for request in small if request.optional}
        small = [request for request in small if request.id not in optional]
    if len(small) != sum(request.id not in ignored for request in large):
        return None
    counterparts: dict[int, int] = {}
    pairs: list[tuple[MemoryRequest, int]] = []
    remaining = iter(small)
    for one in large:
        if one.id in ignored:
            pairs.append((one, one.bytes))
            continue
        other = next(remaining)
        if (one.bytes < 0) is not (other.bytes < 0) or one.stream != other.stream:
            return None
        if counterparts.setdefault(one.id, other.id) != other.id:  # the two traces free different blocks
            return None
        pairs.append((one, other.bytes))
    return _Aligned(pairs, counterparts)
