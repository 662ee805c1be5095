"""The comparison of two runs at their peaks, as text and as JSON. The largest change comes first."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.run_report import RunReport
from legroom.memory.compare import Change, Difference
from legroom.show.common.formatting import clean, format_location
from legroom.show.report.run_report import format_incomplete
from legroom.units import format_size

TOP_CHANGES = 8


def render_comparison(
    difference: Difference, *, before: str, runs: tuple[RunReport, RunReport] | None = None
) -> RenderableType:
    """Render the comparison. `before` is the path of the older capture. `runs` are the older and the newer run; a run
    that did not finish is named, because its peak may be too low."""
    return Group(*_parts(difference, clean(before), runs))


def _parts(
    difference: Difference, before: str, runs: tuple[RunReport, RunReport] | None
) -> Iterator[RenderableType]:
    yield Text(f"\n{_summary(difference, before)}", style="bold")
    for name, run in zip((before, "This run"), runs or (), strict=False):
        how = format_incomplete(run)
        if how:
            yield Text(f"{name}: {how}. A complete run may have a higher peak.", style="yellow")
    yield Text("\nPeak memory by category", style="bold")
    yield _table([(change.what, change) for change in difference.by_category])
    changed = [change for change in difference.by_line if change.delta]
    if changed:
        yield Text("\nPeak memory by line", style="bold")
        yield _table([(_line(change.what), change) for change in changed[:TOP_CHANGES]])


def _summary(difference: Difference, before: str) -> str:
    peak = difference.allocated
    if not peak.delta:
        return f"Peak memory is the same as in {before}: {format_size(peak.after)}."
    direction = "increased" if peak.delta > 0 else "decreased"
    same_sign = [change for change in difference.by_category if change.delta * peak.delta > 0]
    most = f", mostly {same_sign[0].what}" if same_sign else ""
    return (
        f"Peak memory {direction} by {format_size(abs(peak.delta))}, from {format_size(peak.before)} in {before} to "
        f"{format_size(peak.after)}{most}."
    )


def _table(changes: Sequence[tuple[str, Change]]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(overflow="ellipsis", no_wrap=True)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True, min_width=10)
    for name, change in changes:
        sign = "+" if change.delta > 0 else ""
        style = "red" if change.delta > 0 else "green" if change.delta < 0 else "dim"
        delta = Text(f"{sign}{format_size(change.delta)}" if change.delta else "=", style=style)
        table.add_row(f"  {clean(name)}", format_size(change.before), format_size(change.after), delta)
    return table


def _line(what: str) -> str:
    file, _, line = what.rpartition(":")
    return format_location(file, int(line)) if file and line.isdecimal() else "unknown line"


def comparison_as_dict(difference: Difference, before: RunReport) -> dict[str, Any]:
    """Return the comparison for JSON output. `before` is the older run."""
    return {
        "before": {
            "exit_code": before.ending.exit_code,
            "steps": before.steps,
            "oom": before.failed_with_oom,
            "truncated": before.truncated,
        },
        "allocated": _change_as_dict(difference.allocated),
        "reserved": _change_as_dict(difference.reserved),
        "by_category": [_change_as_dict(change) for change in difference.by_category],
        "by_line": [_change_as_dict(change) for change in difference.by_line],
        "by_module": [_change_as_dict(change) for change in difference.by_module],
    }


def _change_as_dict(change: Change) -> dict[str, Any]:
    return {
        "what": change.what,
        "before_bytes": change.before,
        "after_bytes": change.after,
        "delta_bytes": change.delta,
    }
