"""The search for the largest batch size: its result fits and was traced."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.gpus.catalog import find_gpu
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Free
from legroom.predict.fit import replay
from legroom.predict.largest_batch import largest_batch
from legroom.predict.tracing.script import CannotTrace, OutOfTime
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB


def trace_of(sizes: list[int]) -> Trace:
    """Return a trace in which all `sizes` are allocated and then freed."""
    trace = Trace(gpu=find_gpu("1GiB"), mode="fake", steps=2)
    for number, size in enumerate(sizes, 1):
        trace.events.append(
            Alloc(0.0, number, size, size, 0, 0, Category.ACTIVATION, Phase.FORWARD, 0, "", None, "")
        )
    trace.events.extend(Free(0.0, number) for number in range(1, len(sizes) + 1))
    return trace


def linear(batch: int) -> Trace:
    return trace_of([100 * MiB, batch * MiB, batch * MiB])


def squared(batch: int) -> Trace:
    return trace_of([50 * MiB, batch * batch * 1024, batch * MiB])


def true_largest(trace_at: Any, capacity: int) -> int | None:
    fitting = [size for size in range(1, 600) if replay(trace_at(size), capacity).failed_at is None]
    return max(fitting, default=None)


@pytest.mark.parametrize("trace_at", [linear, squared])
@pytest.mark.parametrize("start", [1, 8, 64, 500])
def test_the_largest_size_is_found(trace_at: Any, start: int) -> None:
    capacity = 700 * MiB
    search = largest_batch(trace_at, capacity, start=start)
    assert search.largest == true_largest(trace_at, capacity)
    assert search.tried[search.largest] is True


def test_only_multiples_are_tried() -> None:
    search = largest_batch(linear, 700 * MiB, start=10, multiple_of=8)
    largest = true_largest(linear, 700 * MiB)
    assert largest is not None
    assert search.largest == largest // 8 * 8
    assert all(size % 8 == 0 for size in search.tried)


def test_there_is_no_result_if_no_size_fits() -> None:
    search = largest_batch(linear, 50 * MiB, start=16)
    assert search.largest is None
    assert search.tried[1] is False


def test_a_known_trace_is_not_repeated() -> None:
    traced: list[int] = []

    def trace_at(size: int) -> Trace:
        traced.append(size)
        return linear(size)

    largest_batch(trace_at, 700 * MiB, start=10, known=linear(10))
    assert traced == [20, 300]


def test_linear_growth_needs_three_traces() -> None:
    assert list(largest_batch(linear, 700 * MiB, start=10).tried) == [10, 20, 300]


def test_a_wrong_prediction_is_corrected() -> None:
    """From batch size 200 on, another kernel needs more memory, so extrapolation from smaller sizes gives a result
    that is too large."""

    def changing(batch: int) -> Trace:
        if batch < 200:
            return linear(batch)
        return trace_of([100 * MiB, batch * MiB, batch * MiB, batch * MiB // 2])

    search = largest_batch(changing, 700 * MiB, start=10)
    assert search.largest == true_largest(changing, 700 * MiB) == 240


def test_the_safe_search_leaves_memory_for_the_uncertainty() -> None:
    def uncertain(batch: int) -> Trace:
        trace = linear(batch)
        trace.uncertain_bytes = 100 * MiB
        return trace

    likely = largest_batch(uncertain, 700 * MiB, start=10).largest
    safe = largest_batch(uncertain, 700 * MiB, start=10, safe=True).largest
    assert likely is not None
    assert safe is not None
    assert safe <= likely - 50


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    fixed=st.integers(0, 400), slope=st.floats(0.05, 8), bend=st.floats(0, 0.05), start=st.integers(1, 200),
    capacity=st.integers(100, 900),
)  # fmt: skip
def test_the_result_always_fits(fixed: int, slope: float, bend: float, start: int, capacity: int) -> None:
    def trace_at(size: int) -> Trace:
        return trace_of([fixed * MiB + 1, int((slope * size + bend * size * size) * MiB) + 1])

    search = largest_batch(trace_at, capacity * MiB, start=start)
    if search.largest is not None:
        assert replay(trace_at(search.largest), capacity * MiB).failed_at is None
    assert len(search.tried) <= 20


def test_a_search_without_time_returns_its_best_bounds() -> None:
    def too_slow(size: int) -> Trace:
        if size > 128:
            raise OutOfTime("late")
        return linear(size)

    search = largest_batch(too_slow, 700 * MiB, start=64)
    assert (search.largest, search.is_complete) == (128, False)
    assert search.smallest_too_large is None

    search = largest_batch(linear, 700 * MiB, start=400, deadline=time.monotonic() - 1)
    assert (search.largest, search.smallest_too_large, search.is_complete) == (200, 400, False)
    assert largest_batch(linear, 700 * MiB, start=64, deadline=time.monotonic() + 60).is_complete


def failing(is_allowed: Any) -> Any:
    def trace_at(size: int) -> Trace:
        if not is_allowed(size):
            raise CannotTrace("failed", error="train.py:4, ValueError")
        return linear(size)

    return trace_at


@pytest.mark.parametrize(("minimum", "largest"), [(5, 10), (10, 10), (11, None), (15, None)])
def test_the_search_excludes_sizes_that_are_too_small_for_the_script(
    minimum: int, largest: int | None
) -> None:
    search = largest_batch(failing(lambda size: size >= minimum), 120 * MiB, start=64)
    assert search.largest == largest
    if largest is None:
        assert search.smallest_too_large == minimum
    assert set(search.failures.values()) <= {"train.py:4, ValueError"}


def test_the_search_excludes_sizes_that_are_too_large_for_the_script() -> None:
    search = largest_batch(failing(lambda size: size <= 200), 700 * MiB, start=64)
    assert search.largest == 200
    assert all(size > 200 for size in search.failures)


def test_the_search_fails_if_the_script_fails_with_every_other_size() -> None:
    with pytest.raises(CannotTrace, match="failed"):
        largest_batch(failing(lambda size: size == 64), 700 * MiB, start=64)


def test_the_safe_search_reuses_the_traces_of_another_search() -> None:
    first = largest_batch(linear, 700 * MiB, start=10)
    traced: list[int] = []

    def trace_at(size: int) -> Trace:
        traced.append(size)
        return linear(size)

    safe = largest_batch(trace_at, 700 * MiB, start=10, seen=first.traces, safe=True)
    assert safe.largest is not None
    assert first.largest is not None
    assert safe.largest < first.largest
    assert not set(traced) & set(first.traces)
    assert replay(safe.traces[safe.largest]).reserved < 700 * MiB * 0.97
