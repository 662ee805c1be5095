"""The report of a recorded block (`legroom.record`): as text, as HTML for notebooks, and as a plot."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from legroom.diagnose.report.growing_lines import Leak
from legroom.diagnose.report.run_report import OomReport, RunReport
from legroom.errors import MissingExtra
from legroom.findings import Finding
from legroom.memory.event_base import Category
from legroom.memory.state import Holding
from legroom.memory.timeline import Sample
from legroom.show.common import notebook_html as html
from legroom.show.common.code_frame import source_line
from legroom.show.common.formatting import format_count, format_location, format_saving
from legroom.show.common.memory_svg import CATEGORY_FILLS, bar_svg, timeline_svg
from legroom.show.common.terminal import render_to_string
from legroom.show.report.run_report import (
    TOP_HOLDERS,
    format_rate,
    format_verdict,
    merge_holders,
    render_oom,
    render_run,
)
from legroom.units import MiB, format_size

TOP_LINES = 5
TOP_FINDINGS = 4


def block_text(report: RunReport, note: str = "") -> str:
    return render_to_string(Group(*_parts(report, note))).rstrip()


def _parts(report: RunReport, note: str) -> Iterator[RenderableType]:
    yield render_oom(report) if report.failed_with_oom else render_run(report)
    remarks = [note, *(f"{remark[:1].upper()}{remark[1:]}." for remark in report.remarks)]
    if any(remarks):
        yield Text("\n" + "\n".join(filter(None, remarks)))


# --- HTML for notebooks


def block_html(report: RunReport, timeline: Sequence[Sample], note: str = "") -> str:
    """Return the report as HTML without scripts: a summary, the memory over time, and tables."""
    return html.block(*_html_parts(report, timeline, note))


def _html_parts(report: RunReport, timeline: Sequence[Sample], note: str) -> Iterator[str]:
    verdict = format_verdict(report)
    yield html.sentence(verdict, bold=True)
    for remark in (note, *(f"{each[:1].upper()}{each[1:]}." for each in report.remarks)):
        yield html.sentence(remark, muted=True)
    oom = report.oom if report.failed_with_oom else None
    snapshot = oom.snapshot if oom is not None else report.peak
    if snapshot is None or report.device is None:
        yield from _leaks_html(report.leaks)
        return
    capacity = report.device.capacity
    yield html.heading("Memory over time", f"{report.device.title}, {format_size(capacity)}")
    yield timeline_svg(timeline, capacity, label=f"Memory by category over time. {verdict}")
    yield html.heading("Memory by category", "when memory ran out" if oom is not None else "at the peak")
    yield bar_svg(snapshot, label="Memory by category. The table below shows the same values.")
    yield html.legend(snapshot)
    if snapshot.top:
        yield html.heading("Memory by line")
        yield html.table((_line_row(each, report) for each in snapshot.top[:TOP_LINES]), align="rlll")
    if oom is not None:
        yield from _oom_html(oom)
    yield from _leaks_html(report.leaks)


def _line_row(holding: Holding, report: RunReport) -> tuple[str, str, str, str]:
    where = format_location(holding.file, holding.line)
    if holding.count > 1:
        where += f" ×{holding.count:,}"
    code = source_line(report.sources, holding.file, holding.line)
    return (
        format_size(holding.bytes),
        html.swatch(CATEGORY_FILLS[holding.category]) + html.text(str(holding.category)),
        html.text(where),
        html.code(code) if code else html.text(holding.module),
    )


def _oom_html(oom: OomReport) -> Iterator[str]:
    if oom.holders:
        yield html.heading("Retained by", "entries may overlap")
        rows = (
            (
                format_size(holder.bytes),
                html.code(holder.path),
                html.text(format_location(holder.frame.file, holder.frame.line) if holder.frame else ""),
            )
            for holder in merge_holders(oom.holders)[:TOP_HOLDERS]
        )
        yield html.table(rows, align="rll")
    if oom.advice:
        yield html.heading("Suggested changes", "most useful first")
        yield from (_finding_html(each) for each in oom.advice[:TOP_FINDINGS])


def _finding_html(finding: Finding) -> str:
    saving = format_saving(finding)
    saves = f", {saving}" if saving else ""
    where = f", {format_location(finding.file, finding.line)}" if finding.file else ""
    return html.sentence(f"{finding.code}{saves}{where}. {finding.message} {finding.fix}")


def _leaks_html(leaks: Sequence[Leak]) -> Iterator[str]:
    if leaks:
        yield html.heading("Memory leaks")
    for leak in leaks[:TOP_FINDINGS]:
        where = format_location(leak.file, leak.line)
        rate = f"{format_rate(leak)} over {format_count(leak.steps, 'step')}"
        yield html.sentence(f"{leak.code}  {rate}, {'stored' if leak.name else 'allocated'} at {where}")
        if leak.holder and leak.name:
            yield html.sentence(leak.holder, muted=True)
        yield html.sentence(leak.advice)


# --- a plot


def plot_timeline(report: RunReport, timeline: Sequence[Sample], ax: Any = None) -> Any:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise MissingExtra("matplotlib", "plot") from None
    if ax is None:
        _, ax = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
    used = [category for category in Category if any(each.by_category.get(category) for each in timeline)]
    ends = timeline[-1].time if timeline else 0.0
    times = [*(sample.time for sample in timeline), max(ends, report.seconds)] if timeline else []
    if used:
        values = [[sample.by_category.get(category, 0) / MiB for sample in timeline] for category in used]
        ax.stackplot(
            times,
            *([*each, each[-1]] for each in values),
            labels=[str(category) for category in used],
            colors=[CATEGORY_FILLS[category] for category in used],
            step="post",
        )
    device = report.device
    if device is not None and report.peak is not None and report.peak.allocated >= 0.25 * device.capacity:
        ax.axhline(device.capacity / MiB, linestyle="--", color="grey", label="capacity")
    ax.set_xlabel("seconds")
    ax.set_ylabel("MiB")
    ax.set_title(f"Memory of {device.title}" if device is not None else "No memory was used")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper left", fontsize="small", framealpha=0.7)
    return ax
