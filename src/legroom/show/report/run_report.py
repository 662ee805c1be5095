"""The complete report of a run as text: a summary first, then the memory in use, then the suggested changes.

This module only formats the values of a `RunReport`. `render_oom` renders a run that failed with an out-of-memory
error, and its output is printed above the traceback. `render_run` renders any other run.
"""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.device_memory import MemorySnapshot
from legroom.diagnose.report.device_summary import DeviceSummary
from legroom.diagnose.report.growing_lines import Leak
from legroom.diagnose.report.run_report import OomReport, RunReport
from legroom.findings import Finding
from legroom.log import one_line
from legroom.memory.annotations import ExitReason, SpillTotals
from legroom.memory.events import Holder
from legroom.show.common.code_frame import code_frame
from legroom.show.common.formatting import (
    BETWEEN_PASSES,
    clean,
    format_count,
    format_duration,
    format_frame,
    format_location,
    format_phase,
    format_saving,
)
from legroom.show.common.memory_charts import MemoryBar, StepSparkline
from legroom.show.common.sections import section, top_lines
from legroom.show.common.terminal import verbatim
from legroom.units import format_size

TOP_HOLDERS = 6
TOP_REMARKS = 3


def render_report(report: RunReport) -> RenderableType:
    """Return the output of `legroom report --verbose`."""
    if report.failed_with_oom:
        parts = [render_oom(report)]
        if report.ending.traceback:
            parts.append(verbatim(f"\n{report.ending.traceback.rstrip()}"))
        return Group(*parts, render_footer(report))
    return Group(render_run(report), render_footer(report))


def render_run(report: RunReport) -> RenderableType:
    return Group(*_run_parts(report))


def render_oom(report: RunReport) -> RenderableType:
    assert report.oom is not None
    return Group(*_oom_parts(report, report.oom))


def format_verdict(report: RunReport) -> str:
    if report.oom is not None and not report.failed_with_oom:
        return f"{format_summary(report)} {format_caught(report, report.oom)}"
    return format_summary(report)


def format_summary(report: RunReport) -> str:
    if report.oom is not None and report.failed_with_oom:
        return _oom_summary(report, report.oom)
    return _run_summary(report)


def render_footer(report: RunReport, *, warning: str = "") -> RenderableType:
    return Group(*_footer_parts(report, warning))


def _run_parts(report: RunReport) -> Iterator[RenderableType]:
    yield Text(_run_summary(report), style="bold")
    if report.oom is not None:
        yield Text(format_caught(report, report.oom), style="yellow")
    if report.spilled is not None:
        yield Text(format_spill(report.spilled, report.seconds))
    if report.peak is None:
        if report.ending.exit_code == 0:  # a script that failed may not have reached that point
            yield Text(
                'Check that the script moves the model and the data to the GPU, for example with .to("cuda").'
            )
        yield from _leaks(report)  # a graph can also grow in host memory
        return
    yield from section("Memory by category at the peak", format_device(report.device))
    yield MemoryBar(report.peak)
    yield from top_lines(report.peak.top, report.sources)
    yield from _history(report)
    yield from _leaks(report)
    yield from _other_devices(report)


def _oom_parts(report: RunReport, oom: OomReport) -> Iterator[RenderableType]:
    yield Text(_oom_summary(report, oom), style="bold red")
    if report.spilled is not None:
        yield Text(format_spill(report.spilled, report.seconds))
    frame = oom.event.frame
    if frame is not None:
        code = code_frame(report.sources, frame.file, frame.line)
        if code is not None:
            operation = [oom.event.op, f"in module {oom.event.module}" if oom.event.module else ""]
            yield from section("Failed operation", clean(" ".join(filter(None, operation))))
            yield code
    yield from section("Memory by category", format_device(report.device, oom.snapshot.capacity))
    yield MemoryBar(oom.snapshot)
    yield from _fragments(oom)
    yield from top_lines(oom.snapshot.top, report.sources)
    if oom.holders:
        yield from section("Memory by variable", "memory that each variable retains; entries may overlap")
        yield _holder_table(merge_holders(oom.holders)[:TOP_HOLDERS])
    yield from _history(report)
    if oom.advice:
        yield from section("Suggested changes", "most useful first")
        for number, finding in enumerate(oom.advice, 1):
            yield _finding(number, finding)
    yield from _other_devices(report)


