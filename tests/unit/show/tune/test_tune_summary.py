"""The summary at the end of a search."""

from pathlib import Path

from example_studies import failed, finished, never_fits
from legroom.show.common.terminal import render_to_string
from legroom.show.tune.study_summary import ShownStudy, summary
from legroom.tuning.memory.admission import TrialGpu
from legroom.tuning.space.space import read_space
from legroom.tuning.study import Study
from legroom.tuning.trial.records import Report, TrialMemory, TrialRecord, TrialState
from legroom.units import GiB

SPACE = read_space({"lr": {"log": [1e-4, 1e-1]}, "batch_size": [2, 16], "epochs": 3})


def summary_of(*trials: TrialRecord, **facts: object) -> list[str]:
    about: dict[str, object] = {"metric": "loss", "mode": "min", "folder": Path("study"), "space": SPACE}
    study = Study(trials=trials, seconds=612.0, **{**about, **facts})  # type: ignore[arg-type]
    return render_to_string(*summary(study, ["legroom", "tune", "train.py:train", "space.toml"])).splitlines()


def ran(number: int, loss: float, **changes: object) -> TrialRecord:
    return finished(number, reports=[Report(1, {"loss": loss})], attempts=1, **changes)


def waiting(number: int, attempts: int = 0) -> TrialRecord:
    return TrialRecord(number=number, config={"lr": 0.1, "batch_size": 2}, attempts=attempts)


def test_constants_are_omitted_from_the_best_configuration() -> None:
    best = ran(0, 0.5, config={"epochs": 3, "lr": 0.01, "batch_size": 16})
    assert summary_of(best)[0] == "Best loss 0.5, trial 0: lr 0.01, batch_size 16."


def test_trials_are_counted_by_state() -> None:
    lines = summary_of(ran(0, 0.5), ran(1, 0.6, state=TrialState.STOPPED), failed(2), never_fits(3))
    assert lines[1:3] == [
        "3 trials in 10 min 12 s, 1 finished, 1 stopped early, 1 failed. 1 configuration",
        "can never fit, and was not started.",
    ]


def test_on_gpus_the_summary_counts_out_of_memory_trials() -> None:
    split = ran(0, 0.5, memory=TrialMemory(batch_size=16, micro_batch=4))
    gpus = [TrialGpu(index=0, memory=GiB, virtual=True)]
    both = summary_of(split, ran(1, 0.6), gpus=gpus)
    assert both[1] == "2 trials in 10 min 12 s, 2 finished, 1 in micro-batches, none out of memory."
    assert summary_of(split, gpus=gpus)[1] == "1 trial in 10 min 12 s, 1 finished, 1 in micro-batches."


def test_after_an_interruption_interrupted_and_not_started_trials_are_counted() -> None:
    lines = summary_of(ran(0, 0.5), waiting(1, attempts=1), waiting(2), waiting(3), interrupted=True)
    assert lines[1] == "1 trial in 10 min 12 s, 1 finished; 1 interrupted, 2 not started."


def test_an_interruption_before_any_trial_finished() -> None:
    lines = summary_of(waiting(0, attempts=1), waiting(1), interrupted=True)
    assert lines == [
        "No trial had reported loss.",
        "No trial finished in 10 min 12 s; 1 interrupted, 1 not started.",
        "Interrupted. To continue:",
        "  legroom tune train.py:train space.toml --resume",
    ]


def test_only_the_best_of_many_trials_are_shown() -> None:
    lines = summary_of(*(ran(number, 1.0 - number / 100) for number in range(40)))
    assert lines[3] == "Trials  the best 12 of 40"
    assert [int(line.split()[0]) for line in lines[5:17]] == list(range(39, 27, -1))


def test_a_failed_trial_is_listed_with_its_configuration() -> None:
    lines = summary_of(failed(0), ran(1, 0.5))
    assert [line.split()[0] for line in lines if line.startswith("    ")] == ["1"]
    assert lines[lines.index("Failed trials") + 1 :][:2] == [
        "  trial 0 (lr 0.5, batch_size 2): ValueError: no such loss, train.py:31",
        "  The output of each trial is in study/trials/NUMBER/output.txt.",
    ]


def test_failures_with_the_same_reason_are_grouped() -> None:
    assert "  trials 0, 1: ValueError: no such loss, train.py:31" in summary_of(failed(0), failed(1))


def test_a_long_reason_is_indented() -> None:
    reason = "The process exited without a result, which is described here in so many words that they need two lines"
    lines = summary_of(failed(0, reason), failed(1, reason))
    assert lines[-2] == "  so many words that they need two lines"


def test_a_metric_that_was_never_a_number_is_mentioned() -> None:
    assert summary_of(ran(0, float("nan")))[0] == "No trial reported a number for loss."


def test_the_best_configuration_is_shown_with_all_digits() -> None:
    lines = summary_of(ran(0, 1 / 3, config={"lr": 0.008144886973076106, "batch_size": 16}))
    at = lines.index("Best configuration  TOML; in Python: study.best_config")
    assert lines[at + 1 : at + 4] == [
        "  # loss 0.3333333333333333",
        "  lr = 0.008144886973076106",
        "  batch_size = 16",
    ]


def test_a_study_has_a_text_and_an_escaped_html_representation() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    space = read_space({hostile: {"log": [1e-4, 1e-1]}})
    trials = (ran(0, 0.5, config={hostile: 0.01}), failed(1, reason=f"ValueError: {hostile}"))
    study = ShownStudy(
        metric="loss", mode="min", folder=Path("study"), space=space, trials=trials, seconds=612.0
    )
    assert str(study).startswith("Best loss 0.5, trial 0: ")
    assert repr(study).startswith("<Study: ")
    html = study._repr_html_()
    assert html.count("<table") == 1
    assert "&lt;script&gt;" in html
    assert "ValueError" in html
    for text in (str(study), html):
        assert "\x1b" not in text
    assert "<script" not in html
