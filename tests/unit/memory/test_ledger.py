"""The ledger, compared with a simple reference implementation and tested with examples."""

from collections.abc import Iterator

import pytest
from example_events import HERE, alloc, events, oom, step, training
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.memory import ledger as ledger_module
from legroom.memory.annotations import GapEnded, GapStarted
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Free, Holder, SegmentChange, Step, Tag
from legroom.memory.ledger import Ledger

ACTIVATION, GRADIENT, INPUT = Category.ACTIVATION, Category.GRADIENT, Category.INPUT


class Reference:
    """Processes all events again for every query."""

    def __init__(self, stream: list[Event]) -> None:
        self.stream = stream
        self.tags = {event.id: event.category for event in stream if isinstance(event, Tag)}

    def live(self, index: int, device: int) -> list[Alloc]:
        live: dict[int, Alloc] = {}
        for event in self.stream[: index + 1]:
            if isinstance(event, Alloc | Free):
                live.pop(event.id, None)
            if isinstance(event, Alloc):
                live[event.id] = event
        return [
            storage._replace(category=self.tags.get(storage.id, storage.category))
            for storage in live.values()
            if storage.device == device
        ]

    def allocated(self, index: int, device: int) -> int:
        return sum(storage.block_bytes for storage in self.live(index, device))

    def reserved(self, index: int, device: int) -> int:
        segments = (event for event in self.stream[: index + 1] if isinstance(event, SegmentChange))
        return sum(event.bytes for event in segments if event.device == device)


# Gaps have their own tests.
streams = st.lists(
    events.filter(lambda event: not isinstance(event, GapStarted | GapEnded)),
    max_size=40,
)


@pytest.fixture(autouse=True, scope="module")
def small_spans() -> Iterator[None]:
    """Make spans small, so that few events fill several spans."""
    patch = pytest.MonkeyPatch()
    patch.setattr(ledger_module, "_SPAN", 8)
    patch.setattr(ledger_module, "_BATCH", 5)
    yield
    patch.undo()


@pytest.mark.slow
@given(streams)
@settings(max_examples=150, deadline=None)
def test_the_state_after_every_event_equals_the_reference(stream: list[Event]) -> None:
    ledger, reference = Ledger(stream), Reference(stream)
    for index in range(-1, len(stream)):
        for device in range(3):
            state = ledger.at(index, device)
            assert state.live == reference.live(index, device)
            assert state.allocated == reference.allocated(index, device)
            assert state.reserved == reference.reserved(index, device)


@pytest.mark.slow
@given(streams)
@settings(max_examples=150, deadline=None)
def test_the_peaks_equal_the_reference(stream: list[Event]) -> None:
    ledger, reference = Ledger(stream), Reference(stream)
    indexes = range(-1, len(stream))
    for device in range(3):
        peak = ledger.peak(device)
        assert peak.bytes == max(reference.allocated(index, device) for index in indexes)
        assert peak.bytes == ledger.at(peak.index, device).allocated
        peak = ledger.peak(device, "reserved")
        assert peak.bytes == max(reference.reserved(index, device) for index in indexes)
        assert peak.bytes == ledger.at(peak.index, device).reserved


@pytest.mark.slow
@given(streams)
@settings(max_examples=80, deadline=None)
def test_live_and_complete_ledgers_are_equal(stream: list[Event]) -> None:
    live, complete = Ledger(), Ledger(stream)
    for event in stream:
        live.apply(event)
    assert len(live) == len(complete) == len(stream)
    for device in range(3):
        assert live.now(device) == complete.now(device)
        assert live.peak(device) == complete.peak(device)
        assert live.timeline(device=device) == complete.timeline(device=device)
        assert live.growth(device) == complete.growth(device)
    assert live.steps() == [event for event in stream if isinstance(event, Step)]


@pytest.mark.slow
@given(streams)
@settings(max_examples=80, deadline=None)
def test_every_grouping_sums_to_the_total(stream: list[Event]) -> None:
    state = Ledger(stream).now()
    for grouping in (state.by_category(), state.by_line(), state.by_module()):
        assert sum(grouping.values()) == state.allocated
        assert list(grouping.values()) == sorted(grouping.values(), reverse=True)
    rows = state.top(1000)
    assert sum(row.bytes for row in rows) == state.allocated
    assert sum(row.count for row in rows) == len(state.live)


