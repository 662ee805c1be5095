"""The lines of the user's code that a report speaks of, read while the code is still as it ran.

They are kept in the capture, so that a report can be read on another machine, after the code has changed, and without
a viewer ever opening a file that a stranger's capture names.
"""

import linecache
from collections.abc import Iterable, Mapping

from legroom.memory.annotations import Annotation, SourceLines
from legroom.memory.events import Frame

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


def to_annotations(sources: Sources, time: float) -> list[SourceLines]:
    return [SourceLines(time, file, tuple(lines.items())) for file, lines in sources.items()]


def from_annotations(annotations: Iterable[Annotation]) -> Sources:
    found: dict[str, dict[int, str]] = {}
    for annotation in annotations:
        if isinstance(annotation, SourceLines):
            found.setdefault(annotation.file, {}).update(annotation.lines)
    return found
