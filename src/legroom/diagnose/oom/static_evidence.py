"""Asks the linter about the user's source files, if the run itself does not show why memory is in use."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from legroom.memory.event_base import Frame

if TYPE_CHECKING:
    from legroom.diagnose.lint.finding import LintFinding

MAX_BYTES = 200_000
"""The total size of the files that are analyzed for a report, so that it is printed without a noticeable delay."""
MAX_FILES = 8
_ALWAYS = "The evaluation runs with gradients enabled"
"""The start of the message for a line that only evaluates. Other lines also train, depending on a condition."""


def evaluates_with_gradients(call: Frame) -> bool:
    """Return whether the linter reports LG201 for the line of a model call."""
    return any(
        each.code == "LG201" and each.line == call.line and each.message.startswith(_ALWAYS)
        for each in _findings(call.file)
    )


def find_causes(files: Iterable[str], codes: Iterable[str]) -> list["LintFinding"]:
    """Return the problems with these codes in the first files, in the order of the codes."""
    found: list[LintFinding] = []
    remaining = MAX_BYTES
    for file in islice(files, MAX_FILES):
        size = _size(file)
        if size <= remaining:
            remaining -= size
            found += _findings(file)
    return [each for code in codes for each in found if each.code == code]


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _findings(file: str) -> tuple["LintFinding", ...]:
    """Return the linter's findings. The result is empty if the linter is not installed or fails, because the report must
    be printed in any case.
    """
    try:
        from legroom.diagnose.lint.engine import lint_text  # slow to import

        path = Path(file)
        if path.suffix != ".py" or _size(file) > MAX_BYTES:
            return ()
        return tuple(lint_text(path.read_text("utf-8"), file=file))
    except Exception:
        return ()
