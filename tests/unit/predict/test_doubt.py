"""How much more may be reserved than a trace says."""

from legroom.gpus.catalog import find_gpu
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.events import Alloc, Category, Event, Free, Phase
from legroom.predict import uncertainty
from legroom.predict.requests import play
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB

BY_ADDRESS = AllocatorSettings.from_environment({}, "2.11.0")


def asked(number: int, size: int) -> Event:
    return Alloc(
        0.0, number, size, size, 0, 0, Category.WORKSPACE, Phase.FORWARD, 0, "", None, "aten.convolution"
    )


def trace_of(*events: Event, doubts: dict[int, tuple[int, ...]] | None = None) -> Trace:
    return Trace(gpu=find_gpu("h200"), mode="fake", events=list(events), doubts=doubts or {})


def test_a_trace_without_guesses_is_in_no_doubt() -> None:
    assert uncertainty.of(trace_of(asked(1, 30 * MiB), asked(2, 40 * MiB))) == 0


def test_the_likely_peak_is_the_higher_of_the_guess_and_its_likeliest_alternative() -> None:
    events = (asked(1, 30 * MiB), asked(2, 40 * MiB), Free(0.0, 2))

    assert uncertainty.likely(trace_of(*events, doubts={2: (60 * MiB, 100 * MiB)})).reserved == 90 * MiB
    assert uncertainty.likely(trace_of(*events, doubts={2: (20 * MiB, 100 * MiB)})).reserved == 70 * MiB


def test_every_alternative_of_a_guess_is_played() -> None:
    events = (asked(1, 30 * MiB), asked(2, 40 * MiB), Free(0.0, 2))

    assert uncertainty.of(trace_of(*events, doubts={2: (20 * MiB, 90 * MiB, 50 * MiB)})) == 50 * MiB


def test_scratch_that_may_be_larger_is_played_with_that_size() -> None:
    trace = trace_of(asked(1, 30 * MiB), asked(2, 40 * MiB), Free(0.0, 2), doubts={2: (30 * MiB, 100 * MiB)})

    assert uncertainty.of(trace) == 60 * MiB


def test_scratch_that_may_be_there_or_not_counts() -> None:
    trace = trace_of(asked(1, 30 * MiB), asked(2, 0), Free(0.0, 2), doubts={2: (0, 50 * MiB)})

    assert uncertainty.of(trace) == 50 * MiB


def test_a_guess_that_fits_the_cache_anyway_is_no_doubt() -> None:
    events = (asked(1, 200 * MiB), Free(0.0, 1), asked(2, 40 * MiB), Free(0.0, 2))

    assert uncertainty.of(trace_of(*events, doubts={2: (150 * MiB,)})) == 0


def test_of_two_guesses_each_is_tried_without_the_other() -> None:
    """Both larger would share one block of the cache; the second alone takes a new one."""
    events = (asked(1, 30 * MiB), Free(0.0, 1), asked(2, 30 * MiB), Free(0.0, 2))
    both = play(trace_of(*events).requests(instead={1: 60 * MiB, 2: 50 * MiB}))

    assert both.reserved == 60 * MiB
    assert (
        uncertainty.of(trace_of(*events, doubts={1: (30 * MiB, 60 * MiB), 2: (30 * MiB, 50 * MiB)}))
        == 50 * MiB
    )


def test_half_of_the_largest_alternative_is_tried_as_it_may_displace_others() -> None:
    """None and all of it leave the hole of 50 MiB to the fourth; half of it takes that, the fourth goes into the hole of 100, the last finds none."""
    events = (
        *(asked(1, 100 * MiB), asked(2, 50 * MiB), Free(0.0, 1), Free(0.0, 2)),
        *(asked(3, 0), asked(4, 50 * MiB), Free(0.0, 3), asked(5, 100 * MiB)),
    )
    trace = trace_of(*events, doubts={3: (0, 100 * MiB)})

    assert play(trace.requests(instead={3: 100 * MiB})).reserved == 150 * MiB
    assert uncertainty.of(trace) == 100 * MiB


def test_guesses_with_the_same_alternative_turn_out_alike() -> None:
    """A layer gets the same kernel in each step: the second one finds the block of the first."""
    events = (asked(1, 30 * MiB), Free(0.0, 1), asked(2, 30 * MiB), Free(0.0, 2))

    assert (
        uncertainty.of(trace_of(*events, doubts={1: (30 * MiB, 50 * MiB), 2: (30 * MiB, 50 * MiB)}))
        == 20 * MiB
    )


def test_the_same_trace_has_the_same_doubt() -> None:
    sizes = {number: (10 + number) * MiB for number in range(1, 30)}
    events = [asked(number, size) for number, size in sizes.items()]
    events += [Free(0.0, number) for number in sizes]
    trace = trace_of(*events, doubts={number: (size, 2 * size) for number, size in sizes.items()})

    assert uncertainty.of(trace, BY_ADDRESS) == uncertainty.of(trace, BY_ADDRESS) > 0
