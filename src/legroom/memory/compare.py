"""Compares the memory at two points in a run, or at the peaks of two runs.

Files are compared relative to the folder in which each run started, so the captures of two checkouts can be compared.
If the code was edited between two runs, a line that moved is recognized by its text, which may differ slightly. A
capture contains the text of its most important lines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from legroom.memory.annotations import SourceLines
from legroom.memory.capture.reader import Capture
from legroom.memory.event_base import Frame
from legroom.memory.ledger import Ledger
from legroom.memory.state import State

_Name = TypeVar("_Name", bound=str)


class Change(NamedTuple):
    what: str
    """A category, a module or `file:line`, or "" if unknown."""
    before: int
    after: int
    delta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The changes between two states in bytes, largest first."""

    allocated: Change
    reserved: Change
    by_category: list[Change]
    by_line: list[Change]
    by_module: list[Change]


def compare(before: State, after: State) -> Difference:
    """Return the changes from `before` to `after`, with lines matched by file and line number."""
    return _difference(before, after, _named(before.by_line()), _named(after.by_line()))


def compare_captures(before: Capture, after: Capture, *, device: int = 0) -> Difference:
    first, second = _at_peak(before, device), _at_peak(after, device)
    lines_before, lines_after = _matched(_lines(first, before), _lines(second, after))
    return _difference(first, second, _by_name(lines_before), _by_name(lines_after))


def _at_peak(capture: Capture, device: int) -> State:
    ledger = Ledger(capture.events)
    return ledger.at(ledger.peak(device).index, device)


def _difference(
    before: State, after: State, lines_before: Mapping[str, int], lines_after: Mapping[str, int]
) -> Difference:
    return Difference(
        allocated=_change("allocated", before.allocated, after.allocated),
        reserved=_change("reserved", before.reserved, after.reserved),
        by_category=_changes(before.by_category(), after.by_category()),
        by_line=_changes(lines_before, lines_after),
        by_module=_changes(before.by_module(), after.by_module()),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of code: its file relative to the folder of the run, its line number, its text and its memory."""

    file: str
    number: int
    text: str | None
    bytes: int


def _lines(state: State, capture: Capture) -> list[_Line]:
    folder = capture.run.get("folder")
    prefix = f"{folder.rstrip('/')}/" if isinstance(folder, str) and folder else "\0"
    texts = {
        (source.file, number): text.strip()
        for source in capture.events
        if isinstance(source, SourceLines)
        for number, text in source.lines
    }
    return [
        _Line(frame.file.removeprefix(prefix), frame.line, texts.get((frame.file, frame.line)), size)
        if frame
        else _Line("", 0, None, size)
        for frame, size in state.by_line().items()
    ]


def _matched(before: list[_Line], after: list[_Line]) -> tuple[list[_Line], list[_Line]]:
    """Return both lists. If a line of `before` moved within its file, it gets its new line number from `after`."""
    unchanged = {(line.file, line.number, line.text) for line in before} & {
        (line.file, line.number, line.text) for line in after
    }
    candidates = [
        line for line in after if line.text and (line.file, line.number, line.text) not in unchanged
    ]
    renumbered = []
    edited = []
    for line in sorted(before, key=lambda line: line.number):
        if not line.text or (line.file, line.number, line.text) in unchanged:
            renumbered.append(line)
            continue
        found = next((each for each in candidates if (each.file, each.text) == (line.file, line.text)), None)
        if found is None:
            edited.append(line)
        else:
            candidates.remove(found)
            renumbered.append(replace(line, number=found.number))
    for line in edited:
        texts = [each.text for each in candidates if each.file == line.file and each.text]
        close = get_close_matches(line.text or "", texts, n=1)
        found = next((each for each in candidates if close and each.text == close[0]), None)
        if found is not None:
            candidates.remove(found)
        renumbered.append(line if found is None else replace(line, number=found.number))
    return renumbered, after


def _by_name(lines: list[_Line]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for line in lines:
        name = f"{line.file}:{line.number}" if line.file else ""
        sums[name] = sums.get(name, 0) + line.bytes
    return sums


def _named(by_line: Mapping[Frame | None, int]) -> dict[str, int]:
    return {f"{frame.file}:{frame.line}" if frame else "": size for frame, size in by_line.items()}


def _changes(before: Mapping[_Name, int], after: Mapping[_Name, int]) -> list[Change]:
    changes = [_change(str(what), before.get(what, 0), after.get(what, 0)) for what in {**before, **after}]
    nonzero = [change for change in changes if change.before or change.after]
    return sorted(nonzero, key=lambda change: (-abs(change.delta), change.what))


def _change(what: str, before: int, after: int) -> Change:
    return Change(what, before, after, after - before)
