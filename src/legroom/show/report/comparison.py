"""The comparison of two runs at their peaks, as text and as JSON. The changes are sorted by size, largest first."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.run_report import RunReport
from legroom.memory.compare import Change, Difference
from legroom.memory.event_base import Category
from legroom.show.common.formatting import clean, format_location
from legroom.show.common.one_screen import MAX_LINES, FirstThatFits
from legroom.show.report.run_report import format_incomplete
from legroom.units import format_size

TOP_CHANGES = 8
NEW_LINE = "\n"


def render_comparison(
    difference: Difference,
    *,
    before: str,
    after: str = "",
    runs: tuple[RunReport, RunReport] | None = None,
    verbose: bool = True,
) -> RenderableType:
    """Render the comparison. `before` and `after` are the paths of the captures. Leave `after` empty if the comparison
    is printed below the report of the newer run. `runs` contains the reports of the older and the newer run. If a run
    did not finish, the text warns that its peak may be too low. Without `verbose`, the comparison has at most 19 lines.
    """
    versions = (
        Group(*_parts(difference, clean(before), clean(after), runs, categories, lines))
        for categories, lines in ((len(Category), TOP_CHANGES), (6, 4), (4, 3))
    )
    return next(versions) if verbose else FirstThatFits(versions, MAX_LINES - 4)


def _parts(
    difference: Difference,
    before: str,
    after: str,
    runs: tuple[RunReport, RunReport] | None,
    categories: int,
    lines: int,
) -> Iterator[RenderableType]:
    yield Text(f"{'' if after else NEW_LINE}{format_change(difference, before, after)}", style="bold")
    for remark in incomplete_runs(runs or (), (before, after or "This run")):
        yield Text(remark, style="yellow")
    yield from _changes("category", [(change.what, change) for change in difference.by_category], categories)
    changed = [(format_line(change.what), change) for change in difference.by_line if change.delta]
    if changed:
        yield from _changes("line", changed, lines)


def _changes(kind: str, changes: Sequence[tuple[str, Change]], number: int) -> Iterator[RenderableType]:
    heading = Text(f"\nPeak allocated memory by {kind}", style="bold")
    if len(changes) > number:
        heading.append(f"  the {number} largest of {len(changes)} changes", style="not bold dim")
    yield heading
    yield _table(changes[:number])


def incomplete_runs(runs: Sequence[RunReport], names: Sequence[str]) -> Iterator[str]:
    for name, run in zip(names, runs, strict=False):
        how = format_incomplete(run)
        if how:
            yield f"{name}: {how}. A complete run may have a higher peak."


def format_change(difference: Difference, before: str, after: str = "") -> str:
    peak = difference.allocated
    where = f" in {after}" if after else ""
    if not peak.delta:
        return f"Peak allocated memory is the same as in {before}: {format_size(peak.after)}."
    direction = "increased" if peak.delta > 0 else "decreased"
    same_sign = [change for change in difference.by_category if change.delta * peak.delta > 0]
    most = f", mostly {same_sign[0].what}" if same_sign else ""
    return (
        f"Peak allocated memory {direction} by {format_size(abs(peak.delta))}, from {format_size(peak.before)} in {before} to "
        f"{format_size(peak.after)}{where}{most}."
    )


def format_limit(limit: int) -> str:
    return f"\nPeak allocated memory increased by more than {format_size(limit)} (--fail-over)."


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


def format_line(what: str) -> str:
    file, _, line = what.rpartition(":")
    return format_location(file, int(line)) if file and line.isdecimal() else "unknown line"


def comparison_as_dict(difference: Difference, before: RunReport) -> dict[str, Any]:
    return {
        "before": run_as_dict(before),
        "allocated": _change_as_dict(difference.allocated),
        "reserved": _change_as_dict(difference.reserved),
        "by_category": [_change_as_dict(change) for change in difference.by_category],
        "by_line": [_change_as_dict(change) for change in difference.by_line],
        "by_module": [_change_as_dict(change) for change in difference.by_module],
    }


def run_as_dict(run: RunReport) -> dict[str, Any]:
    return {
        "exit_code": run.ending.exit_code,
        "steps": run.steps,
        "oom": run.failed_with_oom,
        "truncated": run.truncated,
    }


def _change_as_dict(change: Change) -> dict[str, Any]:
    return {
        "what": change.what,
        "before_bytes": change.before,
        "after_bytes": change.after,
        "delta_bytes": change.delta,
    }
