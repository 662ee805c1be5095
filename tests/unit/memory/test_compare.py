"""Comparing two states, and two runs."""

from pathlib import Path

from example_events import alloc

from legroom.memory.annotations import SourceLines
from legroom.memory.capture.capture import Capture, CaptureWriter, read_capture
from legroom.memory.compare import Change, compare, compare_captures
from legroom.memory.event_base import Category, Frame
from legroom.memory.events import Event, Free, SegmentChange, Tag
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


def test_lines_that_moved_are_matched_by_their_text() -> None:
    def capture(folder: str, numbers: dict[int, tuple[str, int]]) -> Capture:
        file = f"{folder}/model.py"
        events: list[Event] = [
            alloc(number, size, frame=Frame(file, number, "forward")) for number, (_, size) in numbers.items()
        ]
        lines = tuple((number, text) for number, (text, _) in numbers.items())
        events.append(SourceLines(1.0, file, lines))
        return Capture(path=Path("x"), run={"folder": folder}, events=events, truncated=False, dropped=0)

    before = capture(
        "/home/ada", {3: ("x = self.up(x)", 100), 4: ("y = torch.zeros(512)", 10), 5: ("z = a", 7)}
    )
    after = capture(
        "/builds", {4: ("x = self.up(x)", 300), 6: ("y = torch.zeros(384)", 5), 5: ("other()", 9)}
    )
    difference = compare_captures(before, after)
    assert difference.by_line == [
        Change("model.py:4", 100, 300, 200),
        Change("model.py:6", 10, 5, -5),
        Change("model.py:5", 7, 9, 2),
    ]
