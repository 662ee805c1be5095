"""What a run moved to host memory, kept in its capture as a note."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legroom.memory.events import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """The account of a `legroom run --spill`. Sizes in bytes."""

    moved_bytes: int = 0
    """Over the whole run."""
    moved_tensors: int = 0
    peak_host_bytes: int = 0
    left_bytes: int = 0
    """Not moved for want of host memory, over the whole run."""
    budget_bytes: int = 0
    """How much host memory was allowed; 0 for most of what was free."""
    seconds: float = 0.0
    """What it cost."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def as_note(spilled: Spilled, time: float) -> Note:
    return Note(time, "spill", json.dumps(spilled.as_dict()))


def from_notes(notes: Sequence[Note]) -> Spilled | None:
    """What the notes say; of several, the last. None for a run without spilling, or a note that makes no sense."""
    text = next((note.text for note in reversed(notes) if note.kind == "spill"), "null")
    try:
        facts = json.loads(text)
        return None if facts is None else Spilled(**{key: _number(value) for key, value in facts.items()})
    except (ValueError, TypeError, AttributeError):
        return None


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(value)
    return value
