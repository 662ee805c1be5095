"""Pieces that several reports are made of: a heading, and the lines that hold memory."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.source_lines import Sources
from legroom.memory.state import Holding
from legroom.show.common.formatting import clean, format_count, format_location
from legroom.show.report.code_frame import source_line
from legroom.show.report.memory_bar import CATEGORY_COLORS
from legroom.units import format_size

TOP_LINES = 6


def section(title: str, remark: str = "") -> Iterator[RenderableType]:
    """A heading, with an aside."""
    heading = Text(f"\n{title}", style="bold")
    if remark:
        heading.append(f"  {remark}", style="not bold dim")
    yield heading


def top_lines(rows: Sequence[Holding], sources: Sources) -> Iterator[RenderableType]:
    """The lines that hold most, each with its code."""
    if not rows:
        return
    yield from section("By line")
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True, min_width=11)
    table.add_column(no_wrap=True, min_width=max(len(row.category) for row in rows[:TOP_LINES]))
    table.add_column()  # the one to give way where there is little room
    for row in rows[:TOP_LINES]:
        where = Text(format_location(row.file, row.line), no_wrap=True, overflow="ellipsis")
        if row.module:
            where.append(f"  {clean(row.module)}", style="dim")
        if row.count > 1:
            where.append(f"  ×{row.count:,}", style="dim")
        table.add_row(
            format_size(row.bytes), Text(str(row.category), style=CATEGORY_COLORS[row.category]), where
        )
        code = source_line(sources, row.file, row.line)
        if code:
            table.add_row("", "", Text(f"  {code}", style="dim italic", no_wrap=True, overflow="ellipsis"))
    yield table
    rest = len(rows) - TOP_LINES
    if rest > 0:
        yield Text(f"  and {format_count(rest, 'smaller one')}", style="dim")
