"""Parts of reports: code frames, charts, comparisons, periodic threads."""

import threading

import pytest
from rich.text import Text

from legroom.memory.compare import Change, Difference
from legroom.memory.events import Step
from legroom.memory.ledger import Ledger
from legroom.memory.live.periodic_thread import PeriodicThread
from legroom.show.common.code_frame import code_frame, source_line
from legroom.show.common.memory_charts import StepSparkline, downsample_max
from legroom.show.common.one_screen import Cropped
from legroom.show.common.terminal import render_to_string, verbatim
from legroom.show.report.comparison import render_comparison
from legroom.units import MiB

SOURCES = {"a.py": {1: "def f():", 2: "\tif x:", 3: "        return g(x)", 4: ""}}


def test_code_frame_marks_the_line_and_removes_common_indentation():
    assert (
        render_to_string(code_frame({"a.py": {2: "    b", 3: "    c"}}, "a.py", 3))
        == "    2 │ b\n  ❱ 3 │ c\n"
    )


def test_tabs_are_expanded():
    assert "❱ 2 │     if x:" in render_to_string(code_frame(SOURCES, "a.py", 2))


def test_line_that_was_not_saved_has_no_frame():
    assert code_frame(SOURCES, "a.py", 9) is None
    assert code_frame(SOURCES, "b.py", 1) is None


def test_source_line_has_no_indentation():
    assert source_line(SOURCES, "a.py", 3) == "return g(x)"
    assert source_line(SOURCES, None, None) == ""


@pytest.mark.parametrize("count", [1, 7, 30, 31, 1000])
def test_downsampling_keeps_the_maximum(count):
    values = list(range(count))
    assert max(downsample_max(values, 30)) == count - 1
    assert len(downsample_max(values, 30)) <= 30


def test_constant_peaks_are_shown_as_one_value():
    steps = [Step(1.0, number, 0.02, 0, 0, 0, 5 * MiB, 0) for number in range(3)]
    assert render_to_string(StepSparkline(steps)) == "  ▄▄▄  3 steps, 5.0 MiB, 20 ms each\n"


def test_command_is_not_wrapped():
    command = "legroom run " + "x" * 200
    assert render_to_string(verbatim(command)) == f"{command}\n"


def difference(before: int, after: int) -> Difference:
    change = Change("activation", before * MiB, after * MiB, (after - before) * MiB)
    line = change._replace(what="/project/train.py:3")
    return Difference(allocated=change, reserved=change, by_category=[change], by_line=[line], by_module=[])


def test_decrease_of_the_peak_is_shown():
    text = render_to_string(render_comparison(difference(12, 8), before="old.legroom"))
    assert text.splitlines()[1:3] == [
        "Peak allocated memory decreased by 4.0 MiB, from 12.0 MiB in old.legroom to 8.0",
        "MiB, mostly activation.",
    ]
    assert "  /project/train.py:3   12.0 MiB    8.0 MiB   -4.0 MiB" in text


def test_unchanged_peak_is_described():
    text = render_to_string(render_comparison(difference(8, 8), before="old.legroom"))
    assert "Peak allocated memory is the same as in old.legroom: 8.0 MiB." in text
    assert "memory by line" not in text


def test_steps_that_were_dropped_from_a_long_run_are_counted():
    ledger = Ledger(keep_events=100_000)
    for number in range(120_000):
        ledger.apply(Step(number * 0.1, number, 0.1, 0, MiB, MiB, number * 100, MiB))
    steps = ledger.steps(0)
    assert len(steps) < 20_000
    text = render_to_string(StepSparkline(steps), width=100)
    assert "120,000 steps" in text
    chart = text.split()[0]
    assert chart == "".join(sorted(chart)), "the columns follow the step numbers"


def test_periodic_thread_is_not_a_thread_of_the_script():
    """Hooks on `Thread.run`, which follow the threads of a script, must not apply to this thread."""
    assert PeriodicThread.run is not threading.Thread.run


def test_periodic_thread_works_after_each_pause_until_stopped():
    worked = threading.Event()
    thread = PeriodicThread(worked.set, iter([0.0, 1000.0]), name="test")
    thread.start()
    assert worked.wait(10)
    thread.stop()
    assert not thread.is_alive()


def test_a_comparison_of_many_lines_fits_on_a_screen():
    change = difference(12, 8).allocated
    many = Difference(
        allocated=change,
        reserved=change,
        by_category=[change._replace(what=f"category {number}") for number in range(9)],
        by_line=[change._replace(what=f"/project/train.py:{number}") for number in range(1, 30)],
        by_module=[],
    )
    text = render_to_string(render_comparison(many, before="old.legroom", verbose=False))
    assert len(text.splitlines()) <= 19
    assert "Peak allocated memory by line  the 4 largest of 29 changes" in text
    assert len(render_to_string(render_comparison(many, before="old.legroom")).splitlines()) == 24


def test_a_cropped_text_does_not_end_inside_code():
    def cropped(text, lines):
        return render_to_string(Cropped(Text(text), lines), width=20)

    text = "Stopped too early. Use `--batch-size 64 --workers 4`."
    assert cropped(text, 2) == "Stopped too early.\nUse…\n"
    assert cropped(text, 3).endswith("`.\n")
    assert cropped("Use `a` in the file and in others.", 1) == "Use `a` in the file…\n"
