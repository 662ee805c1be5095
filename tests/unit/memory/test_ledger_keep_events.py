"""`keep_events` drops the least important events, and the totals stay the same."""

import pytest
from example_events import alloc, oom, training

from legroom.errors import UsageError
from legroom.memory.event_base import Category
from legroom.memory.events import Event, Free, Holder, Step, Tag
from legroom.memory.ledger import Ledger

LIMIT = 20_000


def long_run() -> list[Event]:
    """Return a run with an early peak and three `Oom` events."""
    stream: list[Event] = []
    for event in training(200, leak=True):
        if isinstance(event, Step) and event.step == 20:
            stream += [alloc(10**9, 10**9, time=event.time), Free(event.time, 10**9)]
        if isinstance(event, Step) and event.step in (60, 90, 120):
            stream += [oom(time=event.time, at_step=event.step), Holder("losses", event.step, 1, None)]
        stream.append(event)
    return stream


@pytest.fixture(scope="module")
def both() -> tuple[Ledger, Ledger]:
    """Return two ledgers of the same run: one keeps all events, the other few."""
    stream = long_run()
    bounded = Ledger(keep_events=LIMIT)
    for event in stream:
        bounded.apply(event)
    return Ledger(stream), bounded


@pytest.mark.slow
def test_few_events_are_kept(both: tuple[Ledger, Ledger]) -> None:
    complete, bounded = both
    assert len(bounded) == len(complete) > 4 * LIMIT
    assert sum(len(span.events) for span in bounded._spans) <= LIMIT + LIMIT // 4


def test_the_peak_is_kept_with_its_state(both: tuple[Ledger, Ledger]) -> None:
    complete, bounded = both
    assert bounded.peak() == complete.peak()
    index = bounded.peak().index
    assert bounded.at(index) == complete.at(index)


def test_the_first_and_last_oom_are_kept_with_their_states(both: tuple[Ledger, Ledger]) -> None:
    complete, bounded = both
    assert bounded.ooms() == complete.ooms()
    assert bounded.at_oom(0) == complete.at_oom(0)
    assert bounded.at_oom(2) == complete.at_oom(2)
    assert [bounded.holders(number)[0].bytes for number in range(3)] == [60, 90, 120]


def test_every_step_total_is_kept(both: tuple[Ledger, Ledger]) -> None:
    complete, bounded = both
    assert bounded.steps() == complete.steps()


def test_the_last_state_and_growth_are_unchanged(both: tuple[Ledger, Ledger]) -> None:
    complete, bounded = both
    assert bounded.now() == complete.now()
    assert bounded.growth() == complete.growth() != []


def test_the_state_at_the_last_step_is_kept(both: tuple[Ledger, Ledger]) -> None:
    complete, bounded = both
    assert bounded.at_step(199) == complete.at_step(199)


def test_a_dropped_event_is_an_error(both: tuple[Ledger, Ledger]) -> None:
    _, bounded = both
    with pytest.raises(UsageError, match="was dropped to save memory"):
        bounded.at_step(40)


@pytest.mark.slow
def test_the_end_of_the_last_step_is_kept_after_many_events() -> None:
    stream: list[Event] = [alloc(1, 10), Step(0.5, 0, 0.5, 0, 10, 20, 10, 20)]
    for number in range(2, 4 * LIMIT):
        stream += [alloc(number, 1), Free(1.0, number)]
    complete, bounded = Ledger(stream), Ledger(stream, keep_events=LIMIT)
    assert bounded.at_last_step() == complete.at_last_step() == complete.at_step(0)


def test_allocations_before_an_oom_are_listed_newest_first(
    both: tuple[Ledger, Ledger],
) -> None:
    complete, bounded = both
    every, known = list(complete.allocations_before_oom(2)), list(bounded.allocations_before_oom(2))
    assert 0 < len(known) < len(every)
    assert known == every[: len(known)]


def test_the_timeline_of_the_kept_events_contains_the_peak(both: tuple[Ledger, Ledger]) -> None:
    complete, bounded = both
    assert max(sample.allocated for sample in bounded.timeline(80)) == complete.peak().bytes


@pytest.mark.slow
def test_old_steps_are_dropped_but_their_highest_peak_is_known() -> None:
    ledger = Ledger(keep_events=LIMIT)
    for step in range(60_000):
        for device in (0, 1):
            ledger.apply(Step(step * 0.1, step, 0.1, device, 1, 1, 5 if step == 7 else 1, 2))
    kept = ledger.steps(1)
    assert len(ledger.steps()) <= 20_000 + LIMIT
    assert [step.step for step in kept[-1000:]] == list(range(59_000, 60_000))
    assert kept[0].step == 0
    assert ledger.peak_of_steps(1) == (5, 2)


@pytest.mark.slow
def test_tags_of_dropped_events_are_dropped() -> None:
    ledger = Ledger(keep_events=LIMIT)
    ledger._tags_to_keep = 100
    for event in training(300):
        ledger.apply(event)
    assert len(ledger) > 100_000
    assert len(ledger._tags) < 15_000


@pytest.mark.slow
def test_tags_of_live_storages_are_kept() -> None:
    ledger = Ledger([alloc(10**9, category=Category.TEMPORARY)], keep_events=LIMIT)
    ledger._tags_to_keep = 100
    ledger.apply(Tag(10**9, Category.PARAMETER))
    for event in training(200):
        ledger.apply(event)
    assert ledger.now().by_category()[Category.PARAMETER] == 1000
