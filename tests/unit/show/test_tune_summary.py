"""The closing words of a search."""

from pathlib import Path

from legroom.show.common.terminal import render_to_string
from legroom.show.tune.study_summary import summary
from legroom.tuning.memory.admission import Place
from legroom.tuning.space.space import read_space
from legroom.tuning.study import Study
from legroom.tuning.trial.records import Report, TrialMemory, TrialRecord, TrialState
from legroom.units import GiB
from made_studies import failed, finished, never_fits

SPACE = read_space({"lr": {"log": [1e-4, 1e-1]}, "batch_size": [2, 16], "epochs": 3})


def told(*trials: TrialRecord, **facts: object) -> list[str]:
    about: dict[str, object] = {"metric": "loss", "mode": "min", "folder": Path("study"), "space": SPACE}
    study = Study(trials=trials, seconds=612.0, **{**about, **facts})  # type: ignore[arg-type]
    return render_to_string(*summary(study, ["legroom", "tune", "train.py:train", "space.toml"])).splitlines()


def ran(number: int, loss: float, **changes: object) -> TrialRecord:
    return finished(number, reports=[Report(1, {"loss": loss})], attempts=1, **changes)


def waiting(number: int, attempts: int = 0) -> TrialRecord:
    return TrialRecord(number=number, config={"lr": 0.1, "batch_size": 2}, attempts=attempts)


def test_the_best_is_told_without_what_was_the_same_in_every_trial() -> None:
    best = ran(0, 0.5, config={"epochs": 3, "lr": 0.01, "batch_size": 16})
    assert told(best)[0] == "Best loss 0.5, trial 0: lr 0.01, batch_size 16."


def test_what_became_of_the_trials_is_counted() -> None:
    lines = told(ran(0, 0.5), ran(1, 0.6, state=TrialState.STOPPED), failed(2), never_fits(3))
    assert lines[1:3] == [
        "3 trials in 10 min 12 s, 1 finished, 1 stopped early, 1 failed. 1 proposal can",
        "never fit and did not start.",
    ]


def test_on_gpus_it_says_that_none_was_lost() -> None:
    split = ran(0, 0.5, memory=TrialMemory(batch_size=16, micro_batch=4))
    lines = told(split, places=[Place(index=0, memory=GiB, virtual=True)])
    assert lines[1] == "1 trial in 10 min 12 s, 1 finished, 1 with a split batch, none lost to memory."


def test_after_an_interruption_what_ran_and_what_had_not_begun_are_told_apart() -> None:
    lines = told(ran(0, 0.5), waiting(1, attempts=1), waiting(2), waiting(3), interrupted=True)
    assert lines[1] == "1 trial in 10 min 12 s, 1 finished; 1 broken off, 2 not begun."


def test_an_interruption_before_any_trial_was_over_counts_none_as_done() -> None:
    lines = told(waiting(0, attempts=1), waiting(1), interrupted=True)
    assert lines == [
        "No trial had reported loss.",
        "No trial was over after 10 min 12 s; 1 broken off, 1 not begun.",
        "Interrupted. To go on:",
        "  legroom tune train.py:train space.toml --resume",
    ]


def test_of_many_trials_the_best_are_shown_best_first() -> None:
    lines = told(*(ran(number, 1.0 - number / 100) for number in range(40)))
    assert lines[3] == "Trials  the best 12 of 40"
    assert [int(line.split()[0]) for line in lines[5:17]] == list(range(39, 27, -1))


def test_what_is_lost_is_told_once_with_its_configuration() -> None:
    lines = told(failed(0), ran(1, 0.5))
    assert [line.split()[0] for line in lines if line.startswith("    ")] == ["1"]
    assert lines[lines.index("What was lost") + 1 :][:2] == [
        "  trial 0 (lr 0.5, batch_size 2): ValueError: no such loss, train.py:31",
        "  What each printed is in study/trials/NUMBER/output.txt.",
    ]


def test_what_was_lost_in_the_same_way_is_told_together() -> None:
    assert "  trials 0, 1: ValueError: no such loss, train.py:31" in told(failed(0), failed(1))


def test_a_long_reason_stays_below_its_line() -> None:
    why = "the process ended without a word, which may be said in so many words that they need two lines"
    lines = told(failed(0, why), failed(1, why))
    assert lines[-2] == "  words that they need two lines"


def test_where_the_metric_was_never_a_number_it_says_so() -> None:
    assert told(ran(0, float("nan")))[0] == "No trial reported a number for loss."
