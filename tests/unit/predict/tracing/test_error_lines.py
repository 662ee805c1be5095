"""The one-line error of a script that failed."""

import pytest

from legroom.predict.tracing.process import _in_one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such size\nand a second line"), "ValueError: no such size"),
        (SyntaxError("invalid syntax", ("train.py", 2, 7, "def f(:", 2, 8)), "SyntaxError: invalid syntax (train.py, line 2)"),
        (RuntimeError("\n\n-- Process 0 failed:\nTraceback:\nKeyError: 'x'"), "RuntimeError: KeyError: 'x'"),
        (KeyError("LOCAL_RANK"), "KeyError: 'LOCAL_RANK'"),
    ],
)  # fmt: skip
def test_an_error_is_reported_in_one_line(error: Exception, line: str) -> None:
    assert _in_one_line(error) == line
