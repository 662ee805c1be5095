"""Formats locations, durations, counts and phases for reports."""

import os
import re

from legroom.findings import Finding
from legroom.log import one_line, printable
from legroom.memory.event_base import Frame, Phase
from legroom.observe.source.cells import cell_name, is_cell_name
from legroom.units import format_size

_PHASES = {
    Phase.FORWARD: "in the forward pass",
    Phase.BACKWARD: "in the backward pass",
    Phase.OPTIMIZER: "in the optimizer step",
    Phase.OTHER: "outside forward and backward",
}
BETWEEN_PASSES = "between the forward and the backward pass"
"""Memory was used after the forward pass, for example by the loss function, and the backward pass had not begun."""


def format_phase(phase: str) -> str:
    return _PHASES[Phase(phase)] if phase in set(Phase) else phase


def format_location(file: str | None, line: int | None, *, max_length: int = 44) -> str:
    """Format a location, for example `train.py:31` or `cell [3], line 2`. The path of a file below the working
    directory is relative. The first folders of a long path are omitted, but never a part of a name.
    """
    if not file:
        return "unknown line"
    shown = one_line(cell_name(file) or file)
    if is_cell_name(shown):
        return f"{shown}, line {line}" if line else shown
    if os.path.isabs(shown):
        shown = os.path.normpath(shown)
        relative = os.path.relpath(shown)
        shown = shown if relative.startswith("..") else relative
    number = f":{line}" if line else ""
    return _shorten_path(shown, max_length - len(number)) + number


def _shorten_path(path: str, max_length: int) -> str:
    """Omit the first folders of a path, so that it has at most `max_length` characters. The file name stays complete."""
    if len(path) <= max_length:
        return path
    ends = [f"…{path[match.start() :]}" for match in re.finditer(r"[\\/](?=[^\\/])", path)]
    return next((end for end in ends if len(end) <= max_length), re.split(r"[\\/]", path)[-1])


def format_frame(frame: Frame | None) -> str:
    return format_location(frame.file, frame.line) if frame else "unknown line"


def format_duration(seconds: float) -> str:
    """Format a duration, for example `0.4 s`, `42 s`, `3 min 05 s` or `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_count(number: int, noun: str) -> str:
    """Format a count with its unit, for example `1 step`, `2 steps` or `12,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_saving(finding: Finding) -> str:
    """Format the memory that a suggested change saves, or return an empty string if it is unknown."""
    if finding.saves <= 0:
        return ""
    remark = " (may not be enough)" if finding.evidence.get("may_not_suffice") else ""
    return f"saves about {format_size(finding.saves)}{remark}"


def clean(text: str) -> str:
    """Replace control characters, because a capture may be untrusted and a terminal would execute its control
    characters.
    """
    return printable(text)
