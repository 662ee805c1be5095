"""Where the batch size of a DataLoader comes from."""

from pathlib import Path

import pytest

from legroom.memory.event_base import Frame
from legroom.observe.source.loader_argument import loader_argument

HELPER = "def make(data, bs=16, *, workers=0):\n    return DataLoader(data, batch_size=bs)\n"


@pytest.mark.parametrize(
    ("call", "name", "line"),
    [
        ("DataLoader(data, batch_size=B)", "B", 0),
        ("DataLoader(data, batch_size=config['size'])", "size", 0),
        ("DataLoader(data, batch_size=int(args.bs))", "bs", 0),
        ("DataLoader(data, batch_size=config.get('size', 8))", "size", 0),
        ("DataLoader(data, B)", "B", 0),
        ("DataLoader(data, batch_size=16)", "", 3),
        ("DataLoader(data, batch_size=B // 2)", "", 0),
    ],
)
def test_argument_of_the_loader(call: str, name: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"\n\nloader = {call}\n")
    found = loader_argument([Frame(str(file), 3, "<module>")])
    assert found is not None
    assert (found.name, found.line) == (name, line)


@pytest.mark.parametrize(
    ("call", "name", "line"),
    [
        ("make(data, B)", "B", 0),
        ("make(data, bs=config.size)", "size", 0),
        ("make(data, 32)", "", 3),
        ("make(data)", "", 1),
    ],
)
def test_parameter_is_followed_to_the_caller(call: str, name: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{HELPER}loader = {call}\n")
    found = loader_argument([Frame(str(file), 2, "make"), Frame(str(file), 3, "<module>")])
    assert found is not None
    assert (found.name, found.line) == (name, line)


def test_method_of_a_class(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "class Data:\n    def __init__(self, size):\n        self.loader = DataLoader(None, batch_size=size)\nData(24)\n"
    )
    found = loader_argument([Frame(str(file), 3, "__init__"), Frame(str(file), 4, "<module>")])
    assert found is not None
    assert found.line == 4


@pytest.mark.parametrize("text", ["", "loader = get()", "x = DataLoader(data)"])
def test_unknown_argument(text: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    assert loader_argument([Frame(str(file), 1, "<module>")]) is None
    assert loader_argument([]) is None
