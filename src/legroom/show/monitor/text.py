"""`legroom monitor --once`: the monitor as text."""

from rich.console import Group, RenderableType
from rich.text import Text

from legroom.memory.live.status import RunStatus
from legroom.show.common.formatting import format_duration
from legroom.show.monitor.panel import render_panel
from legroom.show.monitor.snapshot import Snapshot
from legroom.show.monitor.tables import (
    PROCESS_COLUMNS,
    RUN_COLUMNS,
    Column,
    Row,
    fit,
    script_text,
    sort_rows,
    visible_columns,
)


def render_snapshot(snapshot: Snapshot, *, width: int) -> RenderableType:
    parts: list[Text] = [render_panel(snapshot, None, width), Text("")]
    if snapshot.runs:
        parts += _table("Runs", RUN_COLUMNS, sort_rows(snapshot.runs, RUN_COLUMNS[1]), snapshot, width)
        parts += [Text(""), *finding_lines(snapshot)]
    by_memory = next(column for column in PROCESS_COLUMNS if column.name == "GPU memory")
    rows = sort_rows(snapshot.processes, by_memory)
    if rows:
        parts += _table("Processes", PROCESS_COLUMNS, rows, snapshot, width)
    else:
        parts.append(Text(NO_PROCESSES, style="dim"))
    for part in parts:
        part.no_wrap = part.plain.count("\n") > 0 or part.no_wrap
    return Group(*parts)


NO_PROCESSES = "No process is using a GPU, and no Legroom run is active."


def finding_lines(snapshot: Snapshot) -> list[Text]:
    """Return one paragraph for each run that has a finding or no longer updates its state. If there are any paragraphs,
    a blank line comes last."""
    lines = [
        Text(f"PID {run.pid} ({script_text(run)}): {sentence}")
        for run in snapshot.runs
        if (sentence := finding_of(run, snapshot))
    ]
    return [*lines, Text("")] if lines else []


def finding_of(run: RunStatus, snapshot: Snapshot) -> str:
    silent = snapshot.seconds_silent(run)
    if silent:
        return f"No update for {format_duration(silent)}. The process may be suspended, or a library may be blocking its threads."
    if not run.advice:
        return run.finding
    return f"{run.finding}{'' if run.finding.endswith('.') else '.'} {run.advice}"


def _table(
    title: str, columns: tuple[Column[Row], ...], rows: list[Row], snapshot: Snapshot, width: int
) -> list[Text]:
    shown = visible_columns(columns, width)
    heading = " ".join(fit(column.title, size, right=column.right) for column, size in shown)
    lines = [Text(title, style="bold", no_wrap=True), Text(heading, style="dim", no_wrap=True)]
    for row in rows:
        cells = (column.text(row, snapshot, size) for column, size in shown)
        lines.append(Text(" ".join(cells), no_wrap=True))
    return lines
