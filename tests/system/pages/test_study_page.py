"""The page of a study in a real browser: all charts are drawn."""

import shutil
import subprocess
from pathlib import Path

import pytest

from example_studies import study, trial
from legroom.show.tune.html_report.page_writer import write_page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium to open the page with")
def test_every_chart_is_drawn(tmp_path: Path) -> None:
    stopped = trial(2, outcome="stopped", state="stopped early", reason="ASHA at step 1")
    rejected = trial(
        3, outcome="rejected", state="cannot fit", reason="too large", value=None, curve=[], peak=None
    )
    page = write_page(
        study(trial(0), trial(1, config={"lr": 0.1}), stopped, rejected), tmp_path / "report.html"
    )
    opened = subprocess.run(
        [str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1000,2000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    parallel, curves, memory = (
        opened.partition(f'<div id="{name}" class="chart">')[2].partition("</svg>")[0]
        for name in ("parallel", "curves", "memory")
    )
    assert parallel.count('class="axis"') == 3
    assert parallel.count('class="line is-best"') == 1
    assert parallel.count(">not set<") == 1, "the batch size of trial 1"
    assert curves.count('class="mark line"') == 1, "one cross, where the scheduler stopped a trial"
    assert memory.count('class="capacity"') == 1
    assert memory.count('class="mark"') == 4
