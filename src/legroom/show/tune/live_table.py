"""The live table of a search: what runs, the best, and what ended last.

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

from legroom.show.common.formatting import clean, format_count
from legroom.show.common.live_line import can_repaint
from legroom.show.common.terminal import PLAIN_WIDTH
from legroom.show.tune.trial_table import best_of, config_words, is_better, state_words, trial_table
from legroom.tuning.engines.engine import Job
from legroom.tuning.trial.records import Mode, TrialRecord, TrialState

_TROUBLE = (TrialState.FAILED, TrialState.OUT_OF_MEMORY, TrialState.NEVER_FITS)


class LiveTable:
    """A watcher that shows a study on `stream`."""

    REPAINTS_PER_SECOND = 4

    def __init__(self, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._metric, self._trials = "", 0
        self._searched: list[str] = []
        self._mode: Mode = "min"
        self._records: dict[int, TrialRecord] = {}
        self._best: float | None = None
        self._live: Live | None = None
        if not quiet and can_repaint(self._stream) and not os.environ.get("CI"):
            self._live = self._new_live()

    def begun(self, job: Job, records: Sequence[TrialRecord]) -> None:
        self._metric, self._mode = job.metric, job.mode
        self._searched = job.space.searched
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
            self._live.console.print(Text(f"legroom: {clean(sentence)}"))
        else:
            self._write(sentence)

    def closed(self) -> None:
        if self._live is not None and self._live.is_started:
            self._live.stop()

    def _new_live(self) -> Live:
        console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        return Live(
            get_renderable=lambda: live_view(
                list(self._records.values()),
                self._searched,
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
                f"trial {record.number} {state_words(record.state)}: {record.why or 'no reason was given'}"
            )
            return
        value = record.value(self._metric, self._mode)
        if value is None or not is_better(value, self._best, self._mode):
            return
        self._best = value
        self._write(
            f"trial {record.number} is the best so far: {self._metric} {value:.4g} with {config_words(record, self._searched)}"
        )

    def _write(self, sentence: str) -> None:
        if self._quiet:
            return
        try:
            self._stream.write(f"legroom: {clean(sentence)}\n")
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe: there is no one to tell
            return


def live_view(
    records: Sequence[TrialRecord],
    searched: Sequence[str],
    metric: str,
    mode: Mode,
    *,
    trials: int = 0,
    most_rows: int = 20,
    width: int = PLAIN_WIDTH,
) -> Group:
    """How far the study is, and the trials that matter now. `trials`: how many there will be, where that is known."""
    best = best_of(records, metric, mode)
    rows = shown(records, best, most_rows)
    return Group(
        Text(_headline(records, metric, mode, best, trials)),
        trial_table(rows, searched, metric, mode, best=best, width=width),
    )


def shown(records: Sequence[TrialRecord], best: TrialRecord | None, most: int) -> list[TrialRecord]:
    """At most `most` records, by number: what runs first, then the best, then what ended last."""
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
        f"{over} of {trials} trials over" if trials else f"{format_count(over, 'trial')} over",
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
