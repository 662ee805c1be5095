"""How a run ended, kept in its capture as notes: only what was written down can be viewed later."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from legroom.memory.events import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """The last words of a run."""

    exit_code: int | None = None
    """None when the run never came to its end (killed, power cut)."""
    ended: str = "unknown"
    """`finished`, `exited`, `raised`, `interrupted`, `left`, or `unknown`."""
    error: str = ""
    """The uncaught exception in one line."""
    traceback: str = ""
    seconds: float = 0.0


def as_notes(ending: ExitStatus) -> list[Note]:
    facts = {
        "exit_code": ending.exit_code,
        "ended": ending.ended,
        "error": ending.error,
        "seconds": round(ending.seconds, 6),
    }
    notes = [Note(ending.seconds, "exit", json.dumps(facts))]
    if ending.traceback:
        notes.insert(0, Note(ending.seconds, "traceback", ending.traceback))
    return notes


def from_notes(notes: Sequence[Note]) -> ExitStatus:
    """What the notes say; of several, the last."""
    traceback = next((note.text for note in reversed(notes) if note.kind == "traceback"), "")
    facts: object = None
    for note in reversed(notes):
        if note.kind == "exit":
            try:
                facts = json.loads(note.text)
            except ValueError:
                facts = None
            break
    if not isinstance(facts, dict):
        return ExitStatus(traceback=traceback, seconds=notes[-1].time if notes else 0.0)
    code, seconds = facts.get("exit_code"), facts.get("seconds")
    return ExitStatus(
        exit_code=code if isinstance(code, int) else None,
        ended=str(facts.get("ended", "unknown")),
        error=str(facts.get("error", "")),
        traceback=traceback,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
    )
