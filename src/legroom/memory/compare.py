"""Compares the memory at two points of a run, or at the peaks of two runs.

Lines are matched by file and line number. If the code was edited between two runs, line numbers differ, but categories
and modules still match.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from legroom.memory.capture.reader import Capture
from legroom.memory.events import Frame
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
    """Return the changes from `before` to `after`."""
    return Difference(
        allocated=_change("allocated", before.allocated, after.allocated),
        reserved=_change("reserved", before.reserved, after.reserved),
        by_category=_changes(before.by_category(), after.by_category()),
        by_line=_changes(_named(before.by_line()), _named(after.by_line())),
        by_module=_changes(before.by_module(), after.by_module()),
    )


def compare_captures(before: Capture, after: Capture, *, device: int = 0) -> Difference:
    """Return the changes between two runs, each at its peak of allocated memory."""
    first, second = Ledger(before.events), Ledger(after.events)
    return compare(first.at(first.peak(device).index, device), second.at(second.peak(device).index, device))


def _named(by_line: Mapping[Frame | None, int]) -> dict[str, int]:
    return {f"{frame.file}:{frame.line}" if frame else "": size for frame, size in by_line.items()}


def _changes(before: Mapping[_Name, int], after: Mapping[_Name, int]) -> list[Change]:
    changes = [_change(str(what), before.get(what, 0), after.get(what, 0)) for what in {**before, **after}]
    nonzero = [change for change in changes if change.before or change.after]
    return sorted(nonzero, key=lambda change: (-abs(change.delta), change.what))


def _change(what: str, before: int, after: int) -> Change:
    return Change(what, before, after, after - before)
