"""The lines of the user's code that a report shows.

These lines are read at the end of the run and stored in the capture. A report therefore also works on another machine
or after the code has changed. A report never opens a file whose path comes from an untrusted capture.
"""

import linecache
from collections.abc import Iterable, Mapping

from legroom.memory.annotations import SourceLines
from legroom.memory.event_base import Annotation, Frame

CONTEXT_LINES = 2
"""The number of lines that are shown before and after each line."""
_MAX_LENGTH, _MAX_FRAMES = 300, 200

Sources = Mapping[str, Mapping[int, str]]
"""Maps file names to the text of their lines by line number."""


def read_sources(frames: Iterable[Frame]) -> Sources:
    """Read the lines at and around `frames` from their files."""
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
    """Read the lines from a capture's annotations."""
    found: dict[str, dict[int, str]] = {}
    for annotation in annotations:
        if isinstance(annotation, SourceLines):
            found.setdefault(annotation.file, {}).update(annotation.lines)
    return found
