"""Two text charts: a device's memory by category, and the peak of every step."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.device_memory import MemoryShare, MemorySnapshot
from legroom.memory.event_base import Category
from legroom.memory.events import Step
from legroom.show.common.formatting import format_count
from legroom.show.common.language import Words
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
MAX_COLUMNS = 40
_LEVELS = "▁▂▃▄▅▆▇█"


class MemoryBar:
    """A device's memory as a bar chart with one row per category. Each row starts where the row above ends, so the
    chart is readable without color.

    The last row ends at the device's total. With `rows`, the smallest categories share a row, and the row with the
    total is omitted. `words` translates the labels.
    """

    def __init__(self, snapshot: MemorySnapshot, *, rows: int | None = None, words: Words = str) -> None:
        self._snapshot = snapshot
        self._words = words
        self._shares = snapshot.shares if rows is None else _merge_smallest(snapshot.shares, rows)
        self._shows_total = rows is None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        snapshot = self._snapshot
        labels = [self._words(share.label) for share in self._shares]
        label_width = max(map(cell_len, labels))
        width = max(4, min(MAX_COLUMNS, options.max_width - label_width - 20))
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        for _ in range(2):
            table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        offset = 0
        for share, label in zip(self._shares, labels, strict=True):
            table.add_row(
                Text(f"  {label}", style="dim" if share.is_free else ""),
                format_size(share.bytes),
                _percent(share.bytes, snapshot.capacity),
                Text(_bar(offset, share, snapshot.capacity, width), style=_style(share)),
            )
            offset += share.bytes
        if self._shows_total:
            total = Text(format_size(snapshot.capacity), style="bold")
            table.add_row(Text("  total", style="bold"), total, "100%", "")
        yield table


MIN_CATEGORIES = 4


def rows_of_largest(snapshot: MemorySnapshot, max_merged: float = 0.1) -> int:
    """Return the number of rows with which `MemoryBar` merges less than the fraction `max_merged` of the used memory,
    but not more rows than `MIN_CATEGORIES` categories, the merged row and the free memory need.
    """
    used = sum(share.bytes for share in snapshot.shares if not share.is_free)
    free = sum(share.is_free for share in snapshot.shares)
    for rows in range(free + 2, free + MIN_CATEGORIES + 1):
        if len(snapshot.shares) <= rows:
            return rows
        merged = next(
            share for share in reversed(_merge_smallest(snapshot.shares, rows)) if not share.is_free
        )
        if merged.bytes < max_merged * used:
            return rows
    return free + MIN_CATEGORIES + 1


def _merge_smallest(shares: Sequence[MemoryShare], rows: int) -> list[MemoryShare]:
    """Merge the smallest shares into a single share, so that at most `rows` shares remain. Free memory is not merged."""
    if len(shares) <= rows:
        return list(shares)
    used = [share for share in shares if not share.is_free]
    free = [share for share in shares if share.is_free]
    largest = sorted(used, key=lambda share: -share.bytes)[: max(rows - len(free) - 1, 0)]
    merged = [share for share in used if share not in largest]
    rest = MemoryShare(format_count(len(merged), "smaller part"), sum(share.bytes for share in merged))
    return [*(share for share in used if share in largest), rest, *free]


def _style(share: MemoryShare) -> str:
    if share.category is not None:
        return CATEGORY_COLORS[share.category]
    return "bright_black" if share.is_free else "bright_white"


def _percent(size: int, total: int) -> str:
    percent = 100 * size / total
    return "<1%" if 0 < percent < 1 else f"{percent:.0f}%"


def _bar(offset: int, share: MemoryShare, total: int, width: int) -> str:
    """Return blanks up to `offset`, then a bar for the share. A bar that is shorter than half a column becomes a thin
    line.
    """
    start = min(int(offset / total * width), width - 1)
    end = min(max(round((offset + share.bytes) / total * width), start + 1), width)
    if share.bytes < total / width / 2:
        return " " * start + "▏"
    return " " * start + ("░" if share.is_free else "█") * (end - start)


class StepSparkline:
    """A chart of the peak memory in every step, for example `▁▂▃▅▇ 91 steps, 120.0 MiB to 400.0 MiB, 0.35 s each`.

    In a long run, older steps are not kept individually, so the number of steps is computed from the step numbers.
    """

    def __init__(self, steps: Sequence[Step], *, label: str = "  ", words: Words = str) -> None:
        self._steps = steps
        self._label = label
        self._words = words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        peaks = [step.peak_allocated for step in self._steps]
        low, high = min(peaks), max(peaks)
        seconds = median(step.seconds for step in self._steps)
        duration = f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s"
        size = format_size(low) if low == high else f"{format_size(low)} to {format_size(high)}"
        number = max(self._steps[-1].step - self._steps[0].step + 1, len(peaks))
        legend = "  " + self._words(f"{format_count(number, 'step')}, {size}, {duration} each")
        columns = _columns(
            self._steps,
            max(4, min(MAX_COLUMNS, options.max_width - cell_len(legend) - cell_len(self._label))),
        )
        text = Text(self._label)
        text.append("".join(_level(value, low, high) for value in columns), style="cyan")
        text.append(legend)
        yield text


def downsample_max(values: Sequence[int], width: int) -> list[int]:
    """Return at most `width` values. Each value is the maximum of an interval of `values`."""
    if len(values) <= width:
        return list(values)
    edges = [len(values) * column // width for column in range(width + 1)]
    return [max(values[start:end]) for start, end in pairwise(edges)]


def _columns(steps: Sequence[Step], width: int) -> list[int]:
    first, number = steps[0].step, steps[-1].step - steps[0].step + 1
    if number <= len(steps):  # no step is missing
        return downsample_max([step.peak_allocated for step in steps], width)
    width = min(width, number)
    columns = [0] * width
    for step in steps:
        column = (step.step - first) * width // number
        columns[column] = max(columns[column], step.peak_allocated)
    return [column or columns[max(position - 1, 0)] for position, column in enumerate(columns)]


def _level(value: int, low: int, high: int) -> str:
    if high <= low:
        return _LEVELS[3]
    return _LEVELS[round((value - low) / (high - low) * (len(_LEVELS) - 1))]
