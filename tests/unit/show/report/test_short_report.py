"""Reports fit on one screen: at most 24 lines of 80 columns, including an empty line above them and the lines that the
terminal wraps."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Group
from rich.text import Text
from test_run_reports import CODE

from example_runs import TRAIN, Run
from legroom.memory.annotations import OtherProcesses, RecordingFailed, SpillTotals
from legroom.memory.event_base import Category
from legroom.show.common.one_screen import Commands, Cropped
from legroom.show.common.terminal import render_to_string
from legroom.show.report.short_report import ShortFooter, ShortReport, render_short_report

WIDTH = 80
LONG = "x" * 600


def screen_lines(text: str, width: int = WIDTH) -> int:
    """Return the number of lines on a terminal, including wrapped lines."""
    return sum(max(1, -(-cell_len(line) // width)) for line in text.splitlines())


def on_screen(report, warning="") -> str:
    """Return the output of `legroom run`, without the traceback of the script."""
    gap = Text("") if report.failed_with_oom else None  # the traceback follows
    parts = ["", ShortReport(report, warning=warning, below=gap), *([gap] if gap is not None else [])]
    return render_to_string(*parts, ShortFooter(report, warning=warning))


@pytest.mark.slow
@given(
    categories=st.sets(st.sampled_from(list(Category)), min_size=0),
    lines=st.integers(0, 12),
    steps=st.integers(0, 12),
    grows=st.booleans(),
    leaks=st.integers(1, 3),
    ends=st.sampled_from(["finished", "oom", "caught", "raised", "interrupted", "killed", "exited"]),
    holders=st.integers(0, 5),
    devices=st.integers(1, 5),
    spilled=st.booleans(),
    remarks=st.integers(0, 3),
    arguments=st.sampled_from([(), ("--batch-size", "256"), ("--batch-size", "64", "--data", LONG[:200])]),
    long_names=st.booleans(),
    has_source=st.booleans(),
    warning=st.sampled_from(["", "The capture is incomplete, because the disk is full."]),
)
@settings(max_examples=30, deadline=None)
def test_every_report_fits_on_a_screen(
    categories, lines, steps, grows, leaks, ends, holders, devices, spilled, remarks, arguments, long_names,
    has_source, warning,
):  # fmt: skip
    run = Run(arguments=arguments, other=100)
    if has_source:
        run.source({**CODE, **{20 + line: f"value = function_{LONG[:90]}" for line in range(lines)}})
    module = LONG if long_names else "layer1"
    for number, category in enumerate(categories):
        run.alloc(10 + number, category, line=11, module=module)
    for line in range(lines):
        run.alloc(5 + line, Category.ACTIVATION, line=20 + line, module=module)
    for _ in range(steps):
        if grows:
            run.alloc(20, Category.RESULT, line=11)
        run.end_step()
    if spilled:
        run.events.append(SpillTotals(1.0, 1 << 30, 12, 1 << 29, 1 << 28, 1 << 30, 2.0))
    run.events += [RecordingFailed(1.0, f"remark {number} about {LONG[:300]}") for number in range(remarks)]
    if ends in ("oom", "caught"):
        run.oom(900, line=11, fragmented=20, op="aten.convolution", module=module)
        for number in range(holders):
            run.holder(f"self.history_{number} ({LONG[:50] if long_names else 'list'})", 10 + number)
    if ends != "killed":
        code, reason = {
            "finished": (0, "finished"), "caught": (0, "finished"), "oom": (1, "raised"), "raised": (1, "raised"),
            "interrupted": (130, "interrupted"), "exited": (3, "exited"),
        }[ends]  # fmt: skip
        error = "torch.OutOfMemoryError: CUDA out of memory." if ends == "oom" else f"{LONG} at train.py:3"
        run.ends(code, reason, error if code else "", "Traceback" if ends == "oom" else "")
    report = run.report()
    report = replace(report, devices=report.devices * devices, leaks=report.leaks * leaks)
    with pytest.MonkeyPatch.context() as patch:
        for language in ("en", "ko") if ends == "oom" else ("en",):
            patch.setenv("LEGROOM_LANG", language)
            assert screen_lines(on_screen(report, warning)) <= 24


@pytest.fixture
def failed(make_run):
    """A run that failed with an out-of-memory error and uses many categories, lines and variables."""
    run = make_run(arguments=["--batch-size", "256"])
    run.source(CODE)
    for number, category in enumerate(Category):
        run.alloc(20 + 10 * number, category, line=3 + number)
    run.alloc(100, Category.ACTIVATION, line=11)
    for name in ("loss", "images", "outputs"):
        run.holder(f"{name} (Tensor)", 100)
    run.oom(900, line=11)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.", "Traceback")
    return run


def test_the_most_important_facts_are_always_shown(failed):
    failed.events += [RecordingFailed(1.0, f"remark {number}, {LONG[:200]}") for number in range(3)]
    text = render_to_string(render_short_report(failed.report()))
    report = failed.report()
    assert text.startswith("Out of memory at step 0 in the forward pass, at /project/train.py:11.")
    assert "Memory by category" in text
    assert sum(TRAIN in line and "MiB" in line for line in text.splitlines()) >= 1
    assert report.oom.advice[0].message in " ".join(text.split())
    assert f"Suggested change  {report.oom.advice[0].code}" in text
    assert report.oom.advice[0].fix.split(".")[0] in " ".join(text.split())
    assert f"\n  {report.next_commands[0][0]}" in text
    assert "\n  legroom report run.legroom --verbose" in text


def test_a_korean_report_has_the_same_facts_in_80_columns(failed, monkeypatch):
    data = failed.report().as_json()
    monkeypatch.setenv("LEGROOM_LANG", "ko")
    text = on_screen(failed.report())
    assert text.startswith("\n/project/train.py:11, step 0의 forward pass에서 메모리가 부족해졌습니다.")
    for title in (
        "종류별 메모리  가상 GPU 0, 1000.0 MiB",
        "코드 줄별 메모리  10개 중 가장 큰 1개",
        "수정 제안  LG",
    ):
        assert f"\n{title}" in text
    assert "\nrun.legroom에 기록했습니다. 다음 명령:\n" in text
    assert re.search(r"\n  legroom report run\.legroom --verbose +# 전체 리포트\n", text)
    commands = [command for command, _ in failed.report().commands_to_try]
    wide = [line for line in text.splitlines() if cell_len(line) > WIDTH]
    assert all(line.strip() in commands for line in wide)
    assert failed.report().as_json() == data


def test_a_korean_text_ends_with_an_ellipsis_within_its_columns():
    text = render_to_string(Cropped(Text("메모리" * 40), 1), width=40)
    assert text.endswith("…\n")
    assert cell_len(text.rstrip()) <= 40


def test_rows_of_the_bar_add_up_to_the_device(failed):
    text = render_to_string(render_short_report(failed.report()))
    bar = text.partition("Memory by category")[2].partition("\n")[2].partition("Memory by line")[0]
    sizes = [float(line.split(" MiB")[0].split()[-1]) for line in bar.splitlines() if " MiB" in line]
    assert "smaller parts" in bar
    assert sum(sizes) == pytest.approx(1000, abs=0.5)


def test_an_ellipsis_is_not_alone_on_a_line():
    text = render_to_string(Cropped(Text("first\n\nsecond\nthird"), 2), width=40)
    assert text == "first…\n"


def test_the_first_of_several_leaks_is_shown_with_their_number(make_run):
    run = make_run()
    run.source(CODE)
    for _ in range(12):
        run.alloc(30, Category.ACTIVATION, line=11)
        run.alloc(20, Category.RESULT, line=12)
        run.end_step()
    run.ends(0, "finished")
    report = run.report()
    text = render_to_string(render_short_report(replace(report, leaks=report.leaks * 2)))
    sentence = "LG101 (1 of 2), 50.0 MiB per step, allocated at /project/train.py:11 and 1 more line"
    assert f"Memory leak {sentence}" in " ".join(text.split())


def test_ranks_that_the_script_started_are_mentioned(make_run):
    run = make_run()
    run.alloc(10, Category.ACTIVATION)
    run.events.append(OtherProcesses(1.0, "the report is about rank 1 of 4 ranks that the script started"))
    run.ends(0, "finished")
    assert "The report is about rank 1 of 4 ranks" in render_to_string(render_short_report(run.report()))


def test_a_comment_that_does_not_fit_is_above_its_command():
    text = render_to_string(
        Commands([("legroom run train.py", "again"), (f"legroom run {'x' * 60}", "on a virtual GPU")])
    )
    assert text.splitlines() == [
        "  legroom run train.py   # again",
        "  # on a virtual GPU",
        f"  legroom run {'x' * 60}",
    ]


def test_a_long_text_ends_with_an_ellipsis():
    assert render_to_string(Cropped("one\ntwo\nthree", 2)) == "one\ntwo…\n"
    assert render_to_string(Cropped("one\ntwo", 2)) == "one\ntwo\n"


def test_a_screen_of_40_columns_is_not_exceeded(failed):
    report = failed.report()
    text = render_to_string(Group(ShortReport(report), ShortFooter(report)), width=40)
    assert screen_lines(text, 40) <= 26


def test_the_command_with_the_change_is_shown_even_if_it_is_long() -> None:
    run = Run(arguments=("--batch-size", "64", "--data", LONG[:300]))
    run.alloc(500, Category.ACTIVATION)
    run.oom(600)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory")
    report = run.report()
    assert report.commands_to_try[0][0] != report.command.text
    assert report.commands_to_try[0][0] in on_screen(report).replace("\n", "")
