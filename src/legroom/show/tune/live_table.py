"""The live table of a search: running trials, the best trial and the trials that ended most recently.

In a terminal, the table is updated in place and removed before the summary is printed. In a pipe or in CI, a line is
printed only if a trial becomes the best, fails or cannot fit. This keeps the log of a long study short.
"""

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from legroom.show.common.formatting import clean, format_count
from legroom.show.common.live_line import can_repaint
from legroom.show.common.terminal import PLAIN_WIDTH
from legroom.show.tune.trial_table import best_of, format_config, format_state, is_better, trial_table
from legroom.tuning.job import TuneJob
from legroom.tuning.trial.records import Mode, TrialRecord, TrialState

_REPORTED_FAILURES = (TrialState.FAILED, TrialState.OUT_OF_MEMORY, TrialState.NEVER_FITS)


class LiveTable:
    REPAINTS_PER_SECOND = 4

    def __init__(self, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._metric, self._trials = "", 0
        self._parameters: list[str] = []
        self._mode: Mode = "min"
        self._records: dict[int, TrialRecord] = {}
        self._best: float | None = None
        self._live: Live | None = None
        if not quiet and can_repaint(self._stream) and not os.environ.get("CI"):
            self._live = self._new_live()

    def on_study_start(self, job: TuneJob, records: Sequence[TrialRecord]) -> None:
        self._metric, self._mode = job.metric, job.mode
        self._parameters = job.space.parameter_names
        self._trials = 0 if job.search == "grid" else job.trials
        self._records = {record.number: record for record in records}
        best = best_of(records, self._metric, self._mode)
        self._best = None if best is None else best.value(self._metric, self._mode)

    def on_trial_update(self, record: TrialRecord) -> None:
        self._records[record.number] = record
        if self._live is None:
            self._print_if_notable(record)
            return
        if not self._live.is_started:
            self._live.start(refresh=True)

    def on_message(self, message: str) -> None:
        if self._live is not None and self._live.is_started:
            self._live.console.print(Text(f"legroom: {clean(message)}"))
        else:
            self._write(message)

    def on_study_end(self) -> None:
        if self._live is not None and self._live.is_started:
            self._live.stop()

    def _new_live(self) -> Live:
        console = Console(file=self._stream, highlight=False, markup=False, emoji=False, force_jupyter=False)
        return Live(
            get_renderable=lambda: live_view(
                list(self._records.values()),
                self._parameters,
                self._metric,
                self._mode,
                trials=self._trials,
                max_rows=max(3, console.height // 3 - 1),  # a trial may need three lines
                width=console.width,
            ),
            console=console,
            refresh_per_second=self.REPAINTS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _print_if_notable(self, record: TrialRecord) -> None:
        if not record.state.is_final:
            return
        if record.state in _REPORTED_FAILURES:
            self._write(
                f"Trial {record.number} {format_state(record.state)}: {record.reason or 'no reason given'}"
            )
            return
        value = record.value(self._metric, self._mode)
        if value is None or not is_better(value, self._best, self._mode):
            return
        self._best = value
        self._write(
            f"Trial {record.number} is the best so far: {self._metric} {value:.4g} with {format_config(record, self._parameters)}"
        )

    def _write(self, message: str) -> None:
        if self._quiet:
            return
        try:
            self._stream.write(f"legroom: {clean(message)}\n")
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe
            return


def live_view(
    records: Sequence[TrialRecord],
    parameters: Sequence[str],
    metric: str,
    mode: Mode,
    *,
    trials: int = 0,
    max_rows: int = 20,
    width: int = PLAIN_WIDTH,
) -> Group:
    """Return the headline and the table. `trials` is the total number of trials, or 0 if it is not known."""
    best = best_of(records, metric, mode)
    rows = shown(records, best, max_rows)
    return Group(
        Text(_headline(records, metric, mode, best, trials)),
        trial_table(rows, parameters, metric, mode, best=best, width=width),
    )


def shown(records: Sequence[TrialRecord], best: TrialRecord | None, most: int) -> list[TrialRecord]:
    """Return at most `most` records, sorted by number. Running trials are selected first, then the best trial, then
    the trials that ended most recently."""
    running = [record for record in records if record.state is TrialState.RUNNING]
    over = [record for record in records if record.state.is_final and record is not best]
    over.sort(key=lambda record: record.ended or 0.0, reverse=True)
    picked = [*running, *([best] if best is not None and best not in running else []), *over][:most]
    return sorted(picked, key=lambda record: record.number)


def _headline(
    records: Sequence[TrialRecord], metric: str, mode: Mode, best: TrialRecord | None, trials: int
) -> str:
    rejected = sum(record.state is TrialState.NEVER_FITS for record in records)
    over = sum(record.state.is_final for record in records) - rejected
    running = sum(record.state is TrialState.RUNNING for record in records)
    parts = [
        f"{over} of {format_count(trials, 'trial')} finished"
        if trials
        else f"{format_count(over, 'trial')} finished",
        f"{running} running",
    ]
    if rejected:
        parts.append(f"{rejected} cannot fit")
    lost = sum(record.state is TrialState.OUT_OF_MEMORY for record in records)
    if lost:
        parts.append(f"{lost} out of memory")
    if best is not None:
        value = best.value(metric, mode)
        parts.append(f"best {clean(metric)} {value:.4g} (trial {best.number})")
    return ", ".join(parts)
