"""The texts and tables of the report page. All text from a capture is escaped."""

from collections.abc import Iterable
from html import escape

from markdown_it import MarkdownIt

from legroom.diagnose.codes import all_pages
from legroom.diagnose.report.device_memory import MemorySnapshot
from legroom.diagnose.report.growing_lines import Leak
from legroom.diagnose.report.run_report import RunReport
from legroom.diagnose.report.source_lines import Sources
from legroom.findings import Finding
from legroom.memory.annotations import ExitReason
from legroom.memory.columns import CATEGORIES
from legroom.memory.events import Step
from legroom.show.common.code_frame import source_line
from legroom.show.common.formatting import (
    clean,
    format_count,
    format_duration,
    format_frame,
    format_location,
    format_saving,
)
from legroom.show.report.run_report import format_early_end
from legroom.units import format_size

MAX_STEPS = 1000
MAX_LINES = 20
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable("image")
for _rule in ("link_open", "link_close"):  # the pages link to files of the documentation
    _MARKDOWN.add_render_rule(_rule, lambda *_: "")


def notes(report: RunReport) -> str:
    remarks = []
    if report.damaged:
        remarks.append("The capture is damaged. The page shows only the data before the damaged part.")
    elif report.truncated and report.ending.reason is ExitReason.UNKNOWN:
        first = f"The page shows the first {format_duration(report.seconds)}."
        again = "create the page again after the run ends."
        if report.is_running:
            remarks.append(f"The run is still in progress. {first} To see the whole run, {again}")
        else:
            remarks.append(f"The capture ends early: {format_early_end(report)}. {first}")
            if report.is_running is None:
                remarks[-1] += f" If the run is still in progress, {again}"
    if report.dropped:
        remarks.append(
            f"The capture omits {format_count(report.dropped, 'event')} to limit its size. The timeline is hatched where "
            "events are missing."
        )
    remarks += [f"{remark[:1].upper()}{remark[1:]}." for remark in report.remarks]
    return "".join(f'<p class="remark">{_text(remark)}</p>' for remark in remarks)


def first_fix(report: RunReport) -> str:
    if report.oom and report.oom.advice and report.failed_with_oom:
        first = report.oom.advice[0]
        code, fix, section = first.code, first.fix, "findings"
    elif report.leaks:
        code, fix, section = report.leaks[0].code, report.leaks[0].advice, "leaks"
    else:
        return ""
    return f'<p class="fix"><a href="#{section}">{_text(code)}</a> {_prose(fix)}</p>'


def contents(*, has_charts: bool, has_map: bool, report: RunReport) -> str:
    findings = len(report.oom.advice) if report.oom else 0
    links = [
        ("timeline-section", "Memory over time", has_charts),
        ("icicle-section", "Modules and lines", has_charts),
        ("map-section", "Allocator map", has_map),
        ("leaks", f"Leaks ({len(report.leaks)})", bool(report.leaks)),
        ("findings", f"Suggested changes ({findings})", bool(findings)),
        ("steps", "Steps", bool(report.history)),
    ]
    shown = "".join(f'<a href="#{name}">{text}</a>' for name, text, exists in links if exists)
    return f'<nav aria-label="Sections">{shown}</nav>' if shown else ""


def facts(report: RunReport) -> str:
    device = report.device
    entries = [
        ("Peak allocated", format_size(device.peak_allocated) if device else "–"),
        ("Peak reserved", format_size(device.peak_reserved) if device else "–"),
        ("Device", f"{device.title}, {format_size(device.capacity)}" if device else "–"),
        ("Steps", f"{report.steps:,}"),
        ("Time", format_duration(report.seconds)),
    ]
    others = [other for other in report.devices if other is not device and other.peak_reserved]
    entries += [
        (other.title, f"{format_size(other.peak_reserved)} of {format_size(other.capacity)} reserved")
        for other in others
    ]
    return "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in entries)


