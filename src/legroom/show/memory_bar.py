"""A device's memory as one bar, drawn part by part: each row begins where the one above it ended.

So the parts are read like a table and seen like a bar, with or without colour, and the last one ends at the device's total.
"""

from rich.table import Table
from rich.text import Text

from legroom.diagnose.picture import Picture, Share
from legroom.memory.events import Category
from legroom.units import format_size

COLOURS = {
    Category.PARAMETER: "blue",
    Category.GRADIENT: "magenta",
    Category.OPTIMIZER_STATE: "yellow",
    Category.ACTIVATION: "red",
    Category.INPUT: "cyan",
    Category.BUFFER: "bright_blue",
    Category.WORKSPACE: "white",
    Category.TEMPORARY: "green",
}


def memory_bar(picture: Picture, *, width: int = 32) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    before = 0
    for share in picture.shares:
        style = _style(share)
        table.add_row(
            Text(f"  {share.label}", style="dim" if share.is_free else ""),
            format_size(share.bytes),
            _percent(share.bytes, picture.capacity),
            Text(_bar(before, share.bytes, picture.capacity, width), style=style),
        )
        before += share.bytes
    table.add_row(
        Text("  total", style="bold"), Text(format_size(picture.capacity), style="bold"), "100%", ""
    )
    return table


def _style(share: Share) -> str:
    if share.category is not None:
        return COLOURS[share.category]
    return "bright_black" if share.is_free else "bright_white"


def _percent(size: int, total: int) -> str:
    percent = 100 * size / total
    return "<1%" if 0 < percent < 1 else f"{percent:.0f}%"


def _bar(before: int, size: int, total: int, width: int) -> str:
    """Blank up to `before`, then as much as `size` is of `total`; something is always visible."""
    start = int(before / total * width)
    end = max(round((before + size) / total * width), start + 1)
    if size < total / width / 2:  # thinner than half a column
        return " " * min(start, width - 1) + "▏"
    return " " * start + "█" * (min(end, width) - start)
