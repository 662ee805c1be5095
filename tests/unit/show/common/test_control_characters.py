"""Text from users, files and captures is printed without control characters."""

import contextlib
import io
import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from legroom.diagnose.explain.explain import explain
from legroom.errors import UsageError
from legroom.log import say
from legroom.memory.compare import Change, Difference
from legroom.memory.event_base import Category, Phase
from legroom.show.common.progress import progress_line
from legroom.show.common.terminal import render_to_string
from legroom.show.explain.explanation import render_explanation
from legroom.show.report.comparison import render_comparison
from legroom.show.report.run_report import render_report
from legroom.show.report.tracebacks import format_error_line, format_short_traceback, format_traceback
from legroom.show.watch.bar import ProgressStats, bar_text

HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\u202e\u200e\u200f\u200b\u061c\ufeffb\udcff"
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_RAW = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\ufeff\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def assert_clean(text: str) -> None:
    assert text
    found = _RAW.search(_COLOR.sub("", text))
    assert found is None, text[max(found.start() - 60, 0) : found.end() + 20]


def poisoned(value: Any) -> Any:
    """Return the value with control characters in every string, except in codes and enumeration members."""
    if type(value) is str:
        return value if re.fullmatch(r"LG\d+|virtual|", value) else f"{value}{HOSTILE}"
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: poisoned(getattr(value, each.name)) for each in fields(value)})
    if isinstance(value, tuple):
        items = [poisoned(each) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [poisoned(each) for each in value]
    if isinstance(value, dict):
        return {poisoned(key): poisoned(each) for key, each in value.items()}
    return value


@pytest.mark.parametrize("color", [False, True])
@given(st.text(st.characters(codec=None), max_size=30))
def test_any_text_is_printed_without_control_characters(color: bool, text: str) -> None:
    table = Table.grid()
    table.add_row(text, Text(text, style="red"))
    assert_clean(render_to_string("x", text, Text(text, style="bold", no_wrap=True), table, color=color))


def test_color_and_layout_are_kept() -> None:
    text = render_to_string(Text("one\ntwo", style="bold"), color=True)
    assert text == "\x1b[1mone\x1b[0m\n\x1b[1mtwo\x1b[0m\n"


@pytest.mark.parametrize("failed", [False, True])
def test_names_in_a_report_have_no_control_characters(make_run, failed: bool) -> None:
    run = make_run(arguments=["--name", HOSTILE])
    run.source({10: f"x = {HOSTILE}", 20: HOSTILE})
    for _ in range(6):
        run.phase = Phase.FORWARD
        run.alloc(60, Category.ACTIVATION, module=HOSTILE)
        run.end_step()
    if failed:
        run.oom(900)
        run.holder(HOSTILE, 400)
        run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory", HOSTILE)
    else:
        run.ends(1, "raised", f"ValueError{HOSTILE}")
    assert_clean(render_to_string(render_report(poisoned(run.report())), color=True))


def test_names_in_a_comparison_have_no_control_characters() -> None:
    change = Change(f"{HOSTILE}:3", 1 << 20, 2 << 20, 1 << 20)
    difference = Difference(
        allocated=change, reserved=change, by_category=[change], by_line=[change], by_module=[]
    )
    assert_clean(render_to_string(render_comparison(difference, before=HOSTILE)))


def test_error_texts_in_an_explanation_have_no_control_characters() -> None:
    assert_clean(render_to_string(render_explanation(explain(f"RuntimeError: CUDA out of memory {HOSTILE}"))))
    assert_clean(str(explain(f"ValueError: {HOSTILE}")))


def test_messages_and_progress_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say(str(UsageError(f"{HOSTILE} does not exist.")))
    assert_clean(capsys.readouterr().err)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress_line(stream) as show:
        show(HOSTILE)
    assert_clean(stream.getvalue().replace("\r", "").replace("\x1b[2K", ""))
    stats = ProgressStats(
        description=HOSTILE, done=1, total=2, seconds=1.0, allocated=1, peak=1, host=1, bytes_per_step=0
    )
    assert_clean(bar_text(stats, 200))


def test_names_in_a_traceback_have_no_control_characters() -> None:
    code = compile(f"raise RuntimeError({HOSTILE!r})", f"/tmp/{HOSTILE}.py", "exec")
    with contextlib.suppress(RuntimeError):
        try:
            exec(code)
        except RuntimeError as error:
            for text in (
                format_traceback(error),
                format_short_traceback(error, lambda file: True),
                format_error_line(error),
            ):
                assert_clean(text)


def test_colored_error_message_is_shown_without_its_colors() -> None:
    assert format_error_line(ValueError("\x1b[31mred\x1b[0m")) == "ValueError: red"
