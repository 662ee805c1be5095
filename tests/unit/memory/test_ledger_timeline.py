"""The timeline includes every peak, for any number of samples."""

from example_events import alloc, training
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.memory.annotations import GapEnded, GapStarted
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc, Event, Free, SegmentChange, Tag
from legroom.memory.ledger import Ledger
from legroom.memory.timeline import Sample


def test_the_categories_of_a_sample_sum_to_its_total() -> None:
    for sample in Ledger(training(10)).timeline(40):
        assert sum(sample.by_category.values()) == sample.allocated
        assert list(sample.by_category) == list(Category)


def test_final_categories_are_used() -> None:
    (sample,) = Ledger([alloc(1, 10), Tag(1, Category.INPUT)]).timeline()
    assert sample == Sample(0.0, 10, 0, {**dict.fromkeys(Category, 0), Category.INPUT: 10})


@given(
    st.lists(
        st.tuples(st.integers(1, 1000), st.booleans(), st.integers(0, 50), st.integers(-9, 20)), max_size=60
    ),
    st.integers(1, 40),
)
@settings(deadline=None)
def test_the_peaks_and_the_end_are_in_any_number_of_samples(
    changes: list[tuple[int, bool, int, int]], number: int
) -> None:
    stream: list[Event] = []
    time, alive = 0.0, []
    for id, (size, dies, pause, segment) in enumerate(changes):
        time += pause / 10
        stream.append(alloc(id, size, time=time))
        alive.append(id)
        stream.append(SegmentChange(time, 0, segment))
        if dies:
            stream.append(Free(time, alive.pop(0)))
    ledger = Ledger(stream)
    samples = ledger.timeline(number)
    assert len(samples) <= number + 8
    assert [sample.time for sample in samples] == sorted(sample.time for sample in samples)
    assert max((sample.allocated for sample in samples), default=0) == ledger.peak().bytes
    assert max([0, *(sample.reserved for sample in samples)]) == ledger.peak(of="reserved").bytes
    if samples:
        assert samples[-1].allocated == ledger.now().allocated
        assert samples[-1].reserved == ledger.now().reserved


def test_with_as_many_samples_as_events_every_change_is_shown() -> None:
    stream = [alloc(id, 10 * id, time=float(id)) for id in range(1, 6)]
    samples = Ledger(stream).timeline(1000)
    assert [(sample.time, sample.allocated) for sample in samples] == [
        (1.0, 10),
        (2.0, 30),
        (3.0, 60),
        (4.0, 100),
        (5.0, 150),
    ]


def test_both_edges_of_a_short_spike_are_shown() -> None:
    stream: list[Event] = [
        alloc(1, 100, time=1.0),
        alloc(2, 9000, time=5.0),
        Free(5.0, 2),
        alloc(3, 1, time=9.0),
    ]
    samples = Ledger(stream).timeline(12)
    assert [sample.allocated for sample in samples] == [100, 9100, 100, 101]


def test_time_never_decreases() -> None:
    """Storages that are listed after a gap have the time of their allocation, which may be before the gap."""
    stream: list[Event] = [
        alloc(1, 10, time=1.0),
        GapStarted(5.0),
        alloc(2, 20, time=2.0),
        GapEnded(6.0),
        alloc(3, 5, time=7.0),
    ]
    samples = Ledger(stream).timeline(100)
    assert [(sample.time, sample.allocated) for sample in samples] == [(1.0, 10), (6.0, 30), (7.0, 35)]


def test_other_devices_are_ignored() -> None:
    stream: list[Event] = [alloc(1, 10), alloc(2, 99, device=1, time=1.0), SegmentChange(2.0, 1, 50)]
    assert {sample.allocated for sample in Ledger(stream).timeline()} == {10}
    assert [(s.allocated, s.reserved) for s in Ledger(stream).timeline(device=1)] == [(99, 0), (99, 50)]


def test_a_repeated_id_is_counted_once() -> None:
    stream: list[Event] = [alloc(1, 10), alloc(1, 30, time=1.0)]
    assert all(isinstance(event, Alloc) for event in stream)
    assert [sample.allocated for sample in Ledger(stream).timeline()] == [10, 30]
