"""The live table in a terminal, in a pipe and in CI."""

import io
from types import SimpleNamespace

import pytest

from example_studies import failed, finished, never_fits
from legroom.show.common.terminal import render_to_string
from legroom.show.tune.live_table import LiveTable, live_view, shown
from legroom.tuning.trial.records import TrialRecord, TrialState

PARAMETERS = ["lr", "batch_size"]


def start_table(stream: io.StringIO, *records: TrialRecord, mode: str = "min", **options: bool) -> LiveTable:
    table = LiveTable(stream=stream, **options)
    space = SimpleNamespace(parameter_names=PARAMETERS)
    job = SimpleNamespace(metric="loss", mode=mode, trials=10, search="random", space=space)
    table.on_study_start(job, records)  # type: ignore[arg-type]
    return table


def test_the_first_line_shows_the_progress() -> None:
    records = [finished(0), finished(1, state=TrialState.RUNNING, ended=None), never_fits(2), failed(3)]
    assert render_to_string(live_view(records, PARAMETERS, "loss", "min", trials=10)).splitlines()[0] == (
        "2 of 10 trials finished, 1 running, 1 cannot fit, best loss 0.25 (trial 0)"
    )


def test_running_and_best_trials_are_shown_before_old_ones() -> None:
    old = [finished(number) for number in range(20)]
    running = finished(30, state=TrialState.RUNNING, ended=None)
    assert [record.number for record in shown([*old, running], old[2], 4)] == [2, 18, 19, 30]


def test_in_a_pipe_only_a_new_best_and_failures_are_printed() -> None:
    stream = io.StringIO()
    table = start_table(stream)
    for record in (finished(0), finished(1), never_fits(2), failed(3)):
        table.on_trial_update(record)
    table.on_study_end()
    assert stream.getvalue().splitlines() == [
        "legroom: Trial 0 is the best so far: loss 0.25 with lr 0.01, batch_size 16",
        "legroom: Trial 2 cannot fit: Needs 512.0 MiB even in micro-batches of 1; 384.0 MiB is available",
        "legroom: Trial 3 failed: ValueError: no such loss, train.py:31",
    ]


def test_after_an_interruption_the_earlier_best_counts() -> None:
    stream = io.StringIO()
    table = start_table(stream, finished(0))
    table.on_trial_update(finished(1))
    assert stream.getvalue() == ""


def test_with_mode_max_larger_is_better() -> None:
    stream = io.StringIO()
    table = start_table(stream, mode="max")
    table.on_trial_update(finished(0))
    assert stream.getvalue().startswith("legroom: Trial 0 is the best so far: loss 1 with")


def test_a_running_trial_is_not_printed_in_a_pipe() -> None:
    stream = io.StringIO()
    start_table(stream).on_trial_update(finished(0, state=TrialState.RUNNING))
    assert stream.getvalue() == ""


def test_quiet_prints_nothing() -> None:
    stream = io.StringIO()
    table = start_table(stream, quiet=True)
    table.on_trial_update(failed(0))
    table.on_message("something")
    table.on_study_end()
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_the_table_is_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    stream = Terminal()
    table = start_table(stream)
    table.on_trial_update(finished(0))
    assert "0  " in stream.getvalue()
    table.on_study_end()
    assert stream.getvalue().rstrip("\n").endswith("\x1b[2K")


def test_in_ci_a_terminal_is_treated_as_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    stream = Terminal()
    start_table(stream).on_trial_update(finished(0))
    assert stream.getvalue() == "legroom: Trial 0 is the best so far: loss 0.25 with lr 0.01, batch_size 16\n"
