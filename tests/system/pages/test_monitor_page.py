"""The monitor page in a real browser: values, hostile names, sorting, filter, details, themes and a server that
stops."""

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "unit" / "show" / "monitor"))

from legroom.show.monitor.serve import MonitorServer

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium to open the page with"),
]
SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


@pytest.fixture
def server() -> Iterator[MonitorServer]:
    from example_snapshots import PROCESSES, RUN, VIRTUAL, sampler

    processes = {**PROCESSES, 5001: replace(PROCESSES[5001], command=HOSTILE, user=HOSTILE)}
    serving = MonitorServer(sampler(runs=(RUN, VIRTUAL), processes=processes), interval=0.2)
    thread = threading.Thread(target=serving.run)
    thread.start()
    yield serving
    serving.stop()
    serving.close()
    thread.join()


@pytest.fixture
def page(server: MonitorServer) -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1200, "height": 900})
        errors: list[str] = []
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.on("dialog", lambda dialog: errors.append(dialog.message))
        opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        opened.goto(server.url)
        yield opened
        browser.close()
        assert [error for error in errors if "Failed to load resource: net::ERR_" not in error] == []


def first_pids(page: Any) -> list[str]:
    return page.eval_on_selector_all(
        "#processes tbody tr", "rows => rows.map(row => row.cells[1].textContent)"
    )


def test_the_page_shows_the_machine_and_updates(page: Any, server: MonitorServer) -> None:
    text = page.inner_text("body")
    assert all(
        part in text
        for part in ("GPU 0 NVIDIA H200", "Virtual GPU 0", "train.py", "LG101", "77.00 GiB of 140.00 GiB")
    )
    assert "N/A °C" in text
    assert page.inner_text("#processes tbody tr:nth-child(2) td:nth-child(9)").startswith(
        "<img src=x onerror=alert(1)>"
    )
    assert page.query_selector("img") is None
    assert first_pids(page) == ["4242", "5001", "4343", "5002"]
    page.click("#processes th:nth-child(2) button")
    assert first_pids(page)[0] == "5002"
    page.fill("#filter", "ada small")
    assert first_pids(page) == ["4343"]
    page.fill("#filter", "")
    deadline = time.monotonic() + 20
    while page.evaluate("document.querySelector('#devices path').getAttribute('d').length") < 20:
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
    page.click("#processes tbody tr:has-text('train.py')")
    assert "Store `loss.item()`" in page.inner_text("#details")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "monitor_details.png")
    page.keyboard.press("Escape")
    page.screenshot(path=SCREENSHOTS / "monitor.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=SCREENSHOTS / "monitor_dark.png")
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= 380")
    page.screenshot(path=SCREENSHOTS / "monitor_narrow.png")
    server.stop()
    server.close()
    page.wait_for_selector("#problem:has-text('No connection')")
