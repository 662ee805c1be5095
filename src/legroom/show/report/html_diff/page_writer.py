"""Assembles the page that compares two runs. The page has no scripts: its tables are HTML and its chart is SVG."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import PurePath

from legroom.diagnose.report.run_report import RunReport
from legroom.memory.compare import Change, Difference
from legroom.memory.events import Step
from legroom.show.common.formatting import clean
from legroom.show.common.html_page import fill_template
from legroom.show.report.comparison import format_change, format_line, incomplete_runs
from legroom.units import format_size

MAX_CHANGES = 100
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 240, 70, 24


def page(difference: Difference, runs: tuple[RunReport, RunReport], *, names: tuple[str, str]) -> str:
    before, after = (clean(PurePath(name).name) for name in names)
    return fill_template(
        __package__,
        style="page.css",
        scripts=(),
        name="run",
        data=None,
        title=escape(f"Memory of {before} and {after}"),
        verdict=escape(format_change(difference, before, after)),
        verdict_class="bad" if difference.allocated.delta > 0 else "good",
        notes="".join(
            f'<p class="remark">{escape(clean(each))}</p>' for each in incomplete_runs(runs, (before, after))
        ),
        totals=_table([difference.allocated, difference.reserved], str, "Peak"),
        categories=_table(difference.by_category, str, "Category"),
        lines=_table(_changed(difference.by_line), format_line, "Line"),
        modules=_table(_changed(difference.by_module), lambda name: name or "no module", "Module"),
        chart=_chart([run.history for run in runs], (before, after)),
    )


def _changed(changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.delta][:MAX_CHANGES]


def _table(changes: Sequence[Change], name: Callable[[str], str], head: str) -> str:
    if not changes:
        return "<p>No changes.</p>"
    largest = max((abs(change.delta) for change in changes), default=0) or 1
    rows = "".join(
        f"<tr><td>{escape(clean(name(change.what)))}</td>{_size(change.before)}{_size(change.after)}"
        f'<td data-sort="{change.delta}">{_delta(change.delta)}</td>'
        f'<td class="bar">{_bar(change.delta, largest)}</td></tr>'
        for change in changes
    )
    heads = "".join(f"<th><button>{each}</button></th>" for each in (head, "Before", "After", "Change"))
    return f'<div class="scroll"><table><thead><tr>{heads}<th><span class="visually-hidden">Chart</span></th></tr></thead><tbody>{rows}</tbody></table></div>'


def _bar(delta: int, largest: int) -> str:
    kind = "grew" if delta > 0 else "shrank"
    return f'<i class="{kind}" style="width:{100 * abs(delta) / largest:.1f}%"></i>' if delta else ""


def _size(size: int) -> str:
    return f'<td data-sort="{size}">{format_size(size)}</td>'


def _delta(size: int) -> str:
    return f"{'+' if size > 0 else ''}{format_size(size)}" if size else "="


def _chart(histories: Sequence[Sequence[Step]], names: Sequence[str]) -> str:
    drawn = [history for history in histories if len(history) > 1]
    if not drawn:
        return ""
    last = max(max(step.step for step in history) for history in drawn)
    highest = max(max(step.peak_allocated for step in history) for history in drawn) or 1
    lines = "".join(
        f'<polyline class="{kind}" points="{_points(history, last, highest)}"/>'
        for history, kind in zip(histories, ("before", "after"), strict=True)
        if len(history) > 1
    )
    bottom = _HEIGHT - _BOTTOM
    labels = (
        f'<text x="{_LEFT - 6}" y="14" text-anchor="end">{format_size(highest)}</text>'
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0 B</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">step 0</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 6}" text-anchor="end">step {last:,}</text>'
    )
    before, after = map(escape, names)
    return (
        "<section><h2>Peak allocated memory per step</h2>"
        f'<p class="legend"><span class="before">{before}</span><span class="after">{after}</span></p>'
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Peak allocated memory per step of {before} and {after}">'
        f'<path class="axis" d="M{_LEFT} 8V{bottom}H{_WIDTH}"/>{labels}{lines}</svg></div></section>'
    )


def _points(history: Sequence[Step], last: int, highest: int) -> str:
    """Return the points of a line in the SVG chart. For a run with many steps, the line has about 1,000 points, and
    each point is the highest peak of several steps.
    """
    size = max(1, len(history) // 1000)
    groups = [history[start : start + size] for start in range(0, len(history), size)]
    chosen = [max(group, key=lambda step: step.peak_allocated) for group in groups]
    bottom = _HEIGHT - _BOTTOM
    return " ".join(
        f"{_LEFT + (_WIDTH - _LEFT) * step.step / max(last, 1):.1f},{bottom - (bottom - 10) * step.peak_allocated / highest:.1f}"
        for step in chosen
    )
