"""The report of a run on one screen: a summary, the memory by category, the three largest lines, the first suggested
change, and the next commands. `--verbose` prints the complete report (`run_report`) instead.

If the report does not fit the screen, the smallest categories share a row, and less important facts are omitted.

After an out-of-memory error, the report is translated into the user's language. Other reports, and the reports of
`legroom launch`, are in English.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from legroom.diagnose.report.device_memory import MemorySnapshot
from legroom.diagnose.report.run_report import RunReport
from legroom.log import one_line
from legroom.show.common.formatting import clean, format_location, format_saving
from legroom.show.common.language import Words, translate
from legroom.show.common.memory_charts import MemoryBar, StepSparkline, rows_of_largest
from legroom.show.common.one_screen import MAX_LINES, Commands, Cropped, FirstThatFits, count_lines, fits_line
from legroom.show.common.sections import largest_lines
from legroom.show.report.run_report import (
    format_caller,
    format_caught,
    format_device,
    format_place,
    format_rate,
    format_spill,
    format_summary,
    format_verdict,
    merge_holders,
)
from legroom.units import format_size

MAX_COMMAND_LINES = 3


class _Level(NamedTuple):
    rows: int
    advice: int
    """The maximum number of lines of the first suggested change."""
    reason: bool = True
    extras: int = 0
    """The maximum number of less important facts to show. The facts, in this order, are the peaks of other devices, the
    variables that retain memory, and the peak of each step.
    """
    gap: str = "\n"
    lines: int = 3
    """The number of lines of code in the table "Memory by line"."""


_LEVELS = (
    _Level(rows=8, advice=8, extras=3),
    _Level(rows=6, advice=6, extras=3),
    _Level(rows=6, advice=6, extras=2),
    _Level(rows=5, advice=6, extras=2),
    _Level(rows=5, advice=5, extras=1),
    _Level(rows=5, advice=5),
    _Level(rows=4, advice=5),
    _Level(rows=4, advice=7, lines=2),
    _Level(rows=4, advice=7, lines=1),
    _Level(rows=3, advice=8, gap="", lines=2),
    _Level(rows=5, advice=6, reason=False),
    _Level(rows=4, advice=6, reason=False),
    _Level(rows=3, advice=6, reason=False),
    _Level(rows=5, advice=6, reason=False, gap=""),
    _Level(rows=4, advice=8, reason=False, gap=""),
    _Level(rows=3, advice=8, reason=False, gap=""),
)
_CROPPED = (
    _Level(rows=4, advice=3, reason=False),
    _Level(rows=4, advice=3, reason=False, gap=""),
    _Level(rows=3, advice=2, reason=False, gap=""),
)


def render_short_report(report: RunReport) -> RenderableType:
    return Group(ShortReport(report), ShortFooter(report))


def render_short_summary(report: RunReport) -> RenderableType:
    return Cropped(Text(format_verdict(report), style="bold"), 4)


class ShortReport:
    """The short report without the next commands. `ShortFooter` shows the next commands. The report and the footer
    together have at most 23 lines."""

    def __init__(self, report: RunReport, *, warning: str = "", below: RenderableType | None = None) -> None:
        """`warning` is shown in the footer. `below` is text that is shown below the report on the same screen, so the
        report leaves space for it."""
        self._report = report
        self._footer = ShortFooter(report, warning=warning)
        self._below = below

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        used = count_lines(self._footer, console, options)
        used += count_lines(self._below, console, options) if self._below is not None else 0
        complete = (
            level
            for level in _LEVELS
            if count_lines(_padded(_suggestion(self._report, level)), console, options) <= level.advice
        )
        levels = _with_main_categories(self._report, (*complete, *_CROPPED))
        versions = (Group(*_parts(self._report, level)) for level in levels)
        yield FirstThatFits(versions, max(MAX_LINES - used, 6))


def _with_main_categories(report: RunReport, levels: Iterable[_Level]) -> Iterator[_Level]:
    """Before each level that merges categories that use much memory, yield a level with a row more for categories and a
    line of code less. After an out-of-memory error, lines of code are more important.
    """
    snapshot = _snapshot(report)
    max_merged, min_lines = (0.25, 1) if report.failed_with_oom else (0.1, 0)
    wanted = 0 if snapshot is None else rows_of_largest(snapshot, max_merged)
    for level in levels:
        if level.rows < wanted and level.lines > min_lines:
            yield level._replace(rows=level.rows + 1, lines=level.lines - 1)
        yield level


def _snapshot(report: RunReport) -> MemorySnapshot | None:
    return report.oom.snapshot if report.failed_with_oom and report.oom is not None else report.peak


class ShortFooter:
    def __init__(self, report: RunReport, *, warning: str = "") -> None:
        self._report = report
        self._warning = warning

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report, width, words = self._report, options.max_width, _words(self._report)
        yield Text("")
        remarks = [self._warning, *(f"{each[:1].upper()}{each[1:]}." for each in report.remarks)]
        shown = Text("\n".join(clean(words(each)) for each in remarks if each), style="yellow")
        if shown:
            yield Cropped(shown, 2)
        again = [(command, words(comment)) for command, comment in report.commands_to_try[:2]]
        show = report.report_commands("--verbose", comment="the complete report")
        show = [(command, words(comment)) for command, comment in show]
        when = ""
        if again and not fits_line(*again[0], width):
            when = f", {again[0][1]}"
            again = [(again[0][0], ""), *again[1:]]
        if again:
            show = show[:1]
        choices = ([*again, *show], [*again[:1], *show])
        # The first command is part of the suggestion, so it is shown even if it is long.
        commands = next(
            (each for each in choices if _is_short(Commands(each), console, options)), again[:1] or show
        )
        recorded = f"{words(f'Recorded in {one_line(report.capture)}.')} " if report.capture else ""
        following = words(f"Next{when if commands and commands[0] in again else ''}:") if commands else ""
        if following and cell_len(recorded) + cell_len(following) > width:
            recorded = ""  # the commands contain the path
        yield Cropped(Text(f"{recorded}{following}".rstrip()), 2)
        yield Commands(commands)


def _words(report: RunReport) -> Words:
    """Return the function that translates the text of a report. A report of `legroom launch` is not translated,
    because the text around it is in English."""
    return translate if report.failed_with_oom and not report.command.is_launch else str


def _is_short(commands: Commands, console: Console, options: ConsoleOptions) -> bool:
    return count_lines(commands, console, options) <= MAX_COMMAND_LINES


def _parts(report: RunReport, level: _Level) -> Iterator[RenderableType]:
    oom = report.oom if report.failed_with_oom else None
    words = _words(report)
    yield Cropped(Text(words(format_summary(report)), style="bold red" if oom else "bold"), 4)
    if report.oom is not None and oom is None:
        yield Cropped(Text(format_caught(report, report.oom), style="yellow"), 2)
    if report.spilled is not None:
        yield Cropped(Text(words(format_spill(report.spilled, report.seconds))), 4)
    snapshot = _snapshot(report)
    if snapshot is None:
        if report.ending.exit_code == 0:
            yield Text('Check that the script moves the model and the data to the GPU: .to("cuda").')
    else:
        title = "Memory by category" if oom is not None else "Memory by category at the peak"
        yield _heading(words(title), words(format_device(report.device, snapshot.capacity)), level)
        yield MemoryBar(snapshot, rows=level.rows, words=words)
        if snapshot.top:
            more = len(snapshot.top) - level.lines
            remark = words(f"the largest {level.lines} of {len(snapshot.top)}") if more > 0 else ""
            yield _heading(words("Memory by line"), remark, level)
            yield largest_lines(snapshot.top, report.sources, level.lines, words=words)
        yield from _extras(report, level)
    yield from _first_suggestion(report, level)


def _extras(report: RunReport, level: _Level) -> Iterator[RenderableType]:
    words = _words(report)
    facts: list[RenderableType] = []
    others = [device for device in report.devices if device is not report.device and device.peak_reserved]
    if others:
        peaks = ", ".join(
            words(f"{each.title} {format_size(each.peak_allocated)} of {format_size(each.capacity)}")
            for each in others
        )
        facts.append(_line(words("Peaks of other devices"), peaks))
    if report.failed_with_oom and report.oom is not None and report.oom.holders:
        holders = merge_holders(report.oom.holders)[:3]
        retained = ", ".join(f"{holder.path} {format_size(holder.bytes)}" for holder in holders)
        facts.append(_line(words("Retained by"), retained))
    if len(report.history) >= 2:
        facts.append(StepSparkline(report.history, label=f"{words('Peak per step')}  ", words=words))
    if facts and level.extras:
        yield Text("")
        yield from facts[: level.extras]


def _first_suggestion(report: RunReport, level: _Level) -> Iterator[RenderableType]:
    if report.failed_with_oom and report.oom is not None:
        if report.oom.advice:
            words = _words(report)
            finding, number = report.oom.advice[0], len(report.oom.advice)
            of = f" {words(f'(1 of {number})')}" if number > 1 else ""
            saving = words(format_saving(finding))
            saves = f", {saving}" if saving else ""
            where = f", {format_location(finding.file, finding.line)}" if finding.file else ""
            yield _heading(words("Suggested change"), f"{finding.code}{of}{saves}{where}", level)
            yield Cropped(_padded(_suggestion(report, level)), level.advice)
    elif report.leaks:
        leak, number = report.leaks[0], len(report.leaks)
        holder = clean(leak.holder) if leak.holder and leak.name else ""
        place = (
            format_caller(leak) if holder else format_place(leak)
        )  # the holder starts with the storing line
        place = f", {place}" if place else ""
        of = f" (1 of {number})" if number > 1 else ""
        yield _heading("Memory leak", f"{leak.code}{of}, {format_rate(leak)}{place}", level)
        if holder:
            yield Text(f"  {holder}", no_wrap=True, overflow="ellipsis")
        yield Cropped(_padded(_suggestion(report, level)), level.advice)


def _suggestion(report: RunReport, level: _Level) -> str:
    if report.failed_with_oom and report.oom is not None:
        finding = next(iter(report.oom.advice), None)
        if finding is None:
            return ""
        return _words(report)(f"{finding.message} {finding.fix}" if level.reason else finding.fix)
    return report.leaks[0].advice if report.leaks else ""


def _heading(title: str, remark: str, level: _Level) -> RenderableType:
    heading = Text(f"{level.gap}{title}", style="bold")
    if remark:
        heading.append(f"  {clean(remark)}", style="not bold dim")
    return Cropped(heading, len(level.gap) + 2)


def _padded(text: str) -> RenderableType:
    return Padding(Text(clean(text)), (0, 0, 0, 2))


def _line(title: str, text: str) -> RenderableType:
    return Text(f"{title}  {clean(text)}", no_wrap=True, overflow="ellipsis")
