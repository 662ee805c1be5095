"""The monitor on a terminal: keys, mouse, sizes, and a driver that fails."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("textual")

from example_snapshots import GPUS, PROCESSES, RUN, FakeProcessSampler, sampler
from fake_nvml import FakeNvml
from textual.pilot import Pilot
from textual.widgets import Input, Static

from legroom.cli import main
from legroom.gpus.sampling import GpuSampler
from legroom.show.monitor.app import MonitorApp, Window
from legroom.show.monitor.row_table import RowTable
from legroom.show.monitor.snapshot import Sampler

pytestmark = pytest.mark.slow
Script = Callable[[MonitorApp, Pilot[None]], Awaitable[None]]


def play(script: Script, *, size: tuple[int, int] = (80, 24), app: MonitorApp | None = None) -> None:
    """Run the script in a monitor that has read the machine once. The monitor reads again only when `app._read` is
    called."""

    async def run() -> None:
        shown = app or MonitorApp(sampler(), interval=3600)
        async with shown.run_test(size=size) as pilot:
            await settled(shown, pilot)
            await script(shown, pilot)

    asyncio.run(run())


async def settled(app: MonitorApp, pilot: Pilot[None]) -> None:
    assert app._reader is not None
    await asyncio.to_thread(app._reader.join)
    await pilot.pause()


def pids(app: MonitorApp) -> list[int]:
    table = app.query_one("#processes", RowTable)
    return [int(str(key.value).rpartition(":")[2]) for key in table.rows]


def screen_text(app: MonitorApp) -> str:
    return "\n".join(
        "".join(segment.text for segment in line) for line in app.screen._compositor.render_strips()
    )


def title(app: MonitorApp) -> str:
    return str(app.query_one("#processes-title", Static).content)


def test_processes_are_sorted_by_memory_and_s_changes_the_column() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert pids(app) == [4242, 5001, 4343, 5002]
        assert "sorted by GPU memory ↓" in title(app)
        while "sorted by PID" not in title(app):
            await pilot.press("s")
        assert pids(app) == [4242, 4343, 5001, 5002]
        await pilot.press("r")
        assert pids(app) == [5002, 5001, 4343, 4242]

    play(script)


def test_a_click_on_a_heading_sorts_and_a_second_click_reverses() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.click("#processes", offset=(9, 0))
        assert "sorted by PID ↑" in title(app)
        await pilot.click("#processes", offset=(9, 0))
        assert "sorted by PID ↓" in title(app)
        assert pids(app)[0] == 5002

    play(script)


def test_the_filter_applies_while_typing_and_escape_clears_it() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"grace")
        assert pids(app) == [5001]
        assert app.query_one("#filter", Input).display
        await pilot.press("enter")
        assert not app.query_one("#filter", Input).display
        assert "filter: grace" in title(app)
        await pilot.press("escape")
        assert len(pids(app)) == 4

    play(script)


def test_q_in_the_filter_is_a_letter() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", "q")
        assert app.is_running
        assert pids(app) == []

    play(script)


def test_enter_shows_details_that_stay_current() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        assert isinstance(app.screen, Window)
        shown = screen_text(app)
        assert "Process 4242" in shown
        assert "loss.item()" in shown
        app._sampler = sampler(gpus=(), runs=())
        app._read()
        await settled(app, pilot)
        assert "Process 4242 has ended." in screen_text(app)
        await pilot.press("escape")
        assert not isinstance(app.screen, Window)

    play(script)


def test_the_cursor_stays_on_its_process() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        table = app.query_one("#processes", RowTable)
        await pilot.press("down")
        assert table.selected_key == "0:5001"
        app._sampler = sampler(gpus=GPUS[:1], runs=())
        app._read()
        await settled(app, pilot)
        assert pids(app) == [4242, 5001]
        assert table.selected_key == "0:5001"
        app._sampler = sampler(gpus=(), runs=())
        app._read()
        await settled(app, pilot)
        assert table.selected_key is None
        await pilot.press("enter")
        assert not isinstance(app.screen, Window)

    play(script)


def test_help_lists_the_keys_and_the_footer_shows_them() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert all(word in screen_text(app) for word in ("Quit", "Sort", "Filter", "Details", "Help"))
        await pilot.press("question_mark")
        assert "reverse the order" in screen_text(app)
        await pilot.press("q")
        assert app.is_running
        await pilot.press("q")

    play(script)


@pytest.mark.parametrize("size", [(80, 24), (40, 24), (160, 50), (20, 6), (40, 10)])
def test_every_size_shows_the_machine(size: tuple[int, int]) -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert "legroom monitor" in screen_text(app)
        assert size[0] < 40 or "Host" in screen_text(app)
        if size[1] >= 24:
            assert "4242" in screen_text(app)
            assert "train.py" in screen_text(app)

    play(script, size=size)


def test_a_resized_terminal_shows_other_columns() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert "USER" in screen_text(app)
        await pilot.resize_terminal(40, 24)
        await pilot.pause()
        assert "USER" not in screen_text(app)
        assert len(pids(app)) == 4
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert "USER" in screen_text(app)
        assert "losses (list, 412 items)" in screen_text(app)

    play(script)


def test_a_driver_that_fails_midway_is_shown_as_n_a(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    made = Sampler(GpuSampler(), lambda: (RUN,))
    made._processes = FakeProcessSampler(PROCESSES)  # type: ignore[assignment]

    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert "70.0 of 140.0 GiB" in screen_text(app)
        nvml.failing = {"all"}
        for _ in range(3):
            app._read()
            await settled(app, pilot)
        shown = screen_text(app)
        assert "GPU 0 H200" in shown
        assert "N/A of 140.0 GiB" in shown
        assert "N/A °C" in shown
        assert "4242" in shown

    play(script, app=MonitorApp(made, interval=3600))


def test_a_reading_that_raises_does_not_end_the_monitor() -> None:
    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        class Broken:
            def read(self) -> Any:
                raise RuntimeError("no")

        app._sampler = Broken()  # type: ignore[assignment]
        app._read()
        await settled(app, pilot)
        assert app.is_running
        app._sampler = sampler(gpus=(), runs=())
        app._read_again()
        await settled(app, pilot)
        assert "No process is using a GPU" in screen_text(app)

    play(script)


def test_a_driver_that_does_not_answer_blocks_neither_the_keys_nor_the_exit() -> None:
    answered, asked = threading.Event(), []

    class Stuck:
        def read(self) -> Any:
            asked.append(None)
            answered.wait(60)
            raise RuntimeError("too late")

    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        app._sampler = Stuck()  # type: ignore[assignment]
        app._read()
        app._read_again()
        await pilot.press("s")
        assert "sorted by GPU utilization" in title(app)
        assert len(asked) == 1

    play(script)
    answered.set()


def test_markup_and_escapes_in_names_are_text() -> None:
    hostile = "[bold red]x[/bold red][@click=app.quit]\x1b[2J<b>"
    processes = {
        **PROCESSES,
        4242: replace(PROCESSES[4242], command=hostile, user="[blink]"),
    }
    run = replace(RUN, script=hostile, finding=hostile, command=hostile, folder="[/]")

    async def script(app: MonitorApp, pilot: Pilot[None]) -> None:
        shown = screen_text(app)
        assert "[bold red]x[/bold red][@click=app.quit]" in shown
        assert "[blink]" in shown
        assert "\x1b" not in shown
        await pilot.press("enter")
        assert "[@click=app.quit]" in screen_text(app)

    play(script, size=(160, 50), app=MonitorApp(sampler(runs=(run,), processes=processes), interval=3600))


def test_without_textual_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("textual", "legroom.show.monitor"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr("legroom.show.common.live_line.can_repaint", lambda stream: True)
    assert main(["monitor"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("legroom: Textual is not installed: pip install")
    assert "[monitor]" in error.replace("\n", "")


def test_an_interval_out_of_range_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "--interval", "0"]) == 2
    assert "--interval must be between" in capsys.readouterr().err