def test_the_last_tag_of_a_storage_applies_to_its_whole_lifetime() -> None:
    ledger = Ledger([alloc(1), alloc(2), Tag(1, ACTIVATION), Free(0.1, 1), Tag(1, GRADIENT)])
    assert [storage.category for storage in ledger.at(0).live] == [GRADIENT]
    assert [storage.category for storage in ledger.at(1).live] == [GRADIENT, Category.TEMPORARY]


def test_the_peak_has_a_step_and_a_phase() -> None:
    stream = [
        alloc(1, 100),
        step(0),
        alloc(2, 300, time=1.5, step=1, phase=Phase.BACKWARD),
        Free(1.6, 2),
        alloc(3, 300, time=1.7, step=1),
    ]
    peak = Ledger(stream).peak()
    assert (peak.index, peak.time, peak.step, peak.phase, peak.bytes) == (2, 1.5, 1, Phase.BACKWARD, 400)


def test_the_peak_of_an_empty_run_is_zero() -> None:
    ledger = Ledger()
    assert ledger.peak().bytes == 0
    assert ledger.at(ledger.peak().index).live == []
    assert ledger.timeline() == []
    assert ledger.growth() == []
    assert ledger.devices() == []


def test_reserved_and_allocated_peaks_are_separate() -> None:
    stream = [SegmentChange(0.0, 0, 900), alloc(1, 100), SegmentChange(0.2, 0, -500), alloc(2, 200)]
    ledger = Ledger(stream)
    assert (ledger.peak(of="reserved").index, ledger.peak(of="reserved").bytes) == (0, 900)
    assert (ledger.peak().index, ledger.peak().bytes) == (3, 300)
    assert ledger.now().reserved == 400


def test_allocated_counts_blocks_and_requested_counts_bytes() -> None:
    state = Ledger([alloc(1, 100, block=512), alloc(2, 600, block=1024)]).now()
    assert (state.allocated, state.requested) == (1536, 700)


def test_every_category_is_listed() -> None:
    state = Ledger([alloc(1, 100, category=INPUT)]).now()
    assert set(state.by_category()) == set(Category)
    assert next(iter(state.by_category().items())) == (INPUT, 100)


def test_a_line_in_two_functions_is_counted_once() -> None:
    inner = HERE._replace(function="<listcomp>")
    state = Ledger([alloc(1, 100), alloc(2, 50, frame=inner), alloc(3, 7, frame=None)]).now()
    assert state.by_line() == {HERE: 150, None: 7}


def test_top_lines_are_separate_by_category_and_name_the_largest_module() -> None:
    stream = [
        alloc(1, 100, category=ACTIVATION, module="net.a"),
        alloc(2, 300, category=ACTIVATION, module="net.b"),
        alloc(3, 50, category=GRADIENT, module="net.a"),
        alloc(4, 20, frame=None, module=""),
    ]
    first, second, third = Ledger(stream).now().top()
    assert (first.file, first.line, first.function) == HERE
    assert (first.bytes, first.category, first.module, first.count) == (400, ACTIVATION, "net.b", 2)
    assert (second.bytes, second.category, second.count) == (50, GRADIENT, 1)
    assert (third.file, third.line, third.bytes) == (None, None, 20)
    assert len(Ledger(stream).now().top(2)) == 2


def test_coverage_is_the_fraction_of_bytes_with_a_line() -> None:
    assert Ledger([alloc(1, 300), alloc(2, 100, frame=None)]).now().coverage() == 0.75
    assert Ledger().now().coverage() == 1.0


def test_the_state_at_a_step_is_found() -> None:
    ledger = Ledger([alloc(1, 10), step(0), alloc(2, 20), step(1), step(1, device=1), Free(0.5, 1)])
    assert ledger.at_step(0).allocated == 10
    assert ledger.at_step(1).allocated == 30
    assert ledger.at_step(1, device=1).allocated == 0
    assert [end.step for end in ledger.steps(0)] == [0, 1]


def test_an_unknown_step_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"Step 7 does not exist on device 0\. The run has steps 0 to 1\."):
        Ledger([step(0), step(1)]).at_step(7)
    with pytest.raises(UsageError, match="The run has no steps"):
        Ledger().at_step(0)


