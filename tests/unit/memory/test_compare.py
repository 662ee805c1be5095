"""Comparing two states, and two runs."""

from pathlib import Path

from example_events import alloc

from legroom.memory.capture.capture import CaptureWriter, read_capture
from legroom.memory.compare import Change, compare, compare_captures
from legroom.memory.events import Category, Event, Frame, Free, SegmentChange, Tag
from legroom.memory.ledger import Ledger

OTHER_LINE = Frame("model.py", 7, "forward")
BEFORE: list[Event] = [
    SegmentChange(0.0, 0, 1000),
    alloc(1, 100, category=Category.PARAMETER, module="net.a"),
    alloc(2, 300, module="net.b", frame=OTHER_LINE),
]
AFTER: list[Event] = [
    SegmentChange(0.0, 0, 4000),
    alloc(1, 100, category=Category.PARAMETER, module="net.a"),
    alloc(2, 50, module="net.b", frame=OTHER_LINE),
    alloc(3, 20, category=Category.INPUT, module="", frame=None),
]


def test_totals_are_compared() -> None:
    difference = compare(Ledger(BEFORE).now(), Ledger(AFTER).now())
    assert difference.allocated == Change("allocated", 400, 170, -230)
    assert difference.reserved == Change("reserved", 1000, 4000, 3000)


def test_categories_are_compared_and_the_largest_change_comes_first() -> None:
    difference = compare(Ledger(BEFORE).now(), Ledger(AFTER).now())
    assert difference.by_category == [
        Change("temporary", 300, 50, -250),
        Change("input", 0, 20, 20),
        Change("parameter", 100, 100, 0),
    ]


def test_lines_are_compared() -> None:
    difference = compare(Ledger(BEFORE).now(), Ledger(AFTER).now())
    assert difference.by_line == [
        Change("model.py:7", 300, 50, -250),
        Change("", 0, 20, 20),
        Change("train.py:12", 100, 100, 0),
    ]


def test_modules_are_compared() -> None:
    difference = compare(Ledger(BEFORE).now(), Ledger(AFTER).now())
    assert difference.by_module == [
        Change("net.b", 300, 50, -250),
        Change("", 0, 20, 20),
        Change("net.a", 100, 100, 0),
    ]


def test_a_state_has_no_difference_to_itself() -> None:
    state = Ledger(BEFORE).now()
    difference = compare(state, state)
    for rows in (difference.by_category, difference.by_line, difference.by_module):
        assert rows
        assert all(row.delta == 0 for row in rows)


def test_captures_are_compared_at_their_peaks(tmp_path: Path) -> None:
    def capture(name: str, stream: list[Event]) -> Path:
        with CaptureWriter(tmp_path / name, run={}) as writer:
            for event in stream:
                writer.write(event)
        return writer.path

    spike: list[Event] = [alloc(9, 5000), Tag(9, Category.WORKSPACE), Free(1.0, 9)]
    before = read_capture(capture("before.legroom", BEFORE))
    after = read_capture(capture("after.legroom", [*BEFORE, *spike]))
    difference = compare_captures(before, after)
    assert difference.allocated == Change("allocated", 400, 5400, 5000)
    assert difference.by_category[0] == Change("workspace", 0, 5000, 5000)
    assert compare_captures(before, after, device=1).allocated.delta == 0
