"""The call that passes a value to the function that stores it."""

from pathlib import Path
from textwrap import dedent

import pytest

from legroom.observe.source import call_sites
from legroom.observe.source.call_sites import CallSite, find_call_site, first_line

METER = """
class Meter:
    def __init__(self):
        self.values = []

    def update(self, value, n=1):
        self.values.append(value)  # store

meter, other = Meter(), {}
"""
BUS = """
class Bus:
    def __init__(self):
        self.handlers = []

    def subscribe(self, handler):
        self.handlers.append(handler)  # store

bus = Bus()
"""


@pytest.fixture(autouse=True)
def without_test_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other test modules count as the user's files, and may call methods with the same names."""
    monkeypatch.setattr(call_sites, "user_files", list)


def _site(tmp_path: Path, source: str, holder: str = "") -> tuple[CallSite | None, int]:
    """Return the call that is found for the line with `# store`, and the line with `# call`."""
    file = tmp_path / "train.py"
    file.write_text(dedent(source))
    marks = {
        mark: number
        for number, text in enumerate(file.read_text().splitlines(), start=1)
        for mark in ("# store", "# call")
        if text.endswith(mark)
    }
    return find_call_site(str(file), marks["# store"], holder), marks.get("# call", 0)


@pytest.mark.parametrize(
    ("call", "passes_variable"),
    [
        ("meter.update(loss)", True),
        ("meter.update(loss, x.size(0))", True),
        ("meter.update(net(x))", False),
        ("mean = meter.update(value=loss)", True),
    ],
)
def test_the_call_of_a_method_that_stores_its_argument(
    tmp_path: Path, call: str, passes_variable: bool
) -> None:
    loop = f"for step in range(9):\n    other.update(loss=1)\n    {call}  # call\n"
    site, line = _site(tmp_path, METER + loop)
    assert site is not None
    assert (site.line, site.passes_value, site.passes_variable) == (line, True, passes_variable)
    assert not site.registers


def test_a_method_whose_name_registers_a_callback(tmp_path: Path) -> None:
    site, line = _site(tmp_path, BUS + "for step in range(9):\n    bus.subscribe(make(step))  # call\n")
    assert site is not None
    assert (site.line, site.passes_value, site.registers) == (line, True, True)


def test_the_constructor_of_an_object_that_each_iteration_creates(tmp_path: Path) -> None:
    widget = (
        "class Widget:\n    def __init__(self):\n        bus.subscribe(self.show)  # call\n"
        "for step in range(9):\n    Widget()\n"
    )
    site, line = _site(tmp_path, BUS + widget)
    assert site is not None
    assert site.line == line


def test_a_call_that_runs_once_is_not_the_call_of_a_loop(tmp_path: Path) -> None:
    assert _site(tmp_path, METER + "meter.update(loss)\n")[0] is None


def test_several_calls_are_told_apart_by_the_key_of_the_holder(tmp_path: Path) -> None:
    source = """
    class Log:
        def add(self, name, value):
            self.data.setdefault(name, []).append(value)  # store

    log = Log()
    for step in range(9):
        log.add("accuracy", accuracy)
        log.add("loss", loss)  # call
    """
    assert _site(tmp_path, source)[0] is None
    site, line = _site(tmp_path, source, 'log.data["loss"]')
    assert site is not None
    assert site.line == line


def test_a_call_that_passes_only_numbers_is_ignored(tmp_path: Path) -> None:
    loop = "for step in range(9):\n    meter.update(step.item())\n    meter.update(loss)  # call\n"
    site, line = _site(tmp_path, METER + loop)
    assert site is not None
    assert site.line == line


def test_a_method_that_a_loop_calls_on_many_objects_has_no_single_caller(tmp_path: Path) -> None:
    loop = "for step in range(9):\n    for meter in meters:\n        meter.update(loss)\n"
    assert _site(tmp_path, METER + loop)[0] is None


def test_a_value_that_the_function_computes_is_not_an_argument(tmp_path: Path) -> None:
    source = """
    def step(model, x):
        out = model(x)
        outputs.append(out)  # store

    for x in data:
        step(model, x)  # call
    """
    site, line = _site(tmp_path, source)
    assert site is not None
    assert (site.line, site.passes_value) == (line, False)


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("class Stop:\n    def __call__(self, loss):\n        self.seen.append(loss)  # store\nstop = Stop()\n", "stop(loss)"),
        ("def make():\n    rows = []\n    def log(loss):\n        rows.append(loss)  # store\n    return log\nwrite = make()\n", "write(loss)"),
        ("class Monitor:\n    @loss.setter\n    def loss(self, value):\n        self.all.append(value)  # store\n", "monitor.loss = value"),
    ],
)  # fmt: skip
def test_calls_of_objects_closures_and_properties(tmp_path: Path, source: str, call: str) -> None:
    site, line = _site(tmp_path, f"{source}for step in range(9):\n    {call}  # call\n")
    assert site is not None
    assert (site.line, site.passes_value) == (line, True)


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        ("rows.append(\n    dict(\n        loss=loss,\n    )\n)\n", 3, 1),
        ("total = (\n    0.9 * total\n    + loss\n)\n", 2, 1),
        ("hook(\n    lambda grad: grads.append(grad)\n)\n", 2, 2),
        ("for x in data:\n    total += x\n", 2, 2),
    ],
)
def test_a_statement_on_several_lines_is_reported_at_its_first_line(
    tmp_path: Path, source: str, line: int, expected: int
) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    assert first_line(str(file), line) == expected
