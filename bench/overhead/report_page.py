"""Measures the HTML report: its size, the time to write it, and the time to open and pan it in Chromium.

    python -m bench.overhead.report_page [EVENTS...]

The captures contain the same training loop as `bench.overhead.capture_file`, by default with 10 thousand, 100 thousand
and 1 million events. Opening and panning need Chromium and `pip install playwright`. A page is open when its charts
are drawn. The timeline is dragged for three seconds at each of three zoom levels. The table shows the mean and the
95th percentile of the time between frames.
"""

import shutil
import tempfile
import time
from itertools import islice
from pathlib import Path

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from bench.overhead.capture_file import BLOCKS, training
from legroom.cli import main as legroom
from legroom.memory.capture.capture import CaptureWriter
from legroom.units import MiB

SIZES = (10_000, 100_000, 1_000_000)
DEVICE = {"index": 0, "name": "bench", "kind": "virtual", "capacity": 16 << 30}
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FRAMES = """async (seconds) => {
  const canvas = document.querySelector("#timeline canvas"), box = canvas.getBoundingClientRect(), gaps = [];
  const send = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind, { pointerId: 1, clientX: x, clientY: box.top + 99, bubbles: true }));
  canvas.setPointerCapture = () => {};
  let before = await new Promise(requestAnimationFrame), x = box.left + 600, by = 7;
  const stop = before + seconds * 1000;
  send("pointerdown", x);
  while (before < stop) {
    x += by;
    if (x < box.left + 200 || x > box.right - 200) by = -by;
    send("pointermove", x);
    const now = await new Promise(requestAnimationFrame);
    gaps.push(now - before);
    before = now;
  }
  send("pointerup", x);
  return gaps;
}"""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("events", type=int, nargs="*", default=SIZES)
    sizes: list[int] = parser.parse_args().events
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            capture, page = Path(folder, f"{size}.legroom"), Path(folder, f"{size}.html")
            with CaptureWriter(
                capture, run={"target": ["bench.py"], "devices": [DEVICE]}, max_bytes=512 * MiB
            ) as writer:
                for event in islice(training(size // BLOCKS), size):
                    writer.write(event)
            begin = time.perf_counter()
            assert legroom(["report", str(capture), "--html", str(page)]) == 0
            seconds = time.perf_counter() - begin
            rows.append([f"{size:,}", f"{page.stat().st_size / MiB:.2f}", f"{seconds:.1f}", *opened(page)])
    print_table(
        "The HTML report",
        ["events", "page (MiB)", "written (s)", "opened (s)", "frame (ms)", "95% of frames (ms)"],
        rows,
    )


def opened(page: Path) -> list[str]:
    """Open a page. Return the time until its charts are drawn, and the frame times while the timeline is dragged."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return ["–", "–", "–"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        begin = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        seconds = time.perf_counter() - begin
        gaps = []
        for zooms in (1, 3, 4):
            for _ in range(zooms):
                tab.click("#zoom-in")
            gaps += tab.evaluate(FRAMES, 3)
        browser.close()
    gaps.sort()
    return [f"{seconds:.2f}", f"{sum(gaps) / len(gaps):.1f}", f"{gaps[len(gaps) * 95 // 100]:.1f}"]


if __name__ == "__main__":
    main()