def memory_bar(snapshot: MemorySnapshot, report: RunReport) -> str:
    """Return a bar with the memory by category, and a table with the same values. The values add up to the device's
    total.
    """
    shares = [
        (share, f"c{CATEGORIES.index(share.category)}" if share.category else _share_class(share.label))
        for share in snapshot.shares
    ]
    bar = "".join(
        f'<i class="{name}" style="flex-grow:{share.bytes}" title="{_text(share.label)}: {format_size(share.bytes)}"></i>'
        for share, name in shares
    )
    rows = "".join(
        f'<tr><td><i class="swatch {name}"></i>{_text(share.label)}</td><td class=number>{format_size(share.bytes)}</td>'
        f"<td class=number>{_percent(share.bytes, snapshot.capacity)}</td></tr>"
        for share, name in shares
    )
    when = "when memory ran out" if report.failed_with_oom else "at the peak"
    return (
        f"<section><h2>Memory by category {when}</h2>"
        f'<div class="stack" aria-hidden="true">{bar}</div>'
        '<table class="narrow"><thead><tr><th>Category</th><th class=number>Size</th><th class=number>Share</th></tr></thead>'
        f"<tbody>{rows}</tbody><tfoot><tr><td>total</td><td class=number>{format_size(snapshot.capacity)}</td>"
        "<td class=number>100%</td></tr></tfoot></table></section>"
    )


def _share_class(label: str) -> str:
    known = {"fragmented": "fragmented", "cached, reusable": "cached", "reserved, unallocated": "cached"}
    return known.get(label, "free" if label.startswith("free") else "other")


def findings(report: RunReport, sources: Sources) -> str:
    advice = report.oom.advice if report.oom else ()
    if not advice:
        return ""
    items = "".join(_finding(each, sources) for each in advice)
    return f"<section id=findings><h2>Suggested changes</h2><p>Most useful first.</p><ol class=cards>{items}</ol></section>"


def _finding(finding: Finding, sources: Sources) -> str:
    saving = format_saving(finding)
    saves = f'<span class="saves">{saving}</span>' if saving else ""
    return (
        f"<li><h3>{_code(finding.code)} {saves}</h3><p>{_prose(finding.message)}</p><p>{_prose(finding.fix)}</p>"
        f"{_source(finding.file, finding.line, sources)}{_code_page(finding.code)}</li>"
    )


def leaks(report: RunReport, sources: Sources) -> str:
    if not report.leaks:
        return ""
    items = "".join(_leak(each, sources) for each in report.leaks)
    return f"<section id=leaks><h2>Memory leaks</h2><p>Memory that grows with every step.</p><ol class=cards>{items}</ol></section>"


def _leak(leak: Leak, sources: Sources) -> str:
    where = " of host memory" if leak.on_host else ""
    rate = (
        f"{format_size(leak.bytes_per_step)}{where} per step"
        if leak.bytes_per_step
        else f"{format_count(leak.nodes_per_step or 0, 'graph node')} per step"
    )
    path = ""
    if leak.holder:
        steps = "".join(f"<li>{_text(part)}</li>" for part in leak.holder.split(" → "))
        path = (
            f'<p class="label">Retained by</p><ol class="path" aria-label="Path of references">{steps}</ol>'
        )
    return (
        f"<li><h3>{_code(leak.code)} {rate} over {format_count(leak.steps, 'step')}</h3>{path}<p>{_prose(leak.advice)}</p>"
        f"{_source(leak.file, leak.line, sources)}{_code_page(leak.code)}</li>"
    )


def _code(code: str) -> str:
    return f'<span class="code">{_text(code)}</span>'


def _code_page(code: str) -> str:
    """Return the documentation page of a code as a collapsed element, so that no network is needed to read it."""
    found = all_pages().get(code)
    if found is None:
        return ""
    return f"<details><summary>{_prose(found.title)}</summary><div class=page>{_MARKDOWN.render(found.body)}</div></details>"


def _source(file: str | None, line: int | None, sources: Sources) -> str:
    if not file:
        return ""
    code = source_line(sources, file, line)
    shown = f"<pre>{_text(code)}</pre>" if code else ""
    return f'<p class="where">{_text(format_location(file, line))}</p>{shown}'


