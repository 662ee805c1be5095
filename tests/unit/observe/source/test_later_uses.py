"""Whether a program still needs a variable after a line."""

from pathlib import Path

import pytest

from legroom.memory.event_base import Frame
from legroom.observe.source.later_uses import is_used_later

CASES = {
    "last use before the line": ("out = f()\nloss = g(out)\nloss.backward()  # here", False),
    "read after the line": ("out = f()\nloss.backward()  # here\nprint(out)", True),
    "assigned again before it is read": ("out = f()\nloss.backward()  # here\nout = f()\nprint(out)", False),
    "read while it is assigned": ("out = f()\nloss.backward()  # here\nout = g(out)", True),
    "added to": ("total = 0\nloss.backward()  # here\ntotal += 1", True),
    "next iteration reads it": ("out = None\nfor x in y:\n    f(out)\n    out = g(x)\n    h()  # here", True),
    "next iteration assigns it": ("for x in y:\n    out = g(x)\n    f(out)\n    h()  # here", False),
    "read after the loop": ("for x in y:\n    out = g(x)\n    h()  # here\nprint(out)", True),
    "read by a function inside": ("def f():\n    out = g()\n    h()  # here\n    return lambda: out", True),
    "other function with the same name": ("def f():\n    out = g()\n    h()  # here\ndef k(out):\n    print(out)", False),
    "running statement reads it": ("out = f()\nloss(out).backward()  # here", True),
    "call over several lines": ("out = f()\ng(  # here\n    out,\n)", True),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_variable_is_needed(case: str, tmp_path: Path) -> None:
    source, expected = CASES[case]
    file = tmp_path / f"{case.replace(' ', '_')}.py"
    file.write_text(source)
    line = 1 + source[: source.index("# here")].count("\n")
    name = "total" if "total" in source else "out"
    assert is_used_later(Frame(str(file), line, "f"), name) is expected


def test_attribute_counts_as_needed_and_unreadable_source_does_not() -> None:
    assert is_used_later(Frame("/nowhere.py", 1, "f"), "self.out")
    assert not is_used_later(Frame("/nowhere.py", 1, "f"), "out")
