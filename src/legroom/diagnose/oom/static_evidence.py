"""Asks the linter about the user's source files, if the run itself does not show why memory is in use."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from legroom.memory.event_base import Frame

if TYPE_CHECKING:
    from legroom.diagnose.lint.finding import LintFinding

MAX_BYTES = 200_000
"""Larger files are not analyzed, so that the report is printed within a second."""
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
    found = [each for file in list(files)[:MAX_FILES] for each in _findings(file)]
    return [each for code in codes for each in found if each.code == code]


@lru_cache(maxsize=16)
def _findings(file: str) -> tuple["LintFinding", ...]:
    """Return the linter's findings. The result is empty if the linter is not installed or fails, because the report must
    be printed in any case.
    """
    try:
        from legroom.diagnose.lint.engine import lint_text  # slow to import

        path = Path(file)
        if path.suffix != ".py" or path.stat().st_size > MAX_BYTES:
            return ()
        return tuple(lint_text(path.read_text("utf-8"), file=file))
    except Exception:
        return ()