def _footer_parts(report: RunReport, warning: str) -> Iterator[RenderableType]:
    yield Text("")
    if warning:
        yield Text(clean(warning), style="yellow")
    for remark in report.remarks[:TOP_REMARKS]:
        yield Text(f"{clean(remark[:1].upper() + remark[1:])}.", style="yellow")
    if report.dropped:
        yield Text(
            f"The capture omits {format_count(report.dropped, 'event')} to limit its size.", style="dim"
        )
    if report.capture:
        yield Text(f"Recorded in {one_line(report.capture)}. Next:")
    elif report.next_commands:
        yield Text("Next:")
    width = max((len(command) for command, _ in report.next_commands), default=0)
    for command, comment in report.next_commands:
        line = verbatim(f"  {command:<{width}}", style="bold cyan")
        line.append(f"   # {comment}", style="not bold dim")
        yield line


# --- summaries ---------------------------------------------------------------------------------------------------


def _run_summary(report: RunReport) -> str:
    duration = format_duration(report.seconds) if report.seconds else ""
    after = f" {'in' if _format_exit(report) == 'Finished' else 'after'} {duration}" if duration else ""
    if report.steps:
        after = f" after {format_count(report.steps, 'step')}" + (f" ({duration})" if duration else "")
    ended = _ended(report, after)
    if report.peak is None or report.device is None:
        on_host = report.device is not None and report.device.kind == "host"
        return f"{ended} {'No tensor memory' if on_host else 'No GPU memory'} was used."
    peak = report.peak
    top = next((each for each in peak.top if each.file), None)
    most = ""
    if top is not None:
        part = "mostly" if top.bytes > peak.allocated / 2 else "the largest part"
        most = f", {part} from {format_location(top.file, top.line)}"
    return (
        f"{ended} Peak memory: {format_size(peak.allocated)} allocated{_reserved(report)} of "
        f"{format_size(peak.capacity)} {_moment_of_peak(report, peak)}{most}.{_growth_summary(report)}"
    )


def _moment(snapshot: MemorySnapshot) -> str:
    phase = BETWEEN_PASSES if snapshot.between_passes else format_phase(snapshot.phase)
    return f"at step {snapshot.step} {phase}"


def _moment_of_peak(report: RunReport, peak: MemorySnapshot) -> str:
    if report.evaluation is None:
        return _moment(peak)
    where = format_location(report.evaluation.file, report.evaluation.line)
    after = f" after {format_count(peak.step, 'step')}" if peak.step else ""
    return f"in the evaluation{after}, which runs with gradients enabled (LG201, {where})"


def _moment_of_failure(oom: OomReport) -> str:
    if not oom.in_evaluation:
        return _moment(oom.snapshot)
    steps = oom.event.step
    return f"in the evaluation after {format_count(steps, 'step')}" if steps else "in the evaluation"


def _reserved(report: RunReport) -> str:
    reserved = report.device.peak_reserved if report.device is not None else 0
    return f" ({format_size(reserved)} reserved)" if reserved else ""


def format_incomplete(report: RunReport) -> str:
    """Return how an incomplete run ended, for example `Failed with ValueError after 3 steps`. Return "" if the run
    finished."""
    if report.ending.reason is ExitReason.FINISHED or report.ending.exit_code == 0:
        return ""
    after = f" after {format_count(report.steps, 'step')}"
    if report.failed_with_oom:
        return f"Ran out of memory{after}"
    how = _format_exit(report)
    if how is not None:
        return how + after
    return _ended(report, after).partition(". ")[0].removesuffix(".") if report.truncated else ""


def _growth_summary(report: RunReport) -> str:
    on_device = sum(leak.bytes_per_step for leak in report.leaks if not leak.on_host)
    if on_device:
        return f" Memory grows by {format_size(on_device)} per step."
    if not report.leaks:
        return ""
    on_host = sum(leak.bytes_per_step for leak in report.leaks)
    return (
        f" Host memory grows by {format_size(on_host)} per step."
        if on_host
        else " An autograd graph grows with every step."
    )


