"""Asks the linter whether a line evaluates a model with gradients, if the run itself gives no evidence."""

from functools import lru_cache
from pathlib import Path

from legroom.memory.event_base import Frame

MAX_BYTES = 200_000
"""Larger files are not analyzed, so that the report is printed within a second."""
_ALWAYS = "The evaluation runs with gradients enabled"
"""The start of the message for a line that only evaluates. Other lines also train, depending on a condition."""


@lru_cache(maxsize=16)
def evaluates_with_gradients(call: Frame) -> bool:
    """Return whether the linter reports LG201 for the line of a model call. Return False if the linter is not installed
    or fails, because the report must be printed in any case.
    """
    try:
        from legroom.diagnose.lint.engine import lint_text  # slow to import

        path = Path(call.file)
        if path.stat().st_size > MAX_BYTES:
            return False
        findings = lint_text(path.read_text("utf-8"), file=call.file)
    except Exception:
        return False
    return any(
        each.code == "LG201" and each.line == call.line and each.message.startswith(_ALWAYS)
        for each in findings
    )
