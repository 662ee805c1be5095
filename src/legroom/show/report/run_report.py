"""A run's report as text: the sentence first, then the picture, then what to do.

Computes nothing: every figure is in the `RunReport`. A run that ended well gets `run_words`; one that ran out of memory
gets `oom_words`, which stand above its traceback; both end with `closing_words`, whose last line is the next command.
"""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.growing_lines import Leak
from legroom.diagnose.report.run_report import DeviceSummary, OomReport, RunReport
from legroom.findings import Finding
from legroom.memory.annotations import ExitReason, SpillTotals
from legroom.memory.events import Holder
from legroom.show.common.formatting import (
    clean,
    format_count,
    format_duration,
    format_frame,
    format_location,
    format_phase,
)
from legroom.show.common.sections import section, top_lines
from legroom.show.common.terminal import verbatim
from legroom.show.report.code_frame import code_frame
from legroom.show.report.memory_bar import MemoryBar
from legroom.show.report.step_history import StepSparkline
from legroom.units import format_size

TOP_HOLDERS = 6
TOP_FINDINGS = 4
TOP_REMARKS = 3


def render_report(report: RunReport) -> RenderableType:
    """All of a report, as `legroom report` shows it."""
    if report.died_of_memory:
        parts = [render_oom(report)]
        if report.ending.traceback:
            parts.append(verbatim(f"\n{report.ending.traceback.rstrip()}"))
        return Group(*parts, render_footer(report))
    return Group(render_run(report), render_footer(report))


def render_run(report: RunReport) -> RenderableType:
    """A run that did not die of memory."""
    return Group(*_run_parts(report))


def render_oom(report: RunReport) -> RenderableType:
    """A run that died of memory: what was asked for, who held the rest, what to change."""
    assert report.oom is not None
    return Group(*_oom_parts(report, report.oom))


def render_footer(report: RunReport, *, complaint: str = "") -> RenderableType:
    """Where the record is, and the exact next command."""
    return Group(*_closing_parts(report, complaint))


def _run_parts(report: RunReport) -> Iterator[RenderableType]:
    yield Text(_sentence(report), style="bold")
    if report.oom is not None:
        yield Text(_caught_sentence(report, report.oom), style="yellow")
    if report.spilled is not None:
        yield Text(_spill_sentence(report.spilled, report.seconds))
    if report.peak is None:
        if report.ending.exit_code == 0:  # else it did not come that far
            yield Text(
                'Was anything moved to the device? Look for device="cuda" or .to(device) in the script.'
            )
        yield from _leaks(report)  # a graph can grow on the host as well
        return
    yield from section("Who held the memory at the peak", _device_words(report.device))
    yield MemoryBar(report.peak)
    yield from top_lines(report.peak.top, report.sources)
    yield from _history(report)
    yield from _leaks(report)
    yield from _other_devices(report)


def _oom_parts(report: RunReport, oom: OomReport) -> Iterator[RenderableType]:
    yield Text(_oom_sentence(oom, report.rank), style="bold red")
    if report.spilled is not None:
        yield Text(_spill_sentence(report.spilled, report.seconds))
    frame = oom.event.frame
    if frame is not None:
        code = code_frame(report.sources, frame.file, frame.line)
        if code is not None:
            inside = [oom.event.op, f"module {oom.event.module}" if oom.event.module else ""]
            yield from section("What failed", clean(", ".join(filter(None, inside))))
            yield code
    yield from section("Who held the memory", _device_words(report.device))
    yield MemoryBar(oom.picture)
    yield from _fragments(oom)
    yield from top_lines(oom.picture.top, report.sources)
    if oom.holders:
        yield from section("By variable", "what each reaches; two may reach the same")
        yield _holder_table(_told_together(oom.holders)[:TOP_HOLDERS])
    yield from _history(report)
    if oom.advice:
        yield from section("What to change", "most useful first")
        for number, finding in enumerate(oom.advice[:TOP_FINDINGS], 1):
            yield _finding(number, finding)
    yield from _other_devices(report)


