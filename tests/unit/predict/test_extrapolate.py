"""Extrapolation of a trace at a third batch size from two traces."""

from legroom.gpus.catalog import find_gpu
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event, Free
from legroom.predict.extrapolate import extrapolation
from legroom.predict.fit import replay
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB


def trace_of(*sizes: int, freed: tuple[int, ...] = ()) -> Trace:
    """Return a trace with allocations of these sizes, numbered from 1. At the end, those in `freed` are freed in this
    order."""
    events: list[Event] = [
        Alloc(0.0, number, size, size, 0, 0, Category.ACTIVATION, Phase.FORWARD, 0, "", None, "")
        for number, size in enumerate(sizes, 1)
    ]
    events += [Free(0.0, number) for number in freed]
    return Trace(gpu=find_gpu("1GiB"), mode="fake", events=events, steps=2)


def step(batch: int) -> Trace:
    trace = trace_of(7 * MiB, batch * MiB, batch * 3000, freed=(3, 2))
    trace.uncertain_bytes = batch * 1000
    return trace


def test_another_batch_size_is_extrapolated_request_by_request() -> None:
    at = extrapolation(4, step(4), 8, step(8))
    assert at is not None
    for size in (1, 6, 100):
        assert at(size).requests() == step(size).requests()
        assert at(size).uncertain_bytes == step(size).uncertain_bytes
        assert replay(at(size)) == replay(step(size))


def test_there_is_no_extrapolation_if_one_size_makes_more_requests() -> None:
    assert extrapolation(4, trace_of(MiB), 8, trace_of(MiB, MiB)) is None


def test_there_is_no_extrapolation_if_blocks_are_freed_in_another_order() -> None:
    first, second = trace_of(MiB, 2 * MiB, freed=(1, 2)), trace_of(MiB, 4 * MiB, freed=(2, 1))
    assert extrapolation(4, first, 8, second) is None


def test_workspaces_that_only_one_size_needs_are_not_extrapolated() -> None:
    first, second = (
        trace_of(4 * MiB, 40 * MiB, freed=(2, 1)),
        trace_of(8 * MiB, 3 * MiB, 80 * MiB, freed=(2, 3, 1)),
    )
    second.optional = {2}
    at = extrapolation(4, first, 8, second)
    assert at is not None
    assert at(16).requests() == [
        request._replace(bytes={1: 16 * MiB, 2: 3 * MiB, 3: 160 * MiB}[request.id])
        if request.bytes > 0
        else request
        for request in second.requests()
    ]
