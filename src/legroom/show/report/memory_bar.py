"""A device's memory as one bar, drawn part by part: each row begins where the one above it ended.

So the parts are read like a table and seen like a bar, with or without colour, and the last one ends at the device's total.
"""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.device_memory import MemoryShare, MemorySnapshot
from legroom.memory.events import Category
from legroom.units import format_size

CATEGORY_COLORS = {
    Category.PARAMETER: "blue",
    Category.GRADIENT: "magenta",
    Category.OPTIMIZER_STATE: "yellow",
    Category.ACTIVATION: "red",
    Category.INPUT: "cyan",
    Category.BUFFER: "bright_blue",
    Category.WORKSPACE: "white",
    Category.RESULT: "bright_green",
    Category.TEMPORARY: "green",
}


class MemoryBar:
    """Draws a picture as wide as there is room for."""

    MOST_COLUMNS = 40

    def __init__(self, picture: MemorySnapshot) -> None:
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        picture = self._picture
        labels = max(len(share.label) for share in picture.shares)
        width = max(4, min(self.MOST_COLUMNS, options.max_width - labels - 20))
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        for _ in range(2):
            table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        before = 0
        for share in picture.shares:
            table.add_row(
                Text(f"  {share.label}", style="dim" if share.is_free else ""),
                format_size(share.bytes),
                _percent(share.bytes, picture.capacity),
                Text(_bar(before, share, picture.capacity, width), style=_style(share)),
            )
            before += share.bytes
        table.add_row(
            Text("  total", style="bold"), Text(format_size(picture.capacity), style="bold"), "100%", ""
        )
        yield table


def _style(share: MemoryShare) -> str:
    if share.category is not None:
        return CATEGORY_COLORS[share.category]
    return "bright_black" if share.is_free else "bright_white"


def _percent(size: int, total: int) -> str:
    percent = 100 * size / total
    return "<1%" if 0 < percent < 1 else f"{percent:.0f}%"


def _bar(before: int, share: MemoryShare, total: int, width: int) -> str:
    """Blank up to `before`, then as much as the share is of `total`; something is always visible."""
    start = min(int(before / total * width), width - 1)
    end = min(max(round((before + share.bytes) / total * width), start + 1), width)
    if share.bytes < total / width / 2:  # thinner than half a column
        return " " * start + "▏"
    return " " * start + ("░" if share.is_free else "█") * (end - start)
