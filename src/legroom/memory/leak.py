"""Something that a training loop keeps, a little more of it with each step: the leak detector's verdict, as plain data.

It travels through a capture as a note, so that a report made later says what was seen while the objects were alive.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from legroom.memory.events import Note

KIND = "leak"
"""The kind of note that carries one."""

Kind = Literal["graph", "tensor", "larger"]
How = Literal[
    "container", "variable", "carried", "cache", "exception", "closure", "generator", "cycle", "unknown"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One thing that grows."""

    kind: Kind
    """`graph`: an autograd graph grows; `tensor`: tensors gather; `larger`: one tensor is born larger each time."""
    how: How
    """What keeps it: a container, a variable that feeds itself, a state carried on, a cache, a stored exception ..."""
    name: str
    """The variable, as the user writes it: `losses`, `trainer.history`; "" where none is known."""
    described: str
    """What it is: `list, 412 items`."""
    file: str | None
    line: int | None
    """Where it is stored; where that is not known, where the growing part is made."""
    function: str
    bytes_per_step: int
    nodes_per_step: int
    storages_per_step: int
    step: int
    """When the verdict was reached."""
    steps: int
    """For how many steps it had been seen growing by then."""
    evaluation: bool = False
    """Whether no backward pass was seen: the loop evaluates."""
    on_host: bool = False
    """Whether it gathers in the host's memory while the work is done on a device."""

    @property
    def identity(self) -> tuple[str, str | None, int | None]:
        """The same leak, seen again with other figures."""
        return self.name, self.file, self.line

    def as_note(self, time: float) -> Note:
        return Note(time, KIND, json.dumps(asdict(self)))


def from_notes(notes: Iterable[Note]) -> list[Kept]:
    """The verdicts of a run: of the same leak the last, in the order in which they were first reached."""
    found: dict[tuple[str, str | None, int | None], Kept] = {}
    for note in notes:
        if note.kind == KIND:
            kept = _read(note.text)
            if kept is not None:
                found[kept.identity] = kept
    return list(found.values())


def _read(text: str) -> Kept | None:
    """A note may come from a stranger's capture: anything odd is left out."""
    try:
        row: dict[str, Any] = json.loads(text)
        return Kept(**{field.name: row[field.name] for field in fields(Kept) if field.name in row})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
