"""The details of one process, and of its run."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from legroom.gpus.nvml import NotAvailable
from legroom.memory.live.status import RunStatus
from legroom.show.common.formatting import format_duration
from legroom.show.monitor.history import sparkline
from legroom.show.monitor.panel import amount
from legroom.show.monitor.snapshot import ProcessRow, Snapshot
from legroom.show.monitor.tables import clock_text, trend_text
from legroom.show.monitor.text import finding_of
from legroom.units import format_size

Facts = list[tuple[str, str]]


def render_details(pid: int, snapshot: Snapshot) -> RenderableType:
    """Render the known facts about a process and its run, or a message that the process has ended."""
    rows = [row for row in snapshot.processes if row.pid == pid]
    if not rows:
        return Text(f"Process {pid} has ended.")
    run = rows[0].run
    facts = [] if run is None else [*_run_facts(run, snapshot), ("", "")]
    table = Table.grid(padding=(0, 1))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in [*facts, *_process_facts(rows, snapshot)]:
        table.add_row(label, Text(value))
    return table


def _process_facts(rows: list[ProcessRow], snapshot: Snapshot) -> Facts:
    process = rows[0].process
    started = process.started
    facts = [
        ("PID", str(process.pid)),
        ("User", str(process.user)),
        ("Command", str(process.command)),
        ("State", str(process.state)),
        (
            "Started",
            "N/A"
            if isinstance(started, NotAvailable)
            else f"{clock_text(started)}, {format_duration(max(snapshot.time - started, 0))} ago",
        ),
        ("CPU", "N/A" if isinstance(process.cpu, NotAvailable) else f"{process.cpu:.0f}% of one core"),
        ("Host memory", _size(process.resident)),
        ("Threads", str(process.threads)),
        ("Parent", str(process.parent)),
    ]
    for row in rows:
        if row.gpu:
            source = " (reserved by the run)" if row.memory_source == "run" else ""
            busy = "" if isinstance(row.utilization, NotAvailable) else f", utilization {row.utilization}%"
            name = f"Virtual GPU {row.gpu[1:]}" if row.gpu.startswith("v") else f"GPU {row.gpu}"
            facts.append((name, f"{_size(row.memory)}{source}{busy}"))
    return facts


def _run_facts(run: RunStatus, snapshot: Snapshot) -> Facts:
    step = (
        "N/A"
        if run.step is None
        else f"{run.step}{'' if run.total_steps is None else f' of {run.total_steps}'}"
    )
    seconds = "N/A" if run.seconds_per_step is None else f"{run.seconds_per_step:.4g} s"
    facts = [
        ("Run", run.script if run.rank is None else f"{run.script}, rank {run.rank} of {run.world_size}"),
        ("Step", f"{step}, {seconds} per step"),
        ("Finding", finding_of(run, snapshot) or "none"),
    ]
    for device in run.devices:
        facts += [
            (f"Device {device.index}", device.name),
            ("  allocated", f"{format_size(device.allocated)}, peak {format_size(device.peak_allocated)}"),
            (
                "  reserved",
                f"{amount(device.reserved, device.capacity)}, peak {format_size(device.peak_reserved)}",
            ),
        ]
    trend = trend_text(run)
    facts.append(("Trend", trend if trend in ("steady", "N/A") else f"{trend} per step"))
    if run.history:
        low, high = min(run.history), max(run.history)
        line = sparkline(run.history, min(len(run.history), 40), low=low, high=high)
        facts.append(("Allocated", f"{line} {format_size(low)} to {format_size(high)}"))
    return [*facts, ("Started as", run.command), ("Folder", run.folder)]


def _size(value: int | NotAvailable) -> str:
    return "N/A" if isinstance(value, NotAvailable) else format_size(value)
