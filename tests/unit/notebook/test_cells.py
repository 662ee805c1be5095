"""Names of cells and notebook output, without a kernel."""

import linecache
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import legroom
from legroom.diagnose.report.device_memory import MemoryShare, MemorySnapshot
from legroom.memory.event_base import Category, Frame
from legroom.memory.timeline import Sample
from legroom.observe.source.cells import cell_name, is_notebook, named_frame, short_location
from legroom.show.common import notebook_html as html
from legroom.show.common.formatting import format_location
from legroom.show.common.memory_svg import bar_svg, timeline_svg
from legroom.train.free import clear_error, delete_device_outputs
from legroom.units import MiB

FILE = "/tmp/ipykernel_123/456.py"


class Shell:
    """The attributes of an IPython shell that the code reads."""

    def __init__(self, **compiled: Any) -> None:
        self.compile = SimpleNamespace(**compiled)
        self.user_ns: dict[str, Any] = {"In": ["", "x = 1", "y = 2\nz = 3"], "Out": {}}
        self.displayhook = SimpleNamespace(_="", __="", ___="")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    active = Shell(_filename_map={FILE: 2})
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: active  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(linecache, "cache", {FILE: (11, None, ["y = 2\n", "z = 3\n"], FILE)})
    return active


def test_a_cell_has_the_number_that_the_notebook_shows(shell: Shell) -> None:
    assert cell_name(FILE) == "cell [2]"
    assert cell_name("train.py") is None
    assert named_frame(Frame(FILE, 2, "<module>")) == Frame("cell [2]", 2, "<module>")
    assert format_location(FILE, 2) == short_location(FILE, 2) == "cell [2], line 2"
    assert linecache.getline("cell [2]", 2) == "z = 3\n"


def test_outside_ipython_a_file_keeps_its_name() -> None:
    assert cell_name(FILE) is None
    assert format_location("cell [2]", 7) == "cell [2], line 7"  # from a capture
    assert short_location("/home/ada/train.py", 7) == "train.py:7"
    assert not is_notebook()


def test_without_the_table_of_ipython_the_source_identifies_the_cell(shell: Shell) -> None:
    shell.compile = SimpleNamespace()
    assert cell_name(FILE) == "cell [2]"
    assert cell_name("<ipython-input-7-0a1b2c>") == "cell [7]"
    assert cell_name("/tmp/ipykernel_123/999.py") == "notebook cell"


def test_only_results_on_a_device_are_deleted(shell: Shell) -> None:
    with legroom.VirtualGPU("8MiB"):
        big = torch.empty(MiB, dtype=torch.uint8, device="cuda")
        host = torch.empty(8)
        shell.user_ns |= {
            "Out": {1: big, 2: host, 3: [{"x": big}], 4: "text"},
            "_": big,
            "_1": big,
            "_2": host,
        }
        shell.displayhook._ = big
        del big
        assert delete_device_outputs() == ["Out[1]", "Out[3]"]
        assert torch.cuda.memory_allocated() == 0
    assert shell.user_ns["Out"] == {2: host, 4: "text"}
    assert "_1" not in shell.user_ns
    assert shell.user_ns["_2"] is host
    assert shell.displayhook._ == ""


def test_the_variables_of_a_failed_call_are_deleted_even_after_a_debugger_read_them() -> None:
    references = []

    def fail() -> None:
        local = torch.empty(8)
        references.append(weakref.ref(local))
        raise ValueError

    try:
        fail()
    except ValueError as error:
        kept = error
    assert kept.__traceback__ is not None
    frame = kept.__traceback__.tb_next.tb_frame  # type: ignore[union-attr]
    assert "local" in frame.f_locals  # Python 3.11 stores a copy of the variables
    clear_error(kept)
    assert references[0]() is None


def test_the_inputs_of_a_module_with_hooks_are_released_with_the_error() -> None:
    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError

    model = Failing()
    model.register_forward_hook(
        lambda *_: None
    )  # torch then calls an inner function, which references the inputs
    inputs = torch.empty(8)
    reference = weakref.ref(inputs)
    try:
        model(inputs)
    except torch.OutOfMemoryError as error:
        kept = error
    del inputs
    assert reference() is not None
    clear_error(kept)
    assert reference() is None


def snapshot(*shares: MemoryShare) -> MemorySnapshot:
    return MemorySnapshot(
        device=0, capacity=100 * MiB, step=0, phase="forward", time=0.0, allocated=0, reserved=0, shares=shares,
        by_category={}, top=(), coverage=1.0,
    )  # fmt: skip


def test_drawings_contain_no_script_and_escape_text() -> None:
    sizes = {Category.PARAMETER: 30 * MiB, Category.ACTIVATION: 20 * MiB}
    samples = [Sample(0.0, 50 * MiB, 60 * MiB, sizes), Sample(1.0, 50 * MiB, 60 * MiB, sizes)]
    hostile = '"><script>alert(1)</script>'
    drawing = timeline_svg(samples, 100 * MiB, label=hostile)
    bar = bar_svg(
        snapshot(MemoryShare(hostile, 60 * MiB), MemoryShare("free", 40 * MiB, is_free=True)), label="x"
    )
    for svg in (drawing, bar):
        assert "<script" not in svg
        assert svg.startswith("<svg ")
        assert "currentColor" in svg
    assert "line: reserved, dashed: capacity" in drawing
    assert "100.0 MiB" in drawing
    assert "above the chart" in timeline_svg(samples, 10_000 * MiB, label="")
    assert timeline_svg([], 100 * MiB, label="") == ""


def test_html_text_is_escaped_and_without_control_characters() -> None:
    hostile = "<b>`x<y`</b>\x1b[31m"
    for made in (html.sentence(hostile), html.heading(hostile), html.code(hostile), html.pre(hostile)):
        assert "<b>" not in made
        assert "\x1b" not in made
    assert "<code" in html.sentence("Use `legroom run`.")
    assert html.sentence("") == ""