def test_the_state_and_the_holders_at_an_oom_are_found() -> None:
    holder = Holder("losses (list, 3 items)", 10, 3, HERE)
    stream = [alloc(1, 10, device=1), oom(device=1), holder, Free(0.5, 1), oom()]
    ledger = Ledger(stream)
    assert ledger.at_oom(0).allocated == 10
    assert ledger.at_oom(0).device == 1
    assert ledger.holders(0) == [holder]
    assert ledger.at_oom(1).allocated == 0
    assert ledger.holders(1) == []
    assert ledger.ooms() == [stream[1], stream[4]]


def test_an_unknown_oom_is_an_error() -> None:
    with pytest.raises(
        UsageError,
        match=r"Out-of-memory event 0 does not exist\. Number of out-of-memory events in the run: 0\.",
    ):
        Ledger().at_oom()


@pytest.mark.parametrize("index", [-2, 1])
def test_an_unknown_event_is_an_error(index: int) -> None:
    with pytest.raises(
        UsageError,
        match=rf"Event {index} does not exist\. Number of events in the run: 1\.",
    ):
        Ledger([alloc(1)]).at(index)


def test_devices_are_separate() -> None:
    ledger = Ledger([alloc(1, 10), alloc(2, 20, device=1), SegmentChange(0.0, 1, 99), Free(0.1, 2)])
    assert ledger.devices() == [0, 1]
    assert (ledger.peak(0).bytes, ledger.peak(1).bytes) == (10, 20)
    assert (ledger.now(0).reserved, ledger.now(1).reserved) == (0, 99)
    assert (ledger.now(0).allocated, ledger.now(1).allocated) == (10, 0)


def test_a_gap_has_no_peaks_and_its_steps_have_only_totals() -> None:
    stream = [
        alloc(1, 100),
        GapStarted(1.0),
        step(0, time=1.5),
        alloc(2, 500),
        Free(2.0, 1),
        GapEnded(2.0),
        step(1, time=2.5),
    ]
    ledger = Ledger(stream)
    assert (ledger.peak().bytes, ledger.peak().index) == (500, 5)
    assert max(sample.allocated for sample in ledger.timeline()) == 500
    assert ledger.at_step(1).allocated == 500
    with pytest.raises(UsageError, match="Step 0 was dropped from the capture"):
        ledger.at_step(0)


def test_events_from_several_threads_are_counted() -> None:
    from threading import Thread

    ledger = Ledger()

    def work(first: int) -> None:
        for id in range(first, first + 2000):
            ledger.apply(alloc(id, 1))
            if id % 100 == 0:
                ledger.now()
            ledger.apply(Free(0.0, id))

    threads = [Thread(target=work, args=(first,)) for first in (0, 10_000, 20_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger) == 12_000
    assert ledger.now().allocated == 0


def test_an_event_during_a_query_is_counted_afterwards() -> None:
    class AppliesEventsWhenHashed(str):
        def __hash__(self) -> int:
            for _ in range(10):
                ledger.apply(alloc(99, 7))
            return str.__hash__(self)

    ledger = Ledger()
    ledger.apply(alloc(1, 10, frame=Frame(AppliesEventsWhenHashed("train.py"), 1, "main")))
    ledger.apply(step(0))
    assert ledger.now().allocated == 10
    assert ledger.now().allocated == 17


def test_lines_that_grow_at_every_step_end_are_reported() -> None:
    stream: list[Event] = [alloc(0, 5000, category=Category.PARAMETER)]
    leaking, steady = Frame("train.py", 30, "main"), Frame("train.py", 31, "main")
    for number in range(6):
        stream.append(alloc(100 + number, 64, frame=leaking, category=ACTIVATION, step=number))
        stream.append(alloc(200 + number, 900, frame=steady, step=number))
        if number:
            stream.append(Free(0.0, 200 + number - 1))
        stream.append(step(number))
    (row,) = Ledger(stream).growth()
    assert (row.file, row.line, row.function, row.category) == (*leaking, ACTIVATION)
    assert (row.bytes_per_step, row.steps, row.bytes) == (64, 6, 384)


def growing(sizes: list[int]) -> list[Event]:
    """Return a run in which one line has `sizes[n]` bytes allocated at the end of step n."""
    stream: list[Event] = []
    for number, size in enumerate(sizes):
        stream += [
            alloc(number, size, step=number),
            *([Free(0.0, number - 1)] if number else []),
            step(number),
        ]
    return stream


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ([1, 2, 3, 4], None),
        ([1, 2, 3, 4, 5], 5),
        ([9, 1, 2, 3, 4, 5], 5),
        ([1, 2, 3, 4, 5, 5], None),
        ([1, 2, 3, 4, 5, 4], None),
        ([1, 2, 3, 3, 4, 5, 6], None),
        ([1, 2, 3, 4, 5, 6, 7], 7),
    ],
)
def test_growth_needs_five_step_ends_in_a_row_up_to_the_last(sizes: list[int], steps: int | None) -> None:
    rows = Ledger(growing(sizes)).growth()
    assert [row.steps for row in rows] == ([] if steps is None else [steps])


