"""What changed between two moments, or between two runs at their peaks.

Lines are matched by file and number. Between two runs of edited code they move; categories and modules do not.
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
    """A category, a module or `file:line`; "" where none is known."""
    before: int
    after: int
    delta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of two states. Rows are in bytes, the largest change first; what neither holds is left out."""

    allocated: Change
    reserved: Change
    by_category: list[Change]
    by_line: list[Change]
    by_module: list[Change]


def compare(before: State, after: State) -> Difference:
    """What changed from one moment to another."""
    return Difference(
        allocated=_change("allocated", before.allocated, after.allocated),
        reserved=_change("reserved", before.reserved, after.reserved),
        by_category=_changes(before.by_category(), after.by_category()),
        by_line=_changes(_named(before.by_line()), _named(after.by_line())),
        by_module=_changes(before.by_module(), after.by_module()),
    )


def compare_captures(before: Capture, after: Capture, *, device: int = 0) -> Difference:
    """What changed from one run to another, each at the moment when the most was allocated."""
    first, second = Ledger(before.events), Ledger(after.events)
    return compare(first.at(first.peak(device).index, device), second.at(second.peak(device).index, device))


def _named(by_line: Mapping[Frame | None, int]) -> dict[str, int]:
    return {f"{frame.file}:{frame.line}" if frame else "": size for frame, size in by_line.items()}


def _changes(before: Mapping[_Name, int], after: Mapping[_Name, int]) -> list[Change]:
    rows = [_change(str(what), before.get(what, 0), after.get(what, 0)) for what in {**before, **after}]
    held = [row for row in rows if row.before or row.after]
    return sorted(held, key=lambda row: (-abs(row.delta), row.what))


def _change(what: str, before: int, after: int) -> Change:
    return Change(what, before, after, after - before)