def line_table(snapshot: MemorySnapshot, sources: Sources) -> str:
    rows = "".join(
        f"<tr>{_cell(format_size(each.bytes), each.bytes)}<td><i class='swatch c{CATEGORIES.index(each.category)}'></i>"
        f"{_text(each.category)}</td><td>{_text(format_location(each.file, each.line))}"
        f"{_optional_code(source_line(sources, each.file, each.line))}</td><td>{_text(each.module)}</td>"
        f"{_cell(f'{each.count:,}', each.count)}</tr>"
        for each in snapshot.top[:MAX_LINES]
    )
    return _table(["Size", "Category", "Line", "Module", "Tensors"], rows)


def variables(report: RunReport) -> str:
    if not report.oom or not report.oom.holders:
        return ""
    rows = "".join(
        f"<tr>{_cell(format_size(each.bytes), each.bytes)}<td>{_text(each.path)}</td>"
        f"<td>{_text(format_frame(each.frame) if each.frame else '')}</td></tr>"
        for each in report.oom.holders[:MAX_LINES]
    )
    return (
        "<section><h2>Memory by variable</h2><p>Memory that each variable retained when memory ran out. Entries may "
        f"overlap.</p>{_table(['Size', 'Variable', 'Line'], rows)}</section>"
    )


def step_table(report: RunReport) -> str:
    steps = _selected_steps(report.history)
    if not steps:
        return ""
    rows = "".join(
        f'<tr data-time="{step.time!r}">{_cell(f"{step.step:,}", step.step)}'
        + "".join(
            _cell(format_size(size), size)
            for size in (step.peak_allocated, step.peak_reserved, step.allocated)
        )
        + f"{_cell(format_duration(step.seconds) if step.seconds >= 0.1 else f'{step.seconds * 1000:.0f} ms', step.seconds)}</tr>"
        for step in steps
    )
    note = (
        f"<p>The table contains {len(steps):,} of {len(report.history):,} steps, including the step with the highest peak.</p>"
        if len(steps) < len(report.history)
        else ""
    )
    heads = ["Step", "Peak allocated", "Peak reserved", "Allocated at the end", "Time"]
    return f'<section id="steps"><h2>Steps</h2>{note}{_table(heads, rows, tall=True)}</section>'


def _selected_steps(steps: tuple[Step, ...]) -> list[Step]:
    if len(steps) <= MAX_STEPS:
        return list(steps)
    every = -(-len(steps) // MAX_STEPS)
    highest = max(steps, key=lambda step: step.peak_allocated)
    return sorted({*steps[::every], highest, steps[-1]}, key=lambda step: step.time)


def next_commands(report: RunReport) -> str:
    lines = [
        f"{command}   # {comment}" for command, comment in report.next_commands if "--html" not in command
    ]
    if report.command.target and report.started:
        lines.insert(0, f"{report.command.text}   # recorded command")
    return f"<pre>{_text(chr(10).join(lines))}</pre>" if lines else ""


def _table(heads: Iterable[str], rows: str, *, tall: bool = False) -> str:
    head = "".join(f"<th><button>{_text(name)}</button></th>" for name in heads)
    return f'<div class="scroll{" tall" if tall else ""}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(text: str, value: float) -> str:
    return f'<td data-sort="{value}">{_text(text)}</td>'


def _optional_code(code: str) -> str:
    return f"<br><code>{_text(code)}</code>" if code else ""


def _prose(text: str) -> str:
    pieces = _text(text).split("`")
    if len(pieces) % 2 == 0:  # an unpaired backtick
        return _text(text)
    return "".join(
        f"<code>{piece}</code>" if position % 2 else piece for position, piece in enumerate(pieces)
    )


def _text(text: str) -> str:
    return escape(clean(str(text)))


def _percent(size: int, total: int) -> str:
    percent = 100 * size / total
    return "<1%".replace("<", "&lt;") if 0 < percent < 1 else f"{percent:.0f}%"
