"""The error of a failed trial in one line."""

import pytest

from legroom.errors import UsageError
from legroom.tuning.trial.process import _one_line


def with_note(error: Exception) -> Exception:
    error.add_note("a note")
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such loss"), "ValueError: no such loss"),
        (KeyError("lr"), "KeyError: 'lr'"),
        (ValueError(), "ValueError"),
        (RuntimeError("CUDA error: assert\nCompile with more words"), "RuntimeError: CUDA error: assert"),
        (
            RuntimeError("Error(s) in loading state_dict for Net:\n\tsize mismatch for out.weight"),
            "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for out.weight",
        ),
        (with_note(ValueError("no such loss")), "ValueError: no such loss"),
        (SyntaxError("invalid syntax", ("train.py", 1, 1, "x =")), "SyntaxError: invalid syntax"),
        (UsageError("report(loss=...) needs a number"), "report(loss=...) needs a number"),
    ],
)
def test_an_error_is_reported_in_one_line(error: Exception, line: str) -> None:
    assert _one_line(error) == line
