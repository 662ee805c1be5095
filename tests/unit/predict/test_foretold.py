"""What two traces foretell of a third."""

from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc, Category, Event, Free, Phase
from legroom.predict.extrapolate import foretelling
from legroom.predict.fit import replay
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB


def made_trace(*pieces: int, freed: tuple[int, ...] = ()) -> Trace:
    """Pieces of so many bytes, in order; those whose positions stand in `freed` are given back at the end, in that order."""
    events: list[Event] = [
        Alloc(0.0, number, size, size, 0, 0, Category.ACTIVATION, Phase.FORWARD, 0, "", None, "")
        for number, size in enumerate(pieces, 1)
    ]
    events += [Free(0.0, number) for number in freed]
    return Trace(gpu=find_gpu("1GiB"), mode="fake", events=events, steps=2)


def step(batch: int) -> Trace:
    trace = made_trace(7 * MiB, batch * MiB, batch * 3000, freed=(3, 2))
    trace.doubt = batch * 1000
    return trace


def test_a_third_size_is_foretold_request_by_request() -> None:
    at = foretelling(4, step(4), 8, step(8))
    assert at is not None
    for size in (1, 6, 100):
        assert at(size).requests() == step(size).requests()
        assert at(size).doubt == step(size).doubt
        assert replay(at(size)) == replay(step(size))


def test_nothing_is_foretold_where_one_size_asks_for_more_pieces() -> None:
    assert foretelling(4, made_trace(MiB), 8, made_trace(MiB, MiB)) is None


def test_nothing_is_foretold_where_pieces_are_given_back_in_another_order() -> None:
    first, second = made_trace(MiB, 2 * MiB, freed=(1, 2)), made_trace(MiB, 4 * MiB, freed=(2, 1))
    assert foretelling(4, first, 8, second) is None
