"""The difference of two runs, as programs read it."""

from typing import Any

from legroom.memory.compare import Change, Difference


def as_dict(difference: Difference) -> dict[str, Any]:
    return {
        "allocated": _row(difference.allocated),
        "reserved": _row(difference.reserved),
        "by_category": [_row(change) for change in difference.by_category],
        "by_line": [_row(change) for change in difference.by_line],
        "by_module": [_row(change) for change in difference.by_module],
    }


def _row(change: Change) -> dict[str, Any]:
    return {
        "what": change.what,
        "before_bytes": change.before,
        "after_bytes": change.after,
        "delta_bytes": change.delta,
    }
