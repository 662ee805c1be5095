"""Assembles the page of a run. Text and tables are HTML and readable without scripts. The scripts of the page draw the
timeline, the icicle chart and the allocator map from the data that this module embeds.
"""

from array import array
from collections.abc import Callable, Iterable
from html import escape
from pathlib import PurePath
from typing import Any

from legroom.diagnose.oom.evidence import block_of
from legroom.diagnose.report.run_figures import RunFigures
from legroom.diagnose.report.source_lines import Sources
from legroom.memory.columns import CATEGORIES, Columns, History
from legroom.memory.event_base import Frame, Phase
from legroom.memory.layout import Layout
from legroom.memory.moments import Site
from legroom.show.common.formatting import BETWEEN_PASSES, clean, format_count, format_location, format_phase
from legroom.show.common.html_page import compressed, fill_template
from legroom.show.report.html_report import parts
from legroom.show.report.run_report import format_verdict
from legroom.units import format_size

_SCRIPTS = ("timeline.js", "icicle.js", "allocator_map.js")
_UNIT = 512
"""Sizes in binary data are stored as multiples of this number of bytes, which is the minimum size of a block."""
MAX_BLOCKS = 20_000
"""The approximate maximum number of blocks in the allocator map."""
_PHASES = tuple(Phase)


def page(figures: RunFigures, *, with_source: bool = True) -> str:
    """Return the HTML page. Without `with_source`, the page contains no lines of the user's code."""
    report = figures.report
    sources = report.sources if with_source else {}
    snapshot = report.oom.snapshot if report.oom and report.failed_with_oom else report.peak
    script = next(iter(report.command.target[-1:]), "") or report.capture or "run"
    return fill_template(
        __package__,
        style="page.css",
        scripts=_SCRIPTS,
        name="run",
        data=_data(figures, sources),
        title=escape(f"Memory of {clean(PurePath(script).name)}"),
        verdict=escape(format_verdict(report)),
        verdict_class="bad" if report.failed_with_oom or report.leaks else "good",
        notes=parts.notes(report),
        fix=parts.first_fix(report),
        facts=parts.facts(report),
        contents=parts.contents(
            has_charts=figures.history is not None, has_map=figures.layout is not None, report=report
        ),
        bar=parts.memory_bar(snapshot, report) if snapshot else "",
        findings=parts.findings(report, sources),
        leaks=parts.leaks(report, sources),
        lines=parts.line_table(snapshot, sources) if snapshot else "",
        variables=parts.variables(report),
        steps=parts.step_table(report),
        layout_text=escape(_layout_text(figures.layout)),
        next=parts.next_commands(report),
        charts="" if figures.history else " hidden",
        map="" if figures.layout else " hidden",
    )


def _data(figures: RunFigures, sources: Sources) -> dict[str, Any]:
    history, report = figures.history, figures.report
    if history is None or report.device is None:
        return {}
    names = _Names()
    positions = {site: position for position, site in enumerate(figures.sites)}
    layout = figures.layout
    extra: list[Site] = []

    def position(site: Site) -> int:
        if site not in positions:
            positions[site] = len(positions)
            extra.append(site)
        return positions[site]

    segments = _segments(layout, position) if layout else []
    return {
        "categories": [str(category) for category in CATEGORIES],
        "capacity": report.device.capacity,
        "begin": history.begin,
        "end": history.end,
        "levels": [_level(columns) for columns in history.levels],
        "phaseNames": [*(format_phase(phase) for phase in _PHASES), BETWEEN_PASSES],
        "phases": _phases(history),
        "gaps": [list(gap) for gap in history.gaps],
        "steps": {
            "numbers": _integers(step.step for step in report.history),
            "ends": _floats(step.time for step in report.history),
            "unfinished": _has_unfinished_step(figures, history),
        },
        "marks": _marks(figures),
        "moments": [
            {
                "time": each.live.time,
                "step": each.step,
                "phase": len(_PHASES) if each.between_passes else _PHASES.index(each.phase),
                "label": each.label,
                "size": len(each.live.sites),
            }
            for each in figures.moments
        ],
        "main": figures.main,
        "live": {
            name: _integers(
                value // unit for each in figures.moments for value in getattr(each.live, attribute)
            )
            for name, attribute, unit in (
                ("sites", "sites", 1),
                ("sizes", "bytes", _UNIT),
                ("counts", "counts", 1),
            )
        },
        "segments": segments,
        "sites": [_site(site, names, sources) for site in (*figures.sites, *extra)],
        "names": names.all,
    }


