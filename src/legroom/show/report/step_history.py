"""The steps of a run on one line: how high memory rose in each."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from legroom.memory.events import Step
from legroom.show.common.formatting import format_count
from legroom.units import format_size

_LEVELS = "▁▂▃▄▅▆▇█"


class StepSparkline:
    """`▁▂▃▅▇  91 steps, 120.0 MiB to 400.0 MiB, 0.35 s each`: the peak of every step, from the first to the last."""

    MOST_COLUMNS = 40

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        peaks = [step.peak_allocated for step in self._steps]
        low, high = min(peaks), max(peaks)
        pace = median(step.seconds for step in self._steps)
        rate = f"{pace * 1000:.0f} ms" if pace < 0.1 else f"{pace:.2f} s"
        between = format_size(low) if low == high else f"{format_size(low)} to {format_size(high)}"
        words = f"  {format_count(len(peaks), 'step')}, {between}, {rate} each"
        columns = downsample_max(peaks, max(4, min(self.MOST_COLUMNS, options.max_width - len(words) - 2)))
        text = Text("  ")
        text.append("".join(_level(value, low, high) for value in columns), style="cyan")
        text.append(words)
        yield text


def downsample_max(values: Sequence[int], width: int) -> list[int]:
    """At most `width` values, each the highest of its stretch."""
    if len(values) <= width:
        return list(values)
    edges = [len(values) * column // width for column in range(width + 1)]
    return [max(values[start:end]) for start, end in pairwise(edges)]


def _level(value: int, low: int, high: int) -> str:
    if high <= low:
        return _LEVELS[3]
    return _LEVELS[round((value - low) / (high - low) * (len(_LEVELS) - 1))]
