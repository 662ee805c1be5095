"""Whether a line loads the whole input of a program."""

from pathlib import Path

import pytest

from legroom.memory.event_base import Frame
from legroom.observe.source.loaded_once import is_loaded_once

CASES = {
    "module level": ("x = load()\nx = x.cuda()  # here", True),
    "branch": ("x = load()\nif cuda:\n    x = x.cuda()  # here", True),
    "main function": ("def main():\n    x = load().cuda()  # here\nif a:\n    main()", True),
    "constructor": (
        "class T:\n    def __init__(self):\n        self.x = load().cuda()  # here\nT().fit()",
        True,
    ),
    "loop": ("for x in data:\n    x = x.cuda()  # here", False),
    "comprehension": ("parts = [\n    x.cuda()  # here\n    for x in data\n]", False),
    "function called in a loop": ("def f(x):\n    return x.cuda()  # here\nfor x in data:\n    f(x)", False),
    "function with an unknown caller": ("def f(x):\n    return x.cuda()  # here", False),
    "recursive function": ("def f(x):\n    x.cuda()  # here\n    f(x)\nf(1)", False),
    "size of a factory function": ("x = torch.randn(64, 784).cuda()  # here", False),
    "size on an earlier line": ("x = torch.randn(64, 784)\nx = x.to(device)  # here", False),
    "size of a slice": ("x = data[:64].cuda()  # here", False),
}


@pytest.mark.parametrize("case", CASES)
def test_line_loads_the_whole_input(case: str, tmp_path: Path) -> None:
    source, expected = CASES[case]
    file = tmp_path / f"{case.replace(' ', '_')}.py"
    file.write_text(source)
    line = 1 + source[: source.index("# here")].count("\n")
    assert is_loaded_once(Frame(str(file), line, "f")) is expected


def test_unreadable_source_is_not_the_whole_input() -> None:
    assert not is_loaded_once(Frame("/nowhere.py", 1, "f"))