def _closing_parts(report: RunReport, complaint: str) -> Iterator[RenderableType]:
    yield Text("")
    if complaint:
        yield Text(f"{complaint[0].upper()}{complaint[1:]}.", style="yellow")
    for remark in report.remarks[:TOP_REMARKS]:
        yield Text(f"{clean(remark[:1].upper() + remark[1:])}.", style="yellow")
    if report.dropped:
        yield Text(f"To keep the capture small, {report.dropped:,} events were left out of it.", style="dim")
    if report.capture:
        yield Text(f"Recorded in {report.capture}. Next:")
    elif report.next_commands:
        yield Text("Next:")
    widest = max((len(command) for command, _ in report.next_commands), default=0)
    for command, why in report.next_commands:
        line = verbatim(f"  {command:<{widest}}", style="bold cyan")
        line.append(f"   # {why}", style="not bold dim")
        yield line


# --- sentences ---------------------------------------------------------------------------------------------------


def _sentence(report: RunReport) -> str:
    how = f"{_ending_words(report)}{_on_rank(report.rank)}"
    steps = f" after {format_count(report.steps, 'step')}" if report.steps else ""
    duration = f" in {format_duration(report.seconds)}" if report.seconds else ""
    if report.peak is None or report.device is None:
        return f"{how}{steps}{duration}: no tensor ever lived on the device."
    peak = report.peak
    top = next((row for row in peak.top if row.file), None)
    part = "most of it" if top and top.bytes > peak.allocated / 2 else "the largest part"
    most = f", {part} from {format_location(top.file, top.line)}" if top else ""
    growth = sum(leak.bytes_per_step for leak in report.leaks if not leak.on_host)
    grows = f"; it grows by {format_size(growth)} with every step" if growth else ""
    if report.leaks and not growth:
        on_host = sum(leak.bytes_per_step for leak in report.leaks)
        what = f"host memory grows by {format_size(on_host)}" if on_host else "an autograd graph grows"
        grows = f"; {what} with every step"
    return (
        f"{how}{steps}{duration}: memory peaked at {format_size(peak.allocated)} of {format_size(peak.capacity)} "
        f"at step {peak.step}, {format_phase(peak.phase)}{most}{grows}."
    )


def _ending_words(report: RunReport) -> str:
    ending = report.ending
    match ending.reason:
        case ExitReason.FINISHED:
            return "Finished"
        case ExitReason.EXITED:
            return "Finished" if ending.exit_code == 0 else f"Exited with code {ending.exit_code}"
        case ExitReason.OS_EXIT:
            return f"Left by os._exit({ending.exit_code})"
        case ExitReason.INTERRUPTED:
            return "Interrupted" + clean(ending.error).removeprefix("KeyboardInterrupt")
        case ExitReason.RAISED:
            return f"Stopped by {clean(ending.error).partition(':')[0]}"
    return "Broken off (killed, or still running)" if report.truncated else "Ended"


def _on_rank(rank: int | None) -> str:
    return f" on rank {rank}" if rank is not None else ""


def _oom_sentence(oom: OomReport, rank: int | None) -> str:
    event = oom.event
    where = f", on {format_frame(event.frame)}" if event.frame else ""
    block = ""
    if oom.free >= event.requested:  # then the figures alone would not say why
        block = f", which takes a block of {format_size(oom.block)},"
    return (
        f"Out of memory{_on_rank(rank)} at step {event.step}, {format_phase(event.phase)}{where}: "
        f"{format_size(event.requested)} were asked for{block} and {format_size(oom.free)} of "
        f"{format_size(event.capacity)} were free."
    )


def _caught_sentence(report: RunReport, oom: OomReport) -> str:
    times = "once" if report.oom_count == 1 else f"{report.oom_count} times"
    return (
        f"Memory ran out {times} and the script went on; last at step {oom.event.step} on "
        f"{format_frame(oom.event.frame)}, for want of {format_size(oom.event.requested)}."
    )


def _spill_sentence(spilled: SpillTotals, seconds: float) -> str:
    left = (
        f"{format_size(spilled.left_bytes)} stayed on the GPU for want of host memory"
        if spilled.left_bytes
        else ""
    )
    if not spilled.moved_bytes:
        return f"Nothing was spilled: {left or 'no saved activation of 1 MiB or more was on a GPU'}."
    budget = f" of {format_size(spilled.budget_bytes)} allowed" if spilled.budget_bytes else ""
    share = f" ({spilled.seconds / seconds:.0%} of the run)" if seconds else ""
    return (
        f"Spilled {format_size(spilled.moved_bytes)} of saved activations to host memory, at most "
        f"{format_size(spilled.peak_host_bytes)}{budget} at a time, at the price of {format_duration(spilled.seconds)}{share}"
        f"{'; ' + left if left else ''}."
    )