def _ended(report: RunReport, after: str) -> str:
    """Return how the run ended, or that the capture does not contain its end. `after` is empty or starts with a
    space.
    """
    how, on_rank = _format_exit(report), _on_rank(report.rank)
    if how is not None:
        return f"{how}{on_rank}{after}."
    if report.damaged:
        return f"The capture is damaged{on_rank}{after}. The report covers only the part before the damage."
    if not report.truncated:
        return f"Ended{on_rank}{after}."
    if report.is_running:
        return f"The run is still in progress{on_rank}{after}."
    return f"The capture ends early{on_rank}{',' if after else ''}{after}: {format_early_end(report)}."


def format_early_end(report: RunReport) -> str:
    """Return the possible reasons why the capture of a run that does not continue has no end."""
    ended = "was killed" if report.is_running is False else "was killed or is still running"
    return f"the file was cut off, or the process {ended}"


def _format_exit(report: RunReport) -> str | None:
    """Return how the run ended, or None if the capture does not contain its end."""
    ending = report.ending
    match ending.reason:
        case ExitReason.FINISHED:
            return "Finished"
        case ExitReason.EXITED:
            return "Finished" if ending.exit_code == 0 else f"Exited with code {ending.exit_code}"
        case ExitReason.OS_EXIT:
            return f"Exited via os._exit({ending.exit_code})"
        case ExitReason.INTERRUPTED:
            return "Interrupted" + clean(ending.error).removeprefix("KeyboardInterrupt")
        case ExitReason.RAISED:
            return f"Failed with {clean(ending.error).partition(':')[0]}"
    return None


def _on_rank(rank: int | None) -> str:
    return f" on rank {rank}" if rank is not None else ""


def _oom_summary(report: RunReport, oom: OomReport) -> str:
    event = oom.event
    on_device = _on_rank(report.rank)
    if not on_device and report.device and len(report.devices) > 1:
        on_device = f" on {report.device.title}"
    where = f", at {format_frame(event.frame)}" if event.frame else ""
    return (
        f"Out of memory{on_device} {_moment_of_failure(oom)}{where}. "
        f"Tried to allocate {_block(oom)}; {format_size(oom.free)} of "
        f"{format_size(oom.snapshot.capacity)} free."
    )


def _block(oom: OomReport) -> str:
    """Return the size in PyTorch's out-of-memory message, and the requested size if it differs. PyTorch's message shows
    the size of a whole segment, which can be larger than the requested size.
    """
    block, requested = format_size(oom.block), format_size(oom.event.requested)
    return block if block == requested else f"{block} for a request of {requested}"


def format_caught(report: RunReport, oom: OomReport) -> str:
    last = ", the last" if report.oom_count > 1 else ""
    return (
        f"The script caught {format_count(report.oom_count, 'out-of-memory error')}{last} at step {oom.event.step}, at "
        f"{format_frame(oom.event.frame)} (tried to allocate {_block(oom)})."
    )


def format_spill(spilled: SpillTotals, seconds: float) -> str:
    left = ""
    if spilled.skipped_bytes:
        left = f"{format_size(spilled.skipped_bytes)} stayed on the GPU because host memory ran out"
    if not spilled.moved_bytes:
        return f"Nothing was spilled: {left or 'no saved activation on the GPU was 1 MiB or larger'}."
    budget = f" of {format_size(spilled.budget_bytes)} allowed" if spilled.budget_bytes else ""
    share = f" ({spilled.seconds / seconds:.0%} of the run)" if seconds else ""
    return (
        f"Spilled {format_size(spilled.moved_bytes)} of saved activations to host memory (at most "
        f"{format_size(spilled.peak_host_bytes)}{budget} at a time), which took {format_duration(spilled.seconds)}{share}."
        + (f" {left}." if left else "")
    )


