"""The lines of the user's code that a report shows.

These lines are read at the end of the run and stored in the capture. A report therefore also works on another machine
or after the code has changed. A report never opens a file whose path comes from an untrusted capture.
"""

import linecache
from collections.abc import Iterable, Mapping

from legroom.memory.annotations import SourceLines
from legroom.memory.event_base import Annotation, Frame

CONTEXT_LINES = 2
"""The number of lines that are shown before and after a line."""
_MAX_LENGTH, _MAX_FRAMES = 300, 200

Sources = Mapping[str, Mapping[int, str]]


def read_sources(frames: Iterable[Frame]) -> Sources:
    found: dict[str, dict[int, str]] = {}
    for frame in list(dict.fromkeys(frames))[:_MAX_FRAMES]:
        lines = linecache.getlines(frame.file)
        for number in range(
            max(frame.line - CONTEXT_LINES, 1), min(frame.line + CONTEXT_LINES, len(lines)) + 1
        ):
            found.setdefault(frame.file, {})[number] = lines[number - 1].rstrip("\n")[:_MAX_LENGTH]
    return found


def to_annotations(sources: Sources, time: float) -> list[SourceLines]:
    return [SourceLines(time, file, tuple(lines.items())) for file, lines in sources.items()]


def from_annotations(annotations: Iterable[Annotation]) -> Sources:
    found: dict[str, dict[int, str]] = {}
    for annotation in annotations:
        if isinstance(annotation, SourceLines):
            found.setdefault(annotation.file, {}).update(annotation.lines)
    return found