class _Names:
    def __init__(self) -> None:
        self.all: list[str] = []
        self._positions: dict[str, int] = {}

    def position(self, text: str) -> int:
        found = self._positions.setdefault(text, len(self.all))
        if found == len(self.all):
            self.all.append(clean(text))
        return found


def _site(site: Site, names: _Names, sources: Sources) -> list[int]:
    """Return the properties of an allocation site as integers, which keeps the page small. The last integer is the
    index of the category, and the other integers are positions in the list of names.
    """
    frame = site.frame or Frame("", 0, "")
    location = format_location(frame.file, frame.line) if frame.file else "unknown line"
    source = sources.get(frame.file, {}).get(frame.line, "").strip()
    texts = site.module, location, format_location(frame.file, None), frame.function, source
    return [*(names.position(text) for text in texts), CATEGORIES.index(site.category)]


def _level(columns: Columns) -> dict[str, Any]:
    return {
        "size": len(columns),
        "times": _floats(columns.times),
        "sums": _integers(value // _UNIT for sums in zip(*columns.sums, strict=True) for value in sums),
        "reserved": _integers(value // _UNIT for value in columns.reserved),
    }


def _has_unfinished_step(figures: RunFigures, history: History) -> bool:
    """Return True if a pass started, or memory ran out, after the last recorded step."""
    last = max((step.time for step in figures.report.history), default=history.begin)
    return any(time >= last and phase is not Phase.OTHER for time, phase in history.phases) or any(
        oom.time > last for oom in figures.ooms
    )


def _phases(history: History) -> dict[str, str]:
    return {
        "times": _floats(time for time, _ in history.phases),
        "kinds": _integers(_PHASES.index(phase) for _, phase in history.phases),
    }


def _marks(figures: RunFigures) -> list[dict[str, Any]]:
    ooms = [
        {
            "time": oom.time,
            "kind": "oom",
            "text": f"Out of memory: tried to allocate {format_size(block_of(oom))}",
        }
        for oom in figures.ooms
    ]
    leaks = [
        {
            "time": leak.time,
            "kind": "leak",
            "text": clean(f"Leak detected: {leak.name or format_location(leak.file, leak.line)}"),
        }
        for leak in figures.leaks
    ]
    return [*ooms, *leaks]


def _segments(layout: Layout, position: Callable[[Site], int]) -> list[list[Any]]:
    """For each segment, return whether the segment is small, and the size and site of each of its blocks. The site of
    a free block is -1.

    If there are too many blocks, adjacent blocks that are too small to see are merged. A merged block has the site of
    its first block.
    """
    number = sum(len(segment.blocks) for segment in layout.segments)
    smallest = layout.reserved // MAX_BLOCKS if number > MAX_BLOCKS else 0
    result: list[list[Any]] = []
    for segment in layout.segments:
        blocks: list[list[int]] = []
        for block in segment.blocks:
            if blocks and max(block.size, blocks[-1][0]) < smallest:
                blocks[-1][0] += block.size
                continue
            alloc = block.alloc
            site = position(Site(alloc.module, alloc.frame, alloc.category)) if alloc else -1
            blocks.append([block.size, site])
        result.append([int(segment.is_small), blocks])
    return result


def _layout_text(layout: Layout | None) -> str:
    if layout is None:
        return ""
    free = [block.size for segment in layout.segments for block in segment.blocks if block.alloc is None]
    text = (
        f"PyTorch reserved {format_size(layout.reserved)} in {format_count(len(layout.segments), 'segment')}."
    )
    if free:
        text += (
            f" {format_size(sum(free))} of it is free, in {format_count(len(free), 'block')}. "
            f"The largest free block is {format_size(max(free))}."
        )
    if not layout.is_exact:
        text += (
            " The layout is approximate, because the run used the allocator in ways that are not recorded."
        )
    return text


def _integers(values: Iterable[int]) -> str:
    return compressed(array("I", (min(max(value, 0), 0xFFFFFFFF) for value in values)).tobytes())


def _floats(values: Iterable[float]) -> str:
    return compressed(array("d", values).tobytes())