def format_device(device: DeviceSummary | None, usable: int = 0) -> str:
    """Format the name and the capacity of a device. A memory fraction may limit a process to `usable` bytes."""
    if device is None:
        return ""
    limited = f"{format_size(usable)} of " if 0 < usable < device.capacity else ""
    return f"{device.title}, {limited}{format_size(device.capacity)}"


# --- sections ----------------------------------------------------------------------------------------------------


def merge_holders(holders: tuple[Holder, ...]) -> list[Holder]:
    """Merge variables that probably retain the same memory into one entry such as `x, images (Tensor)`. Variables with
    the same type and the same number of retained bytes are merged.
    """
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
    event = oom.event
    unused = event.cached + event.fragmented
    if unused and event.largest_free_block:
        yield Text(
            f"  PyTorch's cache contains {format_size(unused)}, but the largest free block is "
            f"{format_size(event.largest_free_block)}.",
            style="dim",
        )


def _finding(number: int, finding: Finding) -> RenderableType:
    head = Text(f"  {number}. ")
    head.append(finding.code, style="bold cyan")
    if saving := format_saving(finding):
        head.append(f"  {saving}", style="green")
    if finding.file:
        head.append(f"  {format_location(finding.file, finding.line)}", style="dim")
    return Group(
        head,
        Padding(Text(clean(finding.message)), (0, 0, 0, 5)),
        Padding(Text(clean(finding.fix)), (0, 0, 0, 5)),
    )


def _history(report: RunReport) -> Iterator[RenderableType]:
    if len(report.history) >= 2:
        yield from section("Peak memory per step")
        yield StepSparkline(report.history)


def _leaks(report: RunReport) -> Iterator[RenderableType]:
    if not report.leaks:
        return
    yield from section("Memory leaks")
    for leak in report.leaks:
        yield render_leak(leak)


def render_leak(leak: Leak) -> RenderableType:
    head = Text(f"{format_rate(leak)} over {format_count(leak.steps, 'step')}, {format_place(leak)}")
    head.highlight_words([format_location(leak.file, leak.line)], "bold")
    title = Table.grid(padding=(0, 2, 0, 0))
    title.add_column(no_wrap=True)
    title.add_column(ratio=1)
    title.add_row(Text(leak.code, style="bold cyan"), head)
    parts: list[RenderableType] = [Padding(title, (0, 0, 0, 2))]
    if leak.holder and leak.name:
        parts.append(Padding(Text(clean(leak.holder)), (0, 0, 0, 5)))
    parts.append(Padding(Text(clean(leak.advice)), (0, 0, 0, 5)))
    return Group(*parts)


def format_place(leak: Leak) -> str:
    more = f" and {format_count(leak.lines - 1, 'more line')}" if leak.lines > 1 else ""
    stored = f"{'stored' if leak.name else 'allocated'} at"
    if leak.stored_at is None or leak.called_from is None:
        return f"{stored} {format_location(leak.file, leak.line)}{more}"
    stored += f" {format_location(leak.stored_at.file, leak.stored_at.line)}"
    return f"{format_caller(leak)}, {stored}" if leak.is_at_call else f"{stored}, {format_caller(leak)}"


def format_caller(leak: Leak) -> str:
    """Return the line that calls the storing function, such as `called from train.py:31`, or "" if it is unknown."""
    if leak.called_from is None:
        return ""
    return f"{'passed at' if leak.is_at_call else 'called from'} {format_location(leak.called_from.file, leak.called_from.line)}"


def format_rate(leak: Leak) -> str:
    if leak.bytes_per_step:
        return f"{format_size(leak.bytes_per_step)} per step{' in host memory' if leak.on_host else ''}"
    return f"{format_count(leak.nodes_per_step or 0, 'graph node')} per step in host memory"


def _other_devices(report: RunReport) -> Iterator[RenderableType]:
    others = [device for device in report.devices if device is not report.device and device.peak_reserved]
    if others:
        yield from section("Other devices")
    for device in others:
        yield Text(
            f"  {device.title}: peak {format_size(device.peak_allocated)} allocated, "
            f"{format_size(device.peak_reserved)} reserved of {format_size(device.capacity)}"
        )
