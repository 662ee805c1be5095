"""The table of trials at 80 columns."""

from collections.abc import Sequence

from example_studies import failed, finished, never_fits
from legroom.show.common.terminal import render_to_string
from legroom.show.tune.trial_table import trial_table
from legroom.tuning.trial.records import Report, TrialMemory, TrialRecord, TrialState
from legroom.units import MiB


def table(records: list[TrialRecord], parameters: Sequence[str] = ("lr", "batch_size")) -> str:
    return render_to_string(trial_table(records, parameters, "loss", "min"))


def split(number: int) -> TrialRecord:
    memory = TrialMemory(
        predicted=350 * MiB, safe=364 * MiB, actual=355 * MiB, batch_size=256, micro_batch=64
    )
    return finished(number, state=TrialState.STOPPED, reason="ASHA at step 3: rank 3 of 3", memory=memory)


def test_a_trial_is_one_line_with_its_reason_below() -> None:
    text = table([finished(0), split(1), never_fits(2), failed(3)])
    assert text.splitlines() == [
        "trial  state       loss  step   measured  predicted    lr  batch_size",
        "    0  finished    0.25     3   55.0 MiB   64.0 MiB  0.01          16",
        "    1  stopped     0.25     3  355.0 MiB  364.0 MiB  0.01          16",
        "       in micro-batches of 64",
        "       ASHA at step 3: rank 3 of 3",
        "    2  cannot fit                         512.0 MiB  0.02         256",
        "       Needs 512.0 MiB even in micro-batches of 1; 384.0 MiB is available",
        "    3  failed                                         0.5           2",
        "       ValueError: no such loss, train.py:31",
    ]


def test_a_trial_is_shown_with_its_best_value() -> None:
    worse = finished(0, reports=[Report(1, {"loss": 0.5}), Report(2, {"loss": 0.9})])
    assert table([worse]).splitlines()[1].split()[2] == "0.5"


def test_parameters_without_space_for_columns_are_below_the_line() -> None:
    wide = [
        finished(number, config={f"parameter_{index}": index + number for index in range(9)})
        for number in (0, 1)
    ]
    lines = table(wide, parameters=list(wide[0].config)).splitlines()
    assert lines[0] == "trial  state     loss  step  measured  predicted"
    assert lines[2].startswith("       parameter_0 0, parameter_1 1,")


def test_constants_are_not_shown() -> None:
    records = [finished(number, config={"lr": 0.1 * number, "epochs": 10}) for number in (1, 2)]
    assert "epochs" not in table(records, parameters=["lr"])


def test_a_parameter_named_like_a_column_gets_a_prefix() -> None:
    records = [finished(number, config={"step": number}) for number in (1, 2)]
    heads = table(records, parameters=["step"]).splitlines()[0].split()
    assert heads == ["trial", "state", "loss", "step", "measured", "predicted", "config.step"]


def test_without_a_gpu_there_are_no_memory_columns() -> None:
    text = table([finished(0, memory=TrialMemory())])
    assert "predicted" not in text
    assert "measured" not in text


def test_a_control_character_in_a_reason_does_not_reach_the_terminal() -> None:
    assert "\x1b" not in table([failed(0, reason="\x1b[31mred")])


def test_a_trial_without_an_estimate_has_no_predicted_memory() -> None:
    alone = finished(0, memory=TrialMemory(safe=96 * MiB, actual=20 * MiB))
    assert table([alone]).splitlines()[0].split() == [
        "trial",
        "state",
        "loss",
        "step",
        "measured",
        "lr",
        "batch_size",
    ]