@pytest.mark.slow
@given(
    st.lists(
        st.one_of(
            st.builds(
                alloc,
                st.integers(0, 12),
                st.integers(1, 9),
                frame=st.sampled_from([HERE, None]),
                category=st.sampled_from([ACTIVATION, INPUT]),
            ),
            st.builds(Free, st.just(0.0), st.integers(0, 12)),
            st.builds(Tag, st.integers(0, 12), st.sampled_from([ACTIVATION, INPUT])),
            st.just(step(0)),
        ),
        max_size=60,
    )
)
@settings(deadline=None)
def test_growth_equals_the_reference(stream: list[Event]) -> None:
    stream = [
        event._replace(step=index) if isinstance(event, Step) else event for index, event in enumerate(stream)
    ]
    at_ends: list[dict[tuple[Frame | None, Category], int]] = []
    for index, event in enumerate(stream):
        if isinstance(event, Step):
            sums: dict[tuple[Frame | None, Category], int] = {}
            for storage in Reference(stream[: index + 1]).live(index, 0):
                key = storage.frame, storage.category
                sums[key] = sums.get(key, 0) + storage.block_bytes
            at_ends.append(sums)
    expected = {}
    for key in at_ends[-1] if at_ends else ():
        steps = 1
        while steps < len(at_ends) and 0 < at_ends[-steps - 1].get(key, 0) < at_ends[-steps][key]:
            steps += 1
        if steps >= 2:
            expected[key] = steps, at_ends[-1][key]
    rows = Ledger(stream).growth(min_steps=2)
    found = {(HERE if row.file else None, row.category): (row.steps, row.bytes) for row in rows}
    assert found == expected


def test_growth_requires_the_given_number_of_steps() -> None:
    ledger = Ledger(growing([1, 2, 3, 4, 5, 6]))
    assert ledger.growth(min_steps=6)
    assert not ledger.growth(min_steps=7)


def test_growth_uses_the_new_category_of_a_tag() -> None:
    stream: list[Event] = []
    for number in range(6):
        stream += [alloc(number, 10, step=number), step(number), Tag(number, ACTIVATION)]
    stream.append(step(6))
    rows = Ledger(stream).growth()
    assert [(row.category, row.bytes) for row in rows] == [(ACTIVATION, 60)]


def test_growth_continues_after_a_gap() -> None:
    stream = growing([10, 20, 30])
    stream += [GapStarted(1.0), *(step(number) for number in range(3, 8))]
    stream += [Free(1.0, 2), alloc(7, 80), GapEnded(1.0)]
    stream += [alloc(8, 90), Free(1.0, 7), step(8), alloc(9, 100), Free(1.0, 8), step(9)]
    (row,) = Ledger(stream).growth()
    assert (row.steps, row.bytes_per_step) == (5, 10)


def test_a_training_loop_without_a_leak_does_not_grow() -> None:
    assert Ledger(training(8)).growth() == []


def test_a_training_loop_with_a_leak_grows() -> None:
    assert [row.steps for row in Ledger(training(8, leak=True)).growth()] == [8]


def test_the_peak_outside_the_optimizer_omits_the_tensors_of_its_step() -> None:
    stream = [alloc(1, 300), Free(0.0, 1), alloc(2, 100), alloc(3, 500, phase=Phase.OPTIMIZER), oom()]
    assert Ledger(stream).peak_in((Phase.FORWARD, Phase.BACKWARD, Phase.OTHER)) == 300
