"""The search for the largest batch: never a size that does not fit, never one that was not traced."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc, Category, Free, Phase
from legroom.predict.fit import replay
from legroom.predict.largest_batch import largest_batch
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB


def made_trace(sizes: list[int]) -> Trace:
    """All of `sizes` alive at once, then freed."""
    trace = Trace(gpu=find_gpu("1GiB"), mode="fake", steps=2)
    for number, size in enumerate(sizes, 1):
        trace.events.append(
            Alloc(0.0, number, size, size, 0, 0, Category.ACTIVATION, Phase.FORWARD, 0, "", None, "")
        )
    trace.events.extend(Free(0.0, number) for number in range(1, len(sizes) + 1))
    return trace


def linear(batch: int) -> Trace:
    return made_trace([100 * MiB, batch * MiB, batch * MiB])


def squared(batch: int) -> Trace:
    return made_trace([50 * MiB, batch * batch * 1024, batch * MiB])


def true_largest(trace_at: Any, capacity: int) -> int | None:
    fitting = [size for size in range(1, 600) if replay(trace_at(size), capacity).failed_at is None]
    return max(fitting, default=None)


@pytest.mark.parametrize("trace_at", [linear, squared])
@pytest.mark.parametrize("start", [1, 8, 64, 500])
def test_it_finds_the_true_largest(trace_at: Any, start: int) -> None:
    capacity = 700 * MiB
    search = largest_batch(trace_at, capacity, start=start)
    assert search.largest == true_largest(trace_at, capacity)
    assert search.tried[search.largest] is True


def test_it_answers_multiples() -> None:
    search = largest_batch(linear, 700 * MiB, start=10, multiple_of=8)
    whole = true_largest(linear, 700 * MiB)
    assert whole is not None
    assert search.largest == whole // 8 * 8
    assert all(size % 8 == 0 for size in search.tried)


def test_nothing_fits() -> None:
    search = largest_batch(linear, 50 * MiB, start=16)
    assert search.largest is None
    assert search.tried[1] is False


def test_a_known_trace_is_not_made_again() -> None:
    asked: list[int] = []

    def trace_at(size: int) -> Trace:
        asked.append(size)
        return linear(size)

    largest_batch(trace_at, 700 * MiB, start=10, known=linear(10))
    assert asked == [20, 300]


def test_a_straight_line_needs_three_traces() -> None:
    assert list(largest_batch(linear, 700 * MiB, start=10).tried) == [10, 20, 300]


def test_an_answer_that_was_foretold_wrongly_is_not_believed() -> None:
    """From 200 on another kernel holds more at once, in more pieces: what smaller sizes foretell is too much."""

    def changing(batch: int) -> Trace:
        if batch < 200:
            return linear(batch)
        return made_trace([100 * MiB, batch * MiB, batch * MiB, batch * MiB // 2])

    search = largest_batch(changing, 700 * MiB, start=10)
    assert search.largest == true_largest(changing, 700 * MiB) == 240


def test_the_safe_search_leaves_room_for_doubt() -> None:
    def doubtful(batch: int) -> Trace:
        trace = linear(batch)
        trace.doubt = 100 * MiB
        return trace

    bold = largest_batch(doubtful, 700 * MiB, start=10).largest
    safe = largest_batch(doubtful, 700 * MiB, start=10, safe=True).largest
    assert bold is not None
    assert safe is not None
    assert safe <= bold - 50


@settings(max_examples=60, deadline=None)
@given(
    fixed=st.integers(0, 400), slope=st.floats(0.05, 8), bend=st.floats(0, 0.05), start=st.integers(1, 200),
    capacity=st.integers(100, 900),
)  # fmt: skip
def test_what_it_answers_always_fits(
    fixed: int, slope: float, bend: float, start: int, capacity: int
) -> None:
    def trace_at(size: int) -> Trace:
        return made_trace([fixed * MiB + 1, int((slope * size + bend * size * size) * MiB) + 1])

    search = largest_batch(trace_at, capacity * MiB, start=start)
    if search.largest is not None:
        assert replay(trace_at(search.largest), capacity * MiB).failed_at is None
    assert len(search.tried) <= 20
