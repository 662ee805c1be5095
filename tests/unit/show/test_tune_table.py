"""The live table: what it shows at 80 columns, and how quiet it is where nothing can be repainted."""

import io
from types import SimpleNamespace

from legroom.show.terminal import rendered
from legroom.show.tune_table import LiveTable, shown, trial_table
from legroom.tuning.records import Report, TrialMemory, TrialRecord, TrialState
from legroom.units import MiB
from made_studies import failed, finished, never_fits


def begun(stream: io.StringIO, *records: TrialRecord, mode: str = "min", **options: bool) -> LiveTable:
    table = LiveTable(stream=stream, **options)
    table.begun(SimpleNamespace(metric="loss", mode=mode, trials=10, search="random"), records)  # type: ignore[arg-type]
    return table


def split(number: int) -> TrialRecord:
    memory = TrialMemory(safe=364 * MiB, actual=355 * MiB, batch_size=256, micro_batch=64)
    return finished(number, state=TrialState.STOPPED, why="ASHA at step 3: 3. of 3", memory=memory)


def test_a_trial_is_a_line_with_its_reason_below() -> None:
    text = rendered(trial_table([finished(0), split(1), never_fits(2), failed(3)], "loss", "min", trials=10))
    assert text.splitlines() == [
        "3 of 10 trials over, 0 running, 1 cannot fit, best loss 0.25 (trial 0)",
        "trial  state       loss  step       seen   foretold    lr  batch_size",
        "    0  finished    0.25     3   55.0 MiB   64.0 MiB  0.01          16",
        "    1  stopped     0.25     3  355.0 MiB  364.0 MiB  0.01          16",
        "       in micro-batches of 64",
        "       ASHA at step 3: 3. of 3",
        "    2  cannot fit                         512.0 MiB  0.02         256",
        "       One row needs 512.0 MiB of the GPU's 384.0 MiB",
        "    3  failed                                         0.5           2",
        "       ValueError: no such loss, train.py:31",
    ]


def test_a_trial_is_shown_with_its_best_report_not_its_latest() -> None:
    worse = finished(0, reports=[Report(1, {"loss": 0.5}), Report(2, {"loss": 0.9})])
    assert rendered(trial_table([worse], "loss", "min")).splitlines()[2].split()[2] == "0.5"


def test_where_parameters_have_no_room_they_stand_below() -> None:
    wide = [
        finished(number, config={f"parameter_{index}": index + number for index in range(9)})
        for number in (0, 1)
    ]
    lines = rendered(trial_table(wide, "loss", "min")).splitlines()
    assert lines[1] == "trial  state     loss  step      seen  foretold"
    assert lines[3].startswith("       parameter_0 0, parameter_1 1,")


def test_what_is_the_same_in_every_trial_is_not_shown() -> None:
    records = [finished(number, config={"lr": 0.1 * number, "epochs": 10}) for number in (1, 2)]
    assert "epochs" not in rendered(trial_table(records, "loss", "min"))


def test_a_parameter_named_as_a_column_has_a_column_of_its_own() -> None:
    records = [finished(number, config={"step": number}) for number in (1, 2)]
    heads = rendered(trial_table(records, "loss", "min")).splitlines()[1].split()
    assert heads == ["trial", "state", "loss", "step", "seen", "foretold", "config.step"]


def test_without_a_gpu_there_are_no_columns_of_memory() -> None:
    text = rendered(trial_table([finished(0, memory=TrialMemory())], "loss", "min"))
    assert "foretold" not in text
    assert "seen" not in text


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


def test_on_a_terminal_the_table_is_painted_and_gone_at_the_end(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    stream = Terminal()
    table = begun(stream)
    table.changed(finished(0))
    assert "0  " in stream.getvalue()
    table.closed()
    assert stream.getvalue().rstrip("\n").endswith("\x1b[2K")


def test_in_ci_a_terminal_is_treated_as_a_pipe(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("CI", "true")
    stream = Terminal()
    begun(stream).changed(finished(0))
    assert stream.getvalue() == "legroom: trial 0 is the best so far: loss 0.25 with lr 0.01, batch_size 16\n"


def test_a_control_character_in_a_reason_does_not_reach_the_terminal() -> None:
    assert "\x1b" not in rendered(trial_table([failed(0, why="\x1b[31mred")], "loss", "min"))
