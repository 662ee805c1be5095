"""How much more memory may be reserved than a trace shows."""

from legroom.gpus.catalog import find_gpu
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event, Free
from legroom.predict import uncertainty
from legroom.predict.requests import replay_requests
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB

BY_ADDRESS = AllocatorSettings.from_environment({}, "2.11.0")


def allocation(number: int, size: int) -> Event:
    return Alloc(
        0.0, number, size, size, 0, 0, Category.WORKSPACE, Phase.FORWARD, 0, "", None, "aten.convolution"
    )


def trace_of(*events: Event, alternatives: dict[int, tuple[int, ...]] | None = None) -> Trace:
    return Trace(gpu=find_gpu("h200"), mode="fake", events=list(events), alternatives=alternatives or {})


def test_a_trace_without_guesses_is_certain() -> None:
    assert uncertainty.uncertain_bytes(trace_of(allocation(1, 30 * MiB), allocation(2, 40 * MiB))) == 0


def test_the_likely_peak_is_the_higher_of_the_guess_and_its_likeliest_alternative() -> None:
    events = (allocation(1, 30 * MiB), allocation(2, 40 * MiB), Free(0.0, 2))

    assert (
        uncertainty.likely_peaks(trace_of(*events, alternatives={2: (60 * MiB, 100 * MiB)})).reserved
        == 90 * MiB
    )
    assert (
        uncertainty.likely_peaks(trace_of(*events, alternatives={2: (20 * MiB, 100 * MiB)})).reserved
        == 70 * MiB
    )


def test_every_alternative_of_a_guess_is_replayed() -> None:
    events = (allocation(1, 30 * MiB), allocation(2, 40 * MiB), Free(0.0, 2))

    assert (
        uncertainty.uncertain_bytes(trace_of(*events, alternatives={2: (20 * MiB, 90 * MiB, 50 * MiB)}))
        == 50 * MiB
    )


def test_a_workspace_that_may_be_larger_is_replayed_with_that_size() -> None:
    trace = trace_of(
        allocation(1, 30 * MiB),
        allocation(2, 40 * MiB),
        Free(0.0, 2),
        alternatives={2: (30 * MiB, 100 * MiB)},
    )

    assert uncertainty.uncertain_bytes(trace) == 60 * MiB


def test_a_workspace_that_may_be_missing_counts() -> None:
    trace = trace_of(allocation(1, 30 * MiB), allocation(2, 0), Free(0.0, 2), alternatives={2: (0, 50 * MiB)})

    assert uncertainty.uncertain_bytes(trace) == 50 * MiB


def test_a_guess_that_fits_the_cache_is_not_uncertain() -> None:
    events = (allocation(1, 200 * MiB), Free(0.0, 1), allocation(2, 40 * MiB), Free(0.0, 2))

    assert uncertainty.uncertain_bytes(trace_of(*events, alternatives={2: (150 * MiB,)})) == 0


def test_each_of_two_guesses_is_tried_without_the_other() -> None:
    """If both workspaces are larger, they share one cached block. If only the second is larger, it needs a new
    block."""
    events = (allocation(1, 30 * MiB), Free(0.0, 1), allocation(2, 30 * MiB), Free(0.0, 2))
    both = replay_requests(trace_of(*events).requests(instead={1: 60 * MiB, 2: 50 * MiB}))

    assert both.reserved == 60 * MiB
    assert (
        uncertainty.uncertain_bytes(
            trace_of(*events, alternatives={1: (30 * MiB, 60 * MiB), 2: (30 * MiB, 50 * MiB)})
        )
        == 50 * MiB
    )


def test_half_of_the_largest_alternative_is_tried() -> None:
    """If allocation 3 has 50 MiB, it uses the free block of 50 MiB, allocation 4 uses that of 100 MiB, and allocation
    5 needs a new block. If allocation 3 has 0 or 100 MiB, no new block is needed."""
    events = (
        *(allocation(1, 100 * MiB), allocation(2, 50 * MiB), Free(0.0, 1), Free(0.0, 2)),
        *(allocation(3, 0), allocation(4, 50 * MiB), Free(0.0, 3), allocation(5, 100 * MiB)),
    )
    trace = trace_of(*events, alternatives={3: (0, 100 * MiB)})

    assert replay_requests(trace.requests(instead={3: 100 * MiB})).reserved == 150 * MiB
    assert uncertainty.uncertain_bytes(trace) == 100 * MiB


def test_guesses_with_the_same_alternatives_change_together() -> None:
    """A layer uses the same kernel in each step, so the second step reuses the block of the first step."""
    events = (allocation(1, 30 * MiB), Free(0.0, 1), allocation(2, 30 * MiB), Free(0.0, 2))

    assert (
        uncertainty.uncertain_bytes(
            trace_of(*events, alternatives={1: (30 * MiB, 50 * MiB), 2: (30 * MiB, 50 * MiB)})
        )
        == 20 * MiB
    )


def test_the_uncertainty_of_a_trace_is_deterministic() -> None:
    sizes = {number: (10 + number) * MiB for number in range(1, 30)}
    events = [allocation(number, size) for number, size in sizes.items()]
    events += [Free(0.0, number) for number in sizes]
    trace = trace_of(*events, alternatives={number: (size, 2 * size) for number, size in sizes.items()})

    assert (
        uncertainty.uncertain_bytes(trace, BY_ADDRESS) == uncertainty.uncertain_bytes(trace, BY_ADDRESS) > 0
    )
