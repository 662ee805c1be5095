"""The lines of the user's code that a report speaks of, read while the code is still as it ran.

They are kept in the capture, so that a report can be read on another machine, after the code has changed, and without
a viewer ever opening a file that a stranger's capture names.
"""

import json
import linecache
from collections.abc import Iterable, Mapping

from legroom.memory.events import Frame, Note

KIND = "source"
"""The kind of Note that holds them."""
AROUND = 2
"""Lines before and after each."""
_LONGEST, _MOST = 300, 200

Sources = Mapping[str, Mapping[int, str]]
"""File, line number, text."""


def read_sources(frames: Iterable[Frame]) -> Sources:
    """The lines at and around `frames`, as they stand in their files now."""
    found: dict[str, dict[int, str]] = {}
    for frame in list(dict.fromkeys(frames))[:_MOST]:
        lines = linecache.getlines(frame.file)
        for number in range(max(frame.line - AROUND, 1), min(frame.line + AROUND, len(lines)) + 1):
            found.setdefault(frame.file, {})[number] = lines[number - 1].rstrip("\n")[:_LONGEST]
    return found


def as_note(sources: Sources, time: float) -> Note:
    return Note(time, KIND, json.dumps(sources))


def from_notes(notes: Iterable[Note]) -> Sources:
    """What notes of this kind hold; anything that is not as it should be is left out."""
    found: dict[str, dict[int, str]] = {}
    for note in notes:
        if note.kind != KIND:
            continue
        try:
            files = json.loads(note.text)
        except ValueError:
            continue
        for file, lines in files.items() if isinstance(files, dict) else ():
            for number, text in lines.items() if isinstance(lines, dict) else ():
                if number.isdecimal() and isinstance(text, str):
                    found.setdefault(file, {})[int(number)] = text
    return found
