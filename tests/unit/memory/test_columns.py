"""Columns, moments and layouts agree with the ledger."""

import pytest
from example_events import alloc, training
from hypothesis import given
from hypothesis import strategies as st

from example_runs import Run
from legroom.memory.annotations import GapEnded, GapStarted
from legroom.memory.columns import CATEGORIES, final_categories, history_of
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Event, Free, SegmentChange, Tag
from legroom.memory.layout import layout_after
from legroom.memory.ledger import Ledger
from legroom.memory.moments import live_sites
from legroom.units import MiB


def random_events(changes: list[tuple[int, bool, int]]) -> list[Event]:
    events: list[Event] = []
    alive: list[int] = []
    for id, (size, dies, segment) in enumerate(changes):
        events += [alloc(id, 512 * size, time=float(id)), SegmentChange(float(id), 0, segment)]
        alive.append(id)
        if dies:
            events.append(Free(float(id), alive.pop(0)))
    return events


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.booleans(), st.integers(0, 20)), min_size=1, max_size=80),
    st.integers(1, 40),
)
def test_every_resolution_contains_the_peaks(changes: list[tuple[int, bool, int]], number: int) -> None:
    events = random_events(changes)
    history = history_of(events, 0, {}, max_columns=number)
    ledger = Ledger(events)
    columns = history.levels[0]
    assert len(columns) <= number
    assert columns.times == sorted(columns.times)
    for level in (columns, columns.coarser(), columns.coarser().coarser()):
        assert max(map(sum, level.sums)) == ledger.peak().bytes
        assert max(level.reserved) == ledger.peak(of="reserved").bytes
        for sums, index in zip(level.sums, level.indices, strict=True):
            assert dict(zip(CATEGORIES, sums, strict=True)) == ledger.at(index).by_category()


@pytest.mark.slow
def test_moments_have_the_live_memory_of_the_ledger() -> None:
    events = list(training(10))
    tags = final_categories(events)
    ledger = Ledger(events)
    sites, moments = live_sites(events, 0, tags, range(0, len(events), 7))
    for moment in moments:
        by_module: dict[str, int] = {}
        by_category = dict.fromkeys(Category, 0)
        for position, size in zip(moment.sites, moment.bytes, strict=True):
            site = sites[position]
            by_module[site.module] = by_module.get(site.module, 0) + size
            by_category[site.category] += size
        state = ledger.at(moment.index)
        assert by_category == state.by_category()
        assert by_module == state.by_module()
        assert sum(moment.counts) == len(state.live)


def test_a_gap_has_no_columns() -> None:
    events: list[Event] = [
        alloc(1, 10, time=1.0),
        GapStarted(2.0, 5),
        alloc(2, 20, time=5.0),
        GapEnded(5.0),
        alloc(3, 30, time=6.0),
    ]
    history = history_of(events, 0, {})
    assert history.gaps == [(2.0, 5.0)]
    assert [(time, sum(sums)) for time, sums in zip(history.levels[0].times, history.levels[0].sums, strict=True)] == [
        (1.0, 10),
        (5.0, 30),
        (6.0, 60),
    ]  # fmt: skip


def test_the_phase_of_a_step_ends_with_the_step() -> None:
    run = Run()
    run.alloc(10)
    run.phase = Phase.OPTIMIZER
    block = run.alloc(5)
    run.end_step()
    run.free(block)
    phases = history_of(run.events, 0, {}).phases
    assert [phase for _, phase in phases] == [Phase.FORWARD, Phase.OPTIMIZER, Phase.OTHER]
    assert history_of(run.events, 1, {}).phases == []


def test_a_layout_contains_every_block_and_its_category() -> None:
    events: list[Event] = [
        SegmentChange(0.0, 0, 20 * MiB),
        alloc(1, 4 * MiB),
        alloc(2, 6 * MiB),
        Free(1.0, 1),
        Tag(2, Category.GRADIENT),
    ]
    layout = layout_after(events, len(events) - 1, 0, final_categories(events))
    (segment,) = layout.segments
    assert layout.is_exact
    assert [(block.size // MiB, block.alloc and block.alloc.category) for block in segment.blocks] == [
        (4, None),
        (6, Category.GRADIENT),
        (10, None),
    ]


def test_an_emptied_cache_is_replayed() -> None:
    events: list[Event] = [
        SegmentChange(0.0, 0, 20 * MiB),
        alloc(1, 4 * MiB),
        Free(1.0, 1),
        SegmentChange(1.0, 0, -20 * MiB),
    ]
    assert layout_after(events, 3, 0, {}).segments == ()
    assert not layout_after([*events, SegmentChange(2.0, 0, 5)], 4, 0, {}).is_exact
