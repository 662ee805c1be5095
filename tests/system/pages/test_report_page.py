"""The page of a run in a real browser: charts, points in time, search, keys, themes and a narrow screen."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from example_runs import TRAIN, Run
from legroom.diagnose.report.run_figures import figures_from_capture
from legroom.memory.compare import compare_captures
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Category, Phase
from legroom.show.report.html_diff.page_writer import page as diff_page
from legroom.show.report.html_report.page_writer import page as page_of
from legroom.units import MiB

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium to open the page with"),
]
SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
"""The folder with screenshots of the pages, for manual inspection."""
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


def leaking_run() -> Run:
    run = Run(capacity=1000)
    run.alloc(100, Category.PARAMETER, line=3, module="net.0")
    for _ in range(8):
        run.alloc(40, Category.ACTIVATION, line=7, module=f"net.1.{HOSTILE}")
        run.phase = Phase.BACKWARD
        temporary = run.alloc(100, Category.GRADIENT, line=8, module="net.0")
        run.phase = Phase.OPTIMIZER
        run.free(temporary)
        run.end_step()
        run.phase = Phase.FORWARD
    run.events.append(
        DetectedLeak(
            time=0.5, kind="graph", how="container", name=HOSTILE, described="list, 412 items", file=TRAIN, line=7,
            function="train", bytes_per_step=40 * MiB, nodes_per_step=3, storages_per_step=1, step=5, steps=5,
        )
    )  # fmt: skip
    run.oom(600, fragmented=50)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.", "")
    run.source({7: f"losses.append(loss)  # {HOSTILE}"})
    return run


@pytest.fixture
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def test_the_page_works_in_a_browser(browser: "playwright.Browser", tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text(page_of(figures_from_capture(leaking_run().capture(), path="run.legroom")))
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    tab = context.new_page()
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: problems.append("a script of the capture ran"))
    tab.on("request", lambda request: request.url == file.as_uri() or problems.append(request.url))
    tab.goto(file.as_uri())
    tab.wait_for_selector("html[data-ready]", timeout=10_000)

    # The timeline: hovering shows the live memory, keys move a cursor that is read aloud, and the view can be zoomed.
    canvas, tip = tab.locator("#timeline canvas"), tab.locator("#timeline .tip")
    canvas.hover(position={"x": 500, "y": 150})
    assert "allocated" in tip.inner_text()
    assert "activation" in tip.inner_text()
    assert "train.py:7" in tip.inner_text()
    whole = drawn(tab, "#timeline canvas")
    canvas.focus()
    tab.keyboard.press("End")
    assert "Step 8" in tab.locator("#timeline-live").inner_text()
    tab.keyboard.press("+")
    tab.wait_for_timeout(100)
    assert drawn(tab, "#timeline canvas") != whole
    tab.keyboard.press("0")
    tab.keyboard.press("Escape")
    tab.wait_for_timeout(100)
    steps = drawn(tab, "#timeline canvas")
    tab.uncheck("#equal-steps")
    tab.wait_for_timeout(100)
    assert drawn(tab, "#timeline canvas") != steps
    tab.check("#equal-steps")
    tab.click("#zoom-step")
    tab.click("#zoom-all")

    # The icicle chart starts where memory ran out. A click on the timeline or on a step selects another time.
    text, cells = tab.locator("#moment-text"), tab.locator("#icicle .cell")
    assert "When memory ran out (step 8" in text.inner_text()
    assert "420.0 MiB" in text.inner_text()
    tab.locator("#steps tbody tr").nth(2).click()
    assert "(step 2 " in text.inner_text()
    canvas.click(position={"x": 100, "y": 100})
    assert "At the selected moment" in text.inner_text()
    tab.select_option("#moment", index=1)
    assert cells.first.inner_text().startswith("allocated")
    tab.select_option("#grouping", "line")
    assert any("train.py" in each for each in cells.all_inner_texts())
    tab.fill("#search", "parameter")
    assert tab.locator("#search-text").inner_text() == "1 entry matches: 100.0 MiB of 420.0 MiB (24%)."
    assert tab.locator("#icicle .cell.dim").count() >= 1
    tab.fill("#search", "")
    cells.first.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    assert "train" in tab.locator("#icicle-detail").inner_text()
    tab.keyboard.press("Enter")
    assert tab.locator("#icicle-reset").is_visible()
    tab.keyboard.press("Escape")
    assert tab.locator("#icicle-reset").is_hidden()
    tab.locator("#icicle .cell.leaf").first.hover()
    assert "onerror=alert" in tab.locator("#icicle-detail").inner_text(), "the source line is shown as text"

    # The allocator map.
    blocks = tab.locator("#map canvas")
    blocks.focus()
    tab.keyboard.press("Home")
    assert "segment 1 of" in tab.locator("#map-live").inner_text()
    blocks.hover(position={"x": 5, "y": 5})
    assert "pool" in tab.locator("#map .tip").inner_text()

    # A click on a heading sorts the steps.
    tab.click("#steps th:nth-child(2) button")
    tab.click("#steps th:nth-child(2) button")
    assert tab.locator("#steps tbody tr td").first.inner_text() == "7"

    tab.screenshot(path=SCREENSHOTS / "light.png", full_page=True)
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.emulate_media(color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light
    tab.screenshot(path=SCREENSHOTS / "dark.png", full_page=True)
    tab.set_viewport_size({"width": 400, "height": 800})
    tab.wait_for_timeout(200)
    assert tab.evaluate("document.documentElement.scrollWidth") == 400, "nothing is wider than the screen"
    tab.screenshot(path=SCREENSHOTS / "narrow.png", full_page=True)
    unnamed = "[...document.querySelectorAll('button,select,input,canvas')].filter((each) => !(each.ariaLabel || each.textContent.trim() || each.labels?.length || each.getAttribute('aria-labelledby'))).length"
    assert tab.evaluate(unnamed) == 0, "a screen reader can name every control"

    # The comparison of two runs.
    file = tmp_path / "diff.html"
    before, after = Run(), leaking_run()
    before.alloc(100, Category.PARAMETER, line=3, module="net.0")
    difference = compare_captures(before.capture(), after.capture())
    file.write_text(
        diff_page(difference, (before.report(), after.report()), names=(HOSTILE, "after.legroom"))
    )
    tab.goto(file.as_uri())
    assert "Peak allocated memory increased by 420.0 MiB" in tab.locator(".lead").inner_text()
    tab.click("section:nth-of-type(3) th:first-child button")
    assert tab.locator("section:nth-of-type(3) tbody td").first.inner_text() == "activation"
    assert tab.evaluate("document.documentElement.scrollWidth") == 400
    tab.screenshot(path=SCREENSHOTS / "diff.png", full_page=True)
    assert problems == []


def test_a_position_in_a_module_name_is_not_split(browser: "playwright.Browser", tmp_path: Path) -> None:
    run = Run()
    run.alloc(20, Category.ACTIVATION, module="GELU (4.1)")
    run.alloc(20, Category.ACTIVATION, module="net.0.Linear (4.0)")
    run.alloc(20, Category.ACTIVATION, module="broken (4.1")
    run.ends(0, "finished")
    tab = opened(browser, run, tmp_path)
    names = {each.partition(" · ")[0] for each in tab.locator("#icicle .cell").all_inner_texts()}
    assert names >= {"GELU (4.1)", "net", "0", "Linear (4.0)", "broken (4"}


def test_the_time_after_the_last_step_is_not_a_step(browser: "playwright.Browser", tmp_path: Path) -> None:
    run = Run()
    for _ in range(3):
        run.phase = Phase.FORWARD
        block = run.alloc(20, Category.ACTIVATION)
        run.phase = Phase.OPTIMIZER
        run.free(run.alloc(10))
        run.end_step()
        run.free(block)
    run.alloc(1)
    run.events[-1] = run.events[-1]._replace(phase=Phase.OTHER)
    run.ends(0, "finished")
    tab = opened(browser, run, tmp_path)
    canvas, described = tab.locator("#timeline canvas"), tab.locator("#timeline-live")
    canvas.focus()
    tab.keyboard.press("End")
    assert described.inner_text().startswith("After the last step, outside forward and backward, ")
    box = canvas.bounding_box()
    assert box is not None
    canvas.hover(position={"x": box["width"] * 0.9, "y": 100})  # the rest of the run is narrower than a step
    assert tab.locator("#timeline .tip").inner_text().startswith("Step 2")
    options = tab.locator("#moment option").all_text_contents()
    assert not any("step 3" in each for each in options)
    assert any("after the last step outside forward and backward" in each for each in options)


def opened(browser: "playwright.Browser", run: Run, tmp_path: Path) -> "playwright.Page":
    file = tmp_path / "run.html"
    file.write_text(page_of(figures_from_capture(run.capture(), path="run.legroom")))
    tab = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
    tab.goto(file.as_uri())
    tab.wait_for_selector("html[data-ready]", timeout=10_000)
    return tab


def drawn(tab: "playwright.Page", canvas: str) -> str:
    return str(tab.evaluate(f"document.querySelector('{canvas}').toDataURL()"))
