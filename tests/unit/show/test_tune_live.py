"""The live table: what matters now, and how quiet it is where nothing can be repainted."""

import io
from types import SimpleNamespace

import pytest

from legroom.show.common.terminal import render_to_string
from legroom.show.tune.live_table import LiveTable, live_view, shown
from legroom.tuning.trial.records import TrialRecord, TrialState
from made_studies import failed, finished, never_fits

SEARCHED = ["lr", "batch_size"]


def begun(stream: io.StringIO, *records: TrialRecord, mode: str = "min", **options: bool) -> LiveTable:
    table = LiveTable(stream=stream, **options)
    space = SimpleNamespace(searched=SEARCHED)
    job = SimpleNamespace(metric="loss", mode=mode, trials=10, search="random", space=space)
    table.begun(job, records)  # type: ignore[arg-type]
    return table


def test_the_first_line_says_how_far_the_study_is() -> None:
    records = [finished(0), finished(1, state=TrialState.RUNNING, ended=None), never_fits(2), failed(3)]
    assert render_to_string(live_view(records, SEARCHED, "loss", "min", trials=10)).splitlines()[0] == (
        "2 of 10 trials over, 1 running, 1 cannot fit, best loss 0.25 (trial 0)"
    )


def test_what_runs_and_the_best_are_shown_before_what_ended_long_ago() -> None:
    old = [finished(number) for number in range(20)]
    running = finished(30, state=TrialState.RUNNING, ended=None)
    assert [record.number for record in shown([*old, running], old[2], 4)] == [2, 18, 19, 30]


def test_in_a_pipe_only_a_new_best_and_trouble_are_told() -> None:
    stream = io.StringIO()
    table = begun(stream)
    for record in (finished(0), finished(1), never_fits(2), failed(3)):
        table.changed(record)
    table.closed()
    assert stream.getvalue().splitlines() == [
        "legroom: trial 0 is the best so far: loss 0.25 with lr 0.01, batch_size 16",
        "legroom: trial 2 cannot fit: One row needs 512.0 MiB of the GPU's 384.0 MiB",
        "legroom: trial 3 failed: ValueError: no such loss, train.py:31",
    ]


def test_after_an_interruption_the_best_before_it_counts() -> None:
    stream = io.StringIO()
    table = begun(stream, finished(0))
    table.changed(finished(1))
    assert stream.getvalue() == ""


def test_with_mode_max_the_larger_is_the_better() -> None:
    stream = io.StringIO()
    table = begun(stream, mode="max")
    table.changed(finished(0))
    assert stream.getvalue().startswith("legroom: trial 0 is the best so far: loss 1 with")


def test_a_trial_that_still_runs_is_not_told_in_a_pipe() -> None:
    stream = io.StringIO()
    begun(stream).changed(finished(0, state=TrialState.RUNNING))
    assert stream.getvalue() == ""


def test_quiet_says_nothing_at_all() -> None:
    stream = io.StringIO()
    table = begun(stream, quiet=True)
    table.changed(failed(0))
    table.said("something")
    table.closed()
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_table_is_painted_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    stream = Terminal()
    table = begun(stream)
    table.changed(finished(0))
    assert "0  " in stream.getvalue()
    table.closed()
    assert stream.getvalue().rstrip("\n").endswith("\x1b[2K")


def test_in_ci_a_terminal_is_treated_as_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    stream = Terminal()
    begun(stream).changed(finished(0))
    assert stream.getvalue() == "legroom: trial 0 is the best so far: loss 0.25 with lr 0.01, batch_size 16\n"
