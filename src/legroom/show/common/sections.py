"""Parts that several reports share: a section heading, and the lines that allocated the most memory."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.source_lines import Sources
from legroom.memory.state import Holding
from legroom.show.common.code_frame import source_line
from legroom.show.common.formatting import clean, format_count, format_location
from legroom.show.common.language import Words
from legroom.show.common.memory_charts import CATEGORY_COLORS
from legroom.units import format_size

TOP_LINES = 6


def section(title: str, remark: str = "") -> Iterator[RenderableType]:
    heading = Text(f"\n{title}", style="bold")
    if remark:
        heading.append(f"  {remark}", style="not bold dim")
    yield heading


def top_lines(holdings: Sequence[Holding], sources: Sources) -> Iterator[RenderableType]:
    if not holdings:
        return
    yield from section("Memory by line")
    shown = holdings[:TOP_LINES]
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True, min_width=11)
    table.add_column(no_wrap=True, min_width=max(len(each.category) for each in shown))
    table.add_column()  # without min_width: only this column shrinks on a narrow terminal
    for each in shown:
        where = Text(format_location(each.file, each.line), no_wrap=True, overflow="ellipsis")
        if each.module:
            where.append(f"  {clean(each.module)}", style="dim")
        if each.count > 1:
            where.append(f"  ×{each.count:,}", style="dim")
        table.add_row(format_size(each.bytes), _category(each), where)
        code = source_line(sources, each.file, each.line)
        if code:
            table.add_row("", "", Text(f"  {code}", style="dim italic", no_wrap=True, overflow="ellipsis"))
    yield table
    remaining = len(holdings) - len(shown)
    if remaining > 0:
        yield Text(f"  and {format_count(remaining, 'more line')}", style="dim")


def largest_lines(
    holdings: Sequence[Holding], sources: Sources, number: int = 3, *, words: Words = str
) -> Table:
    """Return a table of the lines that allocated the most live memory. If a row is wide enough, it includes the source
    code. `words` translates the categories.
    """
    shown = holdings[:number]
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True, min_width=11)
    width = max((cell_len(words(str(each.category))) for each in shown), default=0)
    table.add_column(no_wrap=True, min_width=width)
    table.add_column()
    for each in shown:
        where = Text(format_location(each.file, each.line), no_wrap=True, overflow="ellipsis")
        remark = source_line(sources, each.file, each.line) or clean(each.module)
        where.append(f"  {remark}" if remark else "", style="dim")
        table.add_row(format_size(each.bytes), _category(each, words), where)
    return table


def _category(holding: Holding, words: Words = str) -> Text:
    return Text(words(str(holding.category)), style=CATEGORY_COLORS[holding.category])
