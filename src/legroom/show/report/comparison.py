"""Two runs side by side, each at its peak: what changed, the largest change first."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legroom.memory.compare import Change, Difference
from legroom.show.common.formatting import clean, format_location
from legroom.units import format_size

TOP_ROWS = 8


def render_comparison(difference: Difference, *, before: str) -> RenderableType:
    """`before` names the older capture."""
    return Group(*_parts(difference, before))


def _parts(difference: Difference, before: str) -> Iterator[RenderableType]:
    yield Text(f"\n{_sentence(difference, before)}", style="bold")
    yield Text("\nBy category", style="bold")
    yield _table([(change.what, change) for change in difference.by_category])
    moved = [change for change in difference.by_line if change.delta]
    if moved:
        yield Text("\nBy line", style="bold")
        yield _table([(_line(change.what), change) for change in moved[:TOP_ROWS]])


def _sentence(difference: Difference, before: str) -> str:
    peak = difference.allocated
    if not peak.delta:
        return f"The peak is as it was in {before}: {format_size(peak.after)}."
    how = "rose" if peak.delta > 0 else "fell"
    agreeing = [change for change in difference.by_category if change.delta * peak.delta > 0]
    most = f", most of it {agreeing[0].what}" if agreeing else ""
    return (
        f"Since {before} the peak {how} by {format_size(abs(peak.delta))}, from {format_size(peak.before)} to "
        f"{format_size(peak.after)}{most}."
    )


def _table(rows: Sequence[tuple[str, Change]]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(overflow="ellipsis", no_wrap=True)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True, min_width=10)
    for name, change in rows:
        sign = "+" if change.delta > 0 else ""
        style = "red" if change.delta > 0 else "green" if change.delta < 0 else "dim"
        delta = Text(f"{sign}{format_size(change.delta)}" if change.delta else "=", style=style)
        table.add_row(f"  {clean(name)}", format_size(change.before), format_size(change.after), delta)
    return table


def _line(what: str) -> str:
    file, _, line = what.rpartition(":")
    return format_location(file, int(line)) if file and line.isdecimal() else "unknown line"
