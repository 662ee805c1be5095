"""The trials of a search as a table. A row contains the metric, the step, the measured and predicted memory, and
the configuration.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from legroom.show.common.formatting import clean
from legroom.show.common.terminal import PLAIN_WIDTH
from legroom.tuning.trial.records import Mode, TrialRecord, TrialState
from legroom.units import format_size

_STYLES = {
    TrialState.RUNNING: "cyan",
    TrialState.FINISHED: "green",
    TrialState.STOPPED: "dim",
    TrialState.FAILED: "red",
    TrialState.OUT_OF_MEMORY: "bold red",
    TrialState.NEVER_FITS: "yellow",
}


def trial_table(
    rows: Sequence[TrialRecord],
    parameters: Sequence[str],
    metric: str,
    mode: Mode,
    *,
    best: TrialRecord | None = None,
    width: int = PLAIN_WIDTH,
) -> Group:
    """Render a table with one row per trial. The reason why a trial ended is shown below its row.

    If the terminal is wide enough, each searched parameter is a column. Otherwise, the searched parameters are listed
    below the row.
    """
    columns = _figure_columns(rows, metric, mode)
    with_searched = trial_columns(rows, parameters, metric, mode)
    has_room = _width(with_searched) <= width
    columns = with_searched if has_room else columns
    widths = [max(map(len, [name, *cells])) for name, cells in columns.items()]
    indent = widths[0] + 2
    lines: list[RenderableType] = [_line(list(columns), widths, "dim")]
    for index, record in enumerate(rows):
        cells = [column[index] for column in columns.values()]
        line = _line(cells, widths, "bold" if record is best else "")
        line.stylize(_STYLES.get(record.state, ""), indent, indent + widths[1])
        about = [] if has_room else [format_config(record, parameters)]
        below = [Text(clean(each), style="dim") for each in [*about, *_about(record)]]
        lines += [line, *(Padding(each, (0, 0, 0, indent)) for each in below)]
    return Group(*lines)


def trial_columns(
    rows: Sequence[TrialRecord], parameters: Sequence[str], metric: str, mode: Mode
) -> dict[str, list[str]]:
    columns = _figure_columns(rows, metric, mode)
    return columns | {
        f"config.{name}" if name in columns else clean(name): [_setting(record, name) for record in rows]
        for name in parameters
    }


def best_of(records: Sequence[TrialRecord], metric: str, mode: Mode) -> TrialRecord | None:
    best: TrialRecord | None = None
    value: float | None = None
    for record in records:
        reported = record.value(metric, mode)
        if reported is not None and not record.state.has_failed and is_better(reported, value, mode):
            best, value = record, reported
    return best


def format_config(record: TrialRecord, parameters: Sequence[str]) -> str:
    return ", ".join(
        f"{clean(name)} {_setting(record, name)}" for name in parameters if name in record.config
    )


def _figure_columns(rows: Sequence[TrialRecord], metric: str, mode: Mode) -> dict[str, list[str]]:
    """Return the cells of each column. Without a GPU, the memory columns are omitted."""
    columns = {
        "trial": [str(record.number) for record in rows],
        "state": [format_state(record.state) for record in rows],
        clean(metric): [_best(record, metric, mode) for record in rows],
        "step": [str(record.step or "") for record in rows],
        "measured": [_size(record.memory.actual) for record in rows],
        "predicted": [_size(record.memory.bound) for record in rows],
    }
    return {
        name: cells for name, cells in columns.items() if any(cells) or name not in ("measured", "predicted")
    }


def _best(record: TrialRecord, metric: str, mode: Mode) -> str:
    value = record.value(metric, mode)
    return "" if value is None else f"{value:.4g}"


def _size(size: int | None) -> str:
    return "" if size is None else format_size(size)


def _setting(record: TrialRecord, name: str) -> str:
    if name not in record.config:
        return ""
    value = record.config[name]
    return f"{value:.4g}" if isinstance(value, float) else clean(str(value))


def _width(columns: dict[str, list[str]]) -> int:
    return sum(max(map(len, [name, *cells])) + 2 for name, cells in columns.items()) - 2


def _line(cells: Sequence[str], widths: Sequence[int], style: str) -> Text:
    padded = [
        cell.ljust(width) if column == 1 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return Text("  ".join(padded).rstrip(), style=style, no_wrap=True, overflow="ellipsis")


def _about(record: TrialRecord) -> list[str]:
    memory, split, reason = record.memory, "", ""
    if memory.micro_batch is not None and record.state is not TrialState.NEVER_FITS:
        others = (
            f" because other programs use {format_size(memory.used_by_others)} of GPU memory"
            if memory.used_by_others
            else ""
        )
        split = f"in micro-batches of {memory.micro_batch}{others}"
    # A finished trial needs no reason.
    if record.state.is_final and record.state is not TrialState.FINISHED:
        reason = record.reason
    return [part for part in (split, reason) if part]


def format_state(state: TrialState) -> str:
    return {
        TrialState.STOPPED: "stopped",
        TrialState.OUT_OF_MEMORY: "out of memory",
        TrialState.NEVER_FITS: "cannot fit",
    }.get(state, str(state))


def is_better(value: float, than: float | None, mode: Mode) -> bool:
    return than is None or (value < than if mode == "min" else value > than)
