"""The tables of the monitor: their columns and cells, sorting and filtering."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from legroom.gpus.nvml import NotAvailable
from legroom.memory.live.status import RunStatus
from legroom.show.monitor.snapshot import ProcessRow, Snapshot
from legroom.units import format_size

WIDE = 110
"""The minimum terminal width at which the table of runs shows the full finding in its own column."""
Row = TypeVar("Row", ProcessRow, RunStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """A column of a table in the monitor."""

    name: str
    """The name of the column in a heading such as `sorted by GPU memory`."""
    title: str
    width: int
    """The width in characters, or 0 if the column uses the remaining width."""
    cell: Callable[[Row, Snapshot], str]
    order: Callable[[Row], Any]
    """The sort key. A value that is not available is None and comes last."""
    descending: bool = False
    wide: int | None = None
    """The width in characters on a wide terminal, if it differs from `width`."""
    abbreviate: Callable[[str], str] | None = None
    from_width: int = 0
    """The minimum terminal width at which the column is shown."""
    right: bool = True

    def text(self, row: Row, snapshot: Snapshot, size: int) -> str:
        text = self.cell(row, snapshot)
        if self.abbreviate is not None and size < 20 and cell_len(text) > size:
            text = self.abbreviate(text)
        return fit(text, size, right=self.right)


def _text(value: object) -> str:
    return str(value)


def _size(value: int | NotAvailable) -> str:
    return "N/A" if isinstance(value, NotAvailable) else format_size(value)


def _number(value: float | NotAvailable, digits: int = 0) -> str:
    return "N/A" if isinstance(value, NotAvailable) else f"{value:.{digits}f}"


def _known(value: Any) -> Any:
    return None if isinstance(value, NotAvailable) else value


def _elapsed(seconds: float) -> str:
    whole = max(int(seconds), 0)
    if whole >= 100 * 3600:
        return f"{whole / 86400:.1f} d"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _age(row: ProcessRow, snapshot: Snapshot) -> str:
    started = row.process.started
    return "N/A" if isinstance(started, NotAvailable) else _elapsed(snapshot.time - started)


PROCESS_COLUMNS: tuple[Column[ProcessRow], ...] = (
    Column(
        name="GPU",
        title="GPU",
        width=3,
        cell=lambda row, _: row.gpu or "–",
        order=lambda row: row.gpu or None,
    ),
    Column(name="PID", title="PID", width=7, cell=lambda row, _: _text(row.pid), order=lambda row: row.pid),
    Column(
        name="user",
        title="USER",
        width=8,
        cell=lambda row, _: _text(row.process.user),
        order=lambda row: _known(row.process.user),
        from_width=60,
        right=False,
    ),
    Column(
        name="GPU memory",
        title="GPU MEM",
        width=9,
        cell=lambda row, _: _size(row.memory),
        order=lambda row: _known(row.memory),
        descending=True,
    ),
    Column(
        name="GPU utilization",
        title="SM%",
        width=4,
        cell=lambda row, _: _number(row.utilization),
        order=lambda row: _known(row.utilization),
        descending=True,
        from_width=72,
    ),
    Column(
        name="CPU",
        title="CPU%",
        width=5,
        cell=lambda row, _: _number(row.process.cpu),
        order=lambda row: _known(row.process.cpu),
        descending=True,
        from_width=60,
    ),
    Column(
        name="host memory",
        title="MEM",
        width=9,
        cell=lambda row, _: _size(row.process.resident),
        order=lambda row: _known(row.process.resident),
        descending=True,
        from_width=90,
    ),
    Column(
        name="time",
        title="TIME",
        width=7,
        cell=_age,
        order=lambda row: _known(row.process.started),
        from_width=60,
    ),
    Column(
        name="command",
        title="COMMAND",
        width=0,
        cell=lambda row, _: row.command,
        order=lambda row: row.command,
        right=False,
    ),
)


def _step(run: RunStatus) -> str:
    if run.step is None:
        return "N/A"
    return str(run.step) if run.total_steps is None else f"{run.step}/{run.total_steps}"


def _step_time(run: RunStatus) -> str:
    seconds = run.seconds_per_step
    if seconds is None:
        return "N/A"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def trend_text(run: RunStatus) -> str:
    if run.trend is None:
        return "N/A"
    return "steady" if run.trend == 0 else f"{'+' if run.trend > 0 else ''}{format_size(run.trend)}"


def _state(run: RunStatus, snapshot: Snapshot) -> str:
    if snapshot.seconds_silent(run):
        return "silent"
    return run.finding or "–"


def _code(finding: str) -> str:
    return finding.partition(" ")[0] if finding.startswith("LG") else "OOM"


RUN_COLUMNS: tuple[Column[RunStatus], ...] = (
    Column(name="PID", title="PID", width=7, cell=lambda run, _: _text(run.pid), order=lambda run: run.pid),
    Column(
        name="script",
        title="SCRIPT",
        width=0,
        cell=lambda run, _: script_text(run),
        order=lambda run: (run.script, run.rank or 0),
        wide=24,
        right=False,
    ),
    Column(name="step", title="STEP", width=9, cell=lambda run, _: _step(run), order=lambda run: run.step),
    Column(
        name="step time",
        title="STEP TIME",
        width=9,
        cell=lambda run, _: _step_time(run),
        order=lambda run: run.seconds_per_step,
        from_width=60,
    ),
    Column(
        name="allocated",
        title="ALLOCATED",
        width=9,
        cell=lambda run, _: _size(run.allocated) if run.devices else "N/A",
        order=lambda run: run.allocated,
        from_width=78,
    ),
    Column(
        name="reserved",
        title="RESERVED",
        width=9,
        cell=lambda run, _: _size(run.reserved) if run.devices else "N/A",
        order=lambda run: run.reserved,
    ),
    Column(
        name="trend",
        title="TREND/STEP",
        width=10,
        cell=lambda run, _: trend_text(run),
        order=lambda run: run.trend,
        from_width=67,
    ),
    Column(
        name="finding",
        title="FINDING",
        width=8,
        cell=_state,
        order=lambda run: run.finding,
        from_width=60,
        wide=0,
        abbreviate=_code,
        right=False,
    ),
)


def script_text(run: RunStatus) -> str:
    rank = "" if run.rank is None else f" {run.rank}/{run.world_size or '?'}"
    return f"{os.path.basename(run.script) or run.script}{rank}"


def visible_columns(columns: Sequence[Column[Row]], width: int) -> list[tuple[Column[Row], int]]:
    shown = [column for column in columns if column.from_width <= width]
    sizes = [column.width if column.wide is None or width < WIDE else column.wide for column in shown]
    rest = max(width - sum(sizes) - len(shown) + 1, 8)
    return [(column, size or rest) for column, size in zip(shown, sizes, strict=True)]


def fit(text: str, width: int, *, right: bool = False) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    return " " * (width - length) + text if right else text + " " * (width - length)


def sort_rows(rows: Iterable[Row], column: Column[Row], *, reverse: bool = False) -> list[Row]:
    """Return the rows sorted by a column. Rows without a value come last."""
    every = list(rows)
    known = [row for row in every if column.order(row) is not None]
    ordered = sorted(known, key=column.order, reverse=column.descending is not reverse)
    return ordered + [row for row in every if column.order(row) is None]


def matching_processes(rows: Iterable[ProcessRow], wanted: str) -> list[ProcessRow]:
    """Return the rows in which every word of `wanted` occurs in the command, user, process ID or GPU, ignoring
    case.
    """
    words = wanted.lower().split()
    return [
        row
        for row in rows
        if all(word in f"{row.command} {row.process.user} {row.pid} gpu{row.gpu}".lower() for word in words)
    ]


def matching_runs(runs: Iterable[RunStatus], wanted: str) -> list[RunStatus]:
    words = wanted.lower().split()
    return [
        run
        for run in runs
        if all(word in f"{run.script} {run.command} {run.pid} {run.finding}".lower() for word in words)
    ]


def clock_text(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
