"""The live table of a search: every trial with its metric, its step, its memory foretold and seen, and why it ended.

On a terminal it is repainted in place, and gone when the study is over: what remains is the study's own summary. In a pipe or in CI
nothing is repainted: one line where a trial becomes the best, fails or cannot fit, and nothing else, so that a log of a thousand trials
stays short.
"""

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from legroom.show.live import can_repaint
from legroom.show.terminal import PLAIN_WIDTH
from legroom.show.words import clean, counted
from legroom.tuning.engine import Job
from legroom.tuning.records import Mode, TrialRecord, TrialState
from legroom.units import format_size

_STYLES = {
    TrialState.RUNNING: "cyan",
    TrialState.FINISHED: "green",
    TrialState.STOPPED: "dim",
    TrialState.FAILED: "red",
    TrialState.OUT_OF_MEMORY: "bold red",
    TrialState.NEVER_FITS: "yellow",
}
_TROUBLE = (TrialState.FAILED, TrialState.OUT_OF_MEMORY, TrialState.NEVER_FITS)


class LiveTable:
    """A watcher that shows a study on `stream`."""

    REPAINTS_PER_SECOND = 4

    def __init__(self, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._metric, self._trials = "", 0
        self._mode: Mode = "min"
        self._records: dict[int, TrialRecord] = {}
        self._best: float | None = None
        self._live: Live | None = None
        if not quiet and can_repaint(self._stream) and not os.environ.get("CI"):
            self._live = self._new_live()

    def begun(self, job: Job, records: Sequence[TrialRecord]) -> None:
        self._metric, self._mode = job.metric, job.mode
        self._trials = 0 if job.search == "grid" else job.trials
        self._records = {record.number: record for record in records}
        best = best_of(records, self._metric, self._mode)
        self._best = None if best is None else best.value(self._metric, self._mode)

    def changed(self, record: TrialRecord) -> None:
        self._records[record.number] = record
        if self._live is None:
            self._tell(record)
            return
        if not self._live.is_started:
            self._live.start(refresh=True)

    def said(self, sentence: str) -> None:
        if self._live is not None and self._live.is_started:
            self._live.console.print(Text(clean(sentence)))
        else:
            self._write(sentence)

    def closed(self) -> None:
        if self._live is not None and self._live.is_started:
            self._live.stop()

    def _new_live(self) -> Live:
        console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        return Live(
            get_renderable=lambda: trial_table(
                list(self._records.values()),
                self._metric,
                self._mode,
                trials=self._trials,
                most_rows=max(3, console.height // 3 - 1),  # a row may have two lines below it
                width=console.width,
            ),
            console=console,
            refresh_per_second=self.REPAINTS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _tell(self, record: TrialRecord) -> None:
        """The one line of a trial that is over, if it is worth one."""
        if not record.state.is_final:
            return
        if record.state in _TROUBLE:
            self._write(
                f"trial {record.number} {_words(record.state)}: {record.why or 'no reason was given'}"
            )
            return
        value = record.value(self._metric, self._mode)
        if value is None or not _is_better(value, self._best, self._mode):
            return
        self._best = value
        self._write(
            f"trial {record.number} is the best so far: {self._metric} {value:.4g} with {config_words(record)}"
        )

    def _write(self, sentence: str) -> None:
        if self._quiet:
            return
        try:
            self._stream.write(f"legroom: {clean(sentence)}\n")
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe: there is no one to tell
            return


def trial_table(
    records: Sequence[TrialRecord],
    metric: str,
    mode: Mode,
    *,
    trials: int = 0,
    most_rows: int = 20,
    width: int = PLAIN_WIDTH,
) -> Group:
    """The trials that matter now: what runs, the best, what ended last. A line of figures each, below it why it ended.

    `trials`: how many there will be, where that is known. Parameters are columns where the width allows it; else they stand below, as a sentence.
    """
    best = best_of(records, metric, mode)
    rows = shown(records, best, most_rows)
    columns = _figure_columns(rows, metric, mode)
    searched = _searched(records)
    with_searched = columns | {
        f"config.{name}" if name in columns else clean(name): [_setting(record, name) for record in rows]
        for name in searched
    }
    has_room = _width(with_searched) <= width
    columns = with_searched if has_room else columns
    widths = [max(map(len, [name, *cells])) for name, cells in columns.items()]
    lines = [Text(_headline(records, metric, mode, best, trials)), _line(list(columns), widths, "dim")]
    for index, record in enumerate(rows):
        cells = [column[index] for column in columns.values()]
        lines.append(_line(cells, widths, "bold" if record is best else ""))
        lines[-1].stylize(_STYLES.get(record.state, ""), widths[0] + 2, widths[0] + 2 + widths[1])
        about = [] if has_room else [config_words(record, searched)]
        lines += [
            Text(f"{' ' * (widths[0] + 2)}{clean(each)}", style="dim") for each in [*about, *_about(record)]
        ]
    return Group(*lines)


def shown(records: Sequence[TrialRecord], best: TrialRecord | None, most: int) -> list[TrialRecord]:
    """At most `most` records, by number: what runs first, then the best, then what ended last."""
    running = [record for record in records if record.state is TrialState.RUNNING]
    over = [record for record in records if record.state.is_final and record is not best]
    over.sort(key=lambda record: record.ended or 0.0, reverse=True)
    picked = [*running, *([best] if best is not None and best not in running else []), *over][:most]
    return sorted(picked, key=lambda record: record.number)


def best_of(records: Sequence[TrialRecord], metric: str, mode: Mode) -> TrialRecord | None:
    """The record with the best value so far."""
    best: TrialRecord | None = None
    value: float | None = None
    for record in records:
        told = record.value(metric, mode)
        if told is not None and _is_better(told, value, mode):
            best, value = record, told
    return best


def config_words(record: TrialRecord, names: Sequence[str] | None = None) -> str:
    """`lr 0.0034, batch_size 16`: a configuration, or these parameters of it."""
    shown_names = record.config if names is None else [name for name in names if name in record.config]
    return ", ".join(f"{name} {_setting(record, name)}" for name in shown_names)


def _headline(
    records: Sequence[TrialRecord], metric: str, mode: Mode, best: TrialRecord | None, trials: int
) -> str:
    rejected = sum(record.state is TrialState.NEVER_FITS for record in records)
    over = sum(record.state.is_final for record in records) - rejected
    running = sum(record.state is TrialState.RUNNING for record in records)
    parts = [
        f"{over} of {trials} trials over" if trials else f"{counted(over, 'trial')} over",
        f"{running} running",
    ]
    if rejected:
        parts.append(f"{rejected} cannot fit")
    lost = sum(record.state is TrialState.OUT_OF_MEMORY for record in records)
    if lost:
        parts.append(f"{lost} lost to memory")
    if best is not None:
        value = best.value(metric, mode)
        parts.append(f"best {clean(metric)} {value:.4g} (trial {best.number})")
    return ", ".join(parts)


def _figure_columns(rows: Sequence[TrialRecord], metric: str, mode: Mode) -> dict[str, list[str]]:
    """Heading → a cell for each row. Memory only where any is known: a search without a GPU has none."""
    columns = {
        "trial": [str(record.number) for record in rows],
        "state": [_words(record.state) for record in rows],
        clean(metric): [_best(record, metric, mode) for record in rows],
        "step": [str(record.step or "") for record in rows],
        "seen": [_size(record.memory.actual) for record in rows],
        "foretold": [_size(_foretold(record)) for record in rows],
    }
    return {name: cells for name, cells in columns.items() if any(cells) or name not in ("seen", "foretold")}


def _searched(records: Sequence[TrialRecord]) -> list[str]:
    """Parameters that are not the same in every trial."""
    names = list(dict.fromkeys(name for record in records for name in record.config))
    if len(records) < 2:
        return names
    first = records[0].config
    return [
        name
        for name in names
        if any(name not in record.config or record.config[name] != first.get(name) for record in records)
    ]


def _best(record: TrialRecord, metric: str, mode: Mode) -> str:
    """What the trial counts by: the best that it reported."""
    value = record.value(metric, mode)
    return "" if value is None else f"{value:.4g}"


def _foretold(record: TrialRecord) -> int | None:
    return record.memory.safe if record.memory.safe is not None else record.memory.predicted


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
    """The state reads from the left, figures from the right; what does not fit the terminal is cut, not wrapped."""
    padded = [
        cell.ljust(width) if column == 1 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return Text("  ".join(padded).rstrip(), style=style, no_wrap=True, overflow="ellipsis")


def _about(record: TrialRecord) -> list[str]:
    """How it runs, and why it ended."""
    memory, split, why = record.memory, "", ""
    if memory.micro_batch is not None and record.state is not TrialState.NEVER_FITS:
        others = f": other programs hold {format_size(memory.held)} of its GPU" if memory.held else ""
        split = f"in micro-batches of {memory.micro_batch}{others}"
    # Finished, it has its reason in itself.
    if record.state.is_final and record.state is not TrialState.FINISHED:
        why = record.why
    return [part for part in (split, why) if part]


def _words(state: TrialState) -> str:
    return {
        TrialState.STOPPED: "stopped",
        TrialState.OUT_OF_MEMORY: "lost to memory",
        TrialState.NEVER_FITS: "cannot fit",
    }.get(state, str(state))


def _is_better(value: float, than: float | None, mode: Mode) -> bool:
    return than is None or (value < than if mode == "min" else value > than)