def _device_words(device: DeviceSummary | None) -> str:
    return f"{device.title}, {format_size(device.capacity)}" if device else ""


# --- sections ----------------------------------------------------------------------------------------------------


def _told_together(holders: tuple[Holder, ...]) -> list[Holder]:
    """Variables of one kind that reach just as much mostly reach the same (`x, images (Tensor)`): they share a row."""
    names: dict[tuple[str, int, int], list[str]] = {}
    first: dict[tuple[str, int, int], Holder] = {}
    for holder in holders:
        name, _, kind = holder.path.partition(" (")
        names.setdefault((kind, holder.bytes, holder.storages), []).append(name)
        first.setdefault((kind, holder.bytes, holder.storages), holder)
    return [
        holder._replace(path=f"{', '.join(names[key][:3])} ({key[0]}") if len(names[key]) > 1 else holder
        for key, holder in first.items()
    ]


def _holder_table(holders: list[Holder]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True, min_width=11)
    table.add_column(overflow="ellipsis", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True, style="dim")
    for holder in holders:
        where = format_frame(holder.frame) if holder.frame else ""
        table.add_row(format_size(holder.bytes), Text(clean(holder.path)), where)
    return table


def _fragments(oom: OomReport) -> Iterator[RenderableType]:
    """How large the largest of the free pieces is: no request above that can be served from them."""
    event = oom.event
    unused = event.cached + event.fragmented
    if unused and event.largest_free_block:
        yield Text(
            f"  Of the {format_size(unused)} that PyTorch keeps unused, the largest piece is "
            f"{format_size(event.largest_free_block)}.",
            style="dim",
        )


def _finding(number: int, finding: Finding) -> RenderableType:
    head = Text(f"  {number}. ")
    head.append(finding.code, style="bold cyan")
    if finding.saves:
        head.append(f"  frees about {format_size(finding.saves)}", style="green")
    if finding.file:
        head.append(f"  {format_location(finding.file, finding.line)}", style="dim")
    return Group(
        head,
        Padding(Text(clean(finding.message)), (0, 0, 0, 5)),
        Padding(Text(clean(finding.fix)), (0, 0, 0, 5)),
    )


def _history(report: RunReport) -> Iterator[RenderableType]:
    if len(report.history) >= 2:
        yield from section("Peak of each step")
        yield StepSparkline(report.history)


def _leaks(report: RunReport) -> Iterator[RenderableType]:
    if not report.leaks:
        return
    yield from section("Memory grows with every step")
    for leak in report.leaks[:TOP_FINDINGS]:
        yield render_leak(leak)


def render_leak(leak: Leak) -> RenderableType:
    """One leak: how much, where, by whom, what to do."""
    head = Text(f"{_rate(leak)}, {format_count(leak.steps, 'step')} in a row, ")
    head.append("stored on " if leak.name else "made on ")
    head.append(format_location(leak.file, leak.line), style="bold")
    if leak.lines > 1:
        head.append(f" and {format_count(leak.lines - 1, 'line')} more")
    title = Table.grid(padding=(0, 2, 0, 0))
    title.add_column(no_wrap=True)
    title.add_column(ratio=1)
    title.add_row(Text(leak.code, style="bold cyan"), head)
    parts: list[RenderableType] = [Padding(title, (0, 0, 0, 2))]
    if leak.holder and leak.name:
        parts.append(Padding(Text(clean(leak.holder)), (0, 0, 0, 5)))
    parts.append(Padding(Text(clean(leak.advice)), (0, 0, 0, 5)))
    return Group(*parts)


def _rate(leak: Leak) -> str:
    if leak.bytes_per_step:
        return f"{format_size(leak.bytes_per_step)} a step{' on the host' if leak.on_host else ''}"
    return f"{format_count(leak.nodes_per_step or 0, 'graph node')} a step on the host"


def _other_devices(report: RunReport) -> Iterator[RenderableType]:
    others = [device for device in report.devices if device is not report.device and device.peak_reserved]
    if others:
        yield from section("Other devices")
    for device in others:
        yield Text(
            f"  {device.title}: peak {format_size(device.peak_allocated)} allocated, "
            f"{format_size(device.peak_reserved)} reserved of {format_size(device.capacity)}"
        )
