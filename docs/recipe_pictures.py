"""Draws the pictures of the recipes: runs both programs of each recipe and draws the memory that was recorded.

    python docs/recipe_pictures.py [RECIPE ...]      # by default, all recipes whose page has a picture; also `make recipes`

The horizontal axis counts allocations and frees instead of seconds, so the same programs give the same picture on every
machine. A picture has a row for each program and a column for each GPU.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from legroom.memory.annotations import RunEnded
from legroom.memory.capture.capture import read_capture
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc, Event, Free, Oom, SegmentChange, Tag
from legroom.memory.ledger import Ledger
from legroom.memory.timeline import Sample
from legroom.show.common.memory_svg import CATEGORY_FILLS
from legroom.units import format_size

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "examples/recipes"
PAGES = ROOT / "docs/recipes"
PICTURES = ROOT / "docs/images/recipes"
WIDTH, LEFT, RIGHT, GAP, HEIGHT, TITLE = 720, 74, 12, 30, 110, 34
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.s{font-size:11px;fill:#555}.t{font-weight:600}.bg{fill:#fff}"
    ".l{stroke:#888;fill:none}.d{stroke:#555;fill:none;stroke-dasharray:5 4}.r{stroke:#444;fill:none;stroke-opacity:.8}"
    ".e{stroke:#d62839;fill:none;stroke-width:2}.et{fill:#c1121f}"
    "@media (prefers-color-scheme: dark){text{fill:#e6e6e6}.s{fill:#b0b0b0}.bg{fill:#1e2129}.d{stroke:#aaa}"
    ".r{stroke:#ddd}.e{stroke:#ff6b6b}.et{fill:#ff8f8f}}"
)


class Panel(NamedTuple):
    """The memory of one GPU during a run. The time of a sample is the number of allocations and frees before it."""

    title: str
    samples: list[Sample]
    capacity: int
    failures: list[int]
    """The times of out-of-memory errors."""

    @property
    def peak(self) -> int:
        return max((sample.allocated for sample in self.samples), default=0)

    @property
    def reserved(self) -> int:
        return max((sample.reserved for sample in self.samples), default=0)


def main(names: Sequence[str]) -> None:
    PICTURES.mkdir(exist_ok=True)
    for name in names or sorted(
        page.stem for page in PAGES.glob("*.md") if f"{page.stem}.svg" in page.read_text("utf-8")
    ):
        rows = [panels_of(PROGRAMS / name / f"{program}.py") for program in ("original", "improved")]
        (PICTURES / f"{name}.svg").write_text(picture(rows, name.replace("_", " ")), encoding="utf-8")
        print(f"{name}: " + "; ".join(panel.title for row in rows for panel in row))


def panels_of(program: Path) -> list[Panel]:
    """Run a program with the command in its docstring, and return a panel for each GPU."""
    command = re.search(r"^legroom (\w+ .+)$", ast.get_docstring(ast.parse(program.read_text())) or "", re.M)
    assert command, f"The docstring of {program} has no command."
    verb, *words = shlex.split(command[1])
    with tempfile.TemporaryDirectory() as folder:
        output = ["--logs", folder] if verb == "launch" else ["--output", str(Path(folder, "run.legroom"))]
        environment = {
            **os.environ, "TMPDIR": folder, "LEGROOM_CACHE": "off", "LEGROOM_LIVE": "off",
            "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "legroom", verb, *output, *words],
            cwd=ROOT, env=environment, capture_output=True, check=False,
        )  # fmt: skip
        captures = [read_capture(path) for path in sorted(Path(folder).glob("*.legroom"))]
    panels = []
    for rank, recorded in enumerate(captures):
        devices = recorded.run["devices"]
        if len(captures) > 1:  # one capture per rank, which uses the GPU with its number
            devices = [device for device in devices if device["index"] == rank]
        several = len(captures) > 1 or len(devices) > 1
        for device in devices:
            title = f"{program.name}, GPU {device['index']}" if several else program.name
            panels.append(panel_of(title, recorded.events, device["index"], device["capacity"]))
    return panels


def panel_of(title: str, events: Sequence[Event], device: int, capacity: int) -> Panel:
    """Return the panel of one GPU. `events` are the events of the capture."""
    numbered, failures, count = [], [], 0
    for event in events:
        count += isinstance(event, Alloc | Free)
        if isinstance(event, Alloc | Free | SegmentChange):
            numbered.append(event._replace(time=float(count)))
        elif isinstance(event, Tag):
            numbered.append(event)
        if isinstance(event, Oom) and event.device == device:
            failures.append(count)
    panel = Panel(title, Ledger(numbered).timeline(samples=600, device=device), capacity, failures)
    finished = any(isinstance(event, RunEnded) and event.exit_code == 0 for event in events)
    ending = (", recovers from out of memory" if finished else ", out of memory") if failures else ""
    return panel._replace(title=f"{title}: peak {format_size(panel.peak)}{ending}")


def picture(rows: Sequence[Sequence[Panel]], name: str) -> str:
    """Return a drawing of all panels with the same vertical scale."""
    panels = [panel for row in rows for panel in row]
    capacity = max(panel.capacity for panel in panels)
    highest = max(max(panel.peak, panel.reserved) for panel in panels)
    shows_capacity = highest >= capacity / 4
    top = (max(capacity, highest) if shows_capacity else highest) * 1.04
    parts: list[str] = []
    y = 8
    for row in rows:
        width = (WIDTH - LEFT - RIGHT - GAP * (len(row) - 1)) / len(row)
        for column, panel in enumerate(row):
            x = LEFT + column * (width + GAP)
            parts += panel_parts(panel, x, y + TITLE, width, top, labels=column == 0, limit=shows_capacity)
        y += TITLE + HEIGHT + 10
    parts += legend(panels, y + 14, capacity, shows_capacity)
    height = y + 46
    title = f"Memory of the original and the improved program: {name}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="bg" width="{WIDTH}" height="{height}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def panel_parts(
    panel: Panel, x: float, y: float, width: float, top: float, *, labels: bool, limit: bool
) -> list[str]:
    """Return the elements of one panel whose plot has its upper left corner at `x`, `y`."""
    base = y + HEIGHT
    end = max(panel.samples[-1].time, *panel.failures, 1.0) if panel.samples else 1.0

    def corners(values: Sequence[int]) -> list[tuple[str, str]]:
        """Return the corners of a step line, as strings with the precision of the picture."""
        found: list[tuple[str, str]] = []
        for sample, value in zip(panel.samples, values, strict=True):
            at, height = f"{x + sample.time / end * width:.4g}", f"{base - value / top * HEIGHT:.4g}"
            if not found or found[-1][1] != height:
                found += [(at, found[-1][1]), (at, height)] if found else [(at, height)]
        return [*found, (f"{x + width:.4g}", found[-1][1])]

    def area(above: Sequence[int], below: Sequence[int]) -> str:
        first, *others = [*corners(above), *corners(below)[::-1]]
        path, last = [f"M{first[0]} {first[1]}"], first
        for at, height in others:
            path += [f"H{at}"] * (at != last[0]) + [f"V{height}"] * (height != last[1])
            last = at, height
        return "".join(path)

    parts = [f'<text class="t" x="{x:.0f}" y="{y - 10:.0f}">{escape(panel.title)}</text>']
    below = [0] * len(panel.samples)
    for category in Category:
        above = [
            low + sample.by_category.get(category, 0)
            for low, sample in zip(below, panel.samples, strict=True)
        ]
        if above != below:
            parts.append(
                f'<path d="{area(above, below)}Z" fill="{CATEGORY_FILLS[category]}"><title>{escape(category)}</title></path>'
            )
        below = above
    reserved = [sample.reserved for sample in panel.samples]
    if any(reserved):
        parts.append(
            f'<path class="r" d="M{"L".join(map(" ".join, corners(reserved)))}"><title>reserved</title></path>'
        )
    parts.append(f'<path class="l" d="M{x:.1f} {base}h{width:.1f}"/>')
    if limit:
        parts.append(f'<path class="d" d="M{x:.1f} {base - panel.capacity / top * HEIGHT:.1f}h{width:.1f}"/>')
    if labels:
        scale = panel.capacity if limit else top / 1.04
        parts.append(f'<text class="s" x="{x - 6:.0f}" y="{base}" text-anchor="end">0</text>')
        parts.append(
            f'<text class="s" x="{x - 6:.0f}" y="{base - scale / top * HEIGHT + 4:.0f}" text-anchor="end">{format_size(int(scale))}</text>'
        )
    for failure in panel.failures:
        at = x + failure / end * width
        parts.append(f'<path class="e" d="M{at:.1f} {y}V{base}"><title>out of memory</title></path>')
    return parts


def legend(panels: Sequence[Panel], y: float, capacity: int, shows_capacity: bool) -> list[str]:
    """Return the names of the colors and lines in the picture."""
    used = [
        category
        for category in Category
        if any(sample.by_category.get(category) for panel in panels for sample in panel.samples)
    ]
    parts, x = [], float(LEFT)
    for category in used:
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" fill="{CATEGORY_FILLS[category]}"/>'
        )
        parts.append(f'<text class="s" x="{x + 14:.0f}" y="{y}">{escape(category)}</text>')
        x += 26 + 6.2 * len(category)
    lines = ["line: reserved"]
    lines.append(
        "dashed: size of the GPU"
        if shows_capacity
        else f"size of the GPU: {format_size(capacity)}, above the picture"
    )
    if any(panel.failures for panel in panels):
        lines.append("red: out of memory")
    lines.append("to the right: allocations and frees")
    parts.append(f'<text class="s" x="{LEFT}" y="{y + 18}">{escape("; ".join(lines))}</text>')
    return parts


if __name__ == "__main__":
    main(sys.argv[1:])
