"""Schedulers: which trials continue, stop, pause or copy others."""

import math

import pytest

from legroom.errors import UsageError
from legroom.tuning.schedule.population import PopulationBasedTraining
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.schedule.schedulers import Asha, MedianStopping, SchedulerOptions, make_scheduler
from legroom.tuning.space.space import read_space

SPACE = read_space({"lr": {"log": [1e-4, 1e-1]}})


def test_asha_stops_the_worse_half_at_a_rung_only() -> None:
    asha = Asha("min", grace_period=2, reduction_factor=2)
    assert [asha.reported(n, {}, 1, 9.0).action for n in range(4)] == [Action.CONTINUE] * 4
    actions = [asha.reported(n, {}, 2, value).action for n, value in enumerate([0.1, 0.5, 0.3, 0.05])]
    assert actions == [Action.CONTINUE, Action.STOP, Action.STOP, Action.CONTINUE]
    assert asha.reported(3, {}, 3, 99.0).action is Action.CONTINUE


def test_with_mode_max_asha_continues_the_highest() -> None:
    asha = Asha("max")
    assert asha.reported(0, {}, 1, 0.5).action is Action.CONTINUE
    assert asha.reported(1, {}, 1, 0.4).action is Action.STOP
    assert asha.reported(2, {}, 1, 0.6).action is Action.CONTINUE


def test_asha_continues_a_third_with_a_reduction_factor_of_three() -> None:
    asha = Asha("min", reduction_factor=3)
    for number in range(30):  # each is the best so far
        assert asha.reported(number, {}, 1, 100.0 - number).action is Action.CONTINUE
    assert asha.reported(30, {}, 1, 100.0 - 20.5).action is Action.CONTINUE
    assert asha.reported(31, {}, 1, 100.0 - 19.5).action is Action.STOP


def test_asha_stops_at_max_steps() -> None:
    assert Asha("min", max_steps=3).reported(0, {}, 3, 0.0).action is Action.STOP


def test_an_infinite_value_ranks_last() -> None:
    asha = Asha("max")
    asha.reported(0, {}, 1, 0.5)
    assert asha.reported(1, {}, 1, math.inf).action is Action.STOP


def test_the_same_reports_lead_to_the_same_decisions() -> None:
    reports = [(n, step, ((n * 7 + step * 3) % 11) / 11) for step in (1, 2, 4) for n in range(6)]
    decide = [
        [asha.reported(n, {}, step, value) for n, step, value in reports]
        for asha in (Asha("min"), Asha("min"))
    ]
    assert decide[0] == decide[1]


def test_median_stopping_stops_trials_worse_than_the_median() -> None:
    median = MedianStopping("min", min_samples=3)
    for number, value in enumerate([0.1, 0.2, 0.3]):
        assert median.reported(number, {}, 1, value).action is Action.CONTINUE
    assert median.reported(3, {}, 1, 0.9).action is Action.STOP
    assert median.reported(4, {}, 1, 0.15).action is Action.CONTINUE


def test_the_worst_trial_copies_the_best_with_a_perturbed_configuration() -> None:
    population = PopulationBasedTraining(SPACE, "min", seed=0, interval=2)
    for number in range(4):
        population.reported(number, {"lr": 1e-3}, 1, 1.0 + number)
    for number in range(3):
        population.reported(number, {"lr": 1e-3}, 2, 1.0 + number)
    decision = population.reported(3, {"lr": 1e-2}, 2, 4.0)
    assert decision.action is Action.EXPLOIT
    assert decision.parent == 0
    assert decision.config is not None
    assert 1e-4 <= decision.config["lr"] <= 1e-1
    assert decision.config["lr"] != 1e-2


def test_integers_and_choices_are_copied_unchanged() -> None:
    space = read_space({"lr": {"log": [1e-4, 1e-1]}, "width": {"int": [1, 99]}, "kind": ["a", "b"]})
    for seed in range(20):
        population = PopulationBasedTraining(space, "min", seed=seed)
        population.reported(0, {"lr": 1e-3, "width": 7, "kind": "b"}, 1, 1.0)
        decision = population.reported(1, {"lr": 1e-2, "width": 50, "kind": "a"}, 1, 2.0)
        assert decision.config is not None
        assert (decision.config["width"], decision.config["kind"]) == (7, "b")


def test_a_population_without_float_ranges_is_rejected() -> None:
    with pytest.raises(
        UsageError, match="perturbs the values of float ranges, but the space has no float range"
    ):
        PopulationBasedTraining(read_space({"width": [1, 2]}), "min", seed=0)


def test_a_trial_ahead_of_the_population_pauses() -> None:
    population = PopulationBasedTraining(SPACE, "min", seed=0)
    population.reported(0, {"lr": 1e-3}, 1, 1.0)
    population.reported(1, {"lr": 1e-3}, 1, 2.0)
    assert population.reported(0, {"lr": 1e-3}, 2, 0.9).action is Action.PAUSE
    population.ended(1)
    assert population.reported(0, {"lr": 1e-3}, 3, 0.8).action is Action.CONTINUE


def test_an_unknown_scheduler_is_an_error() -> None:
    with pytest.raises(UsageError, match="Choose `asha`, `median`, `pbt` or `none`"):
        make_scheduler("hyperband", SPACE, "min", 0, SchedulerOptions())


def test_a_reduction_factor_of_one_is_rejected() -> None:
    with pytest.raises(UsageError, match="above 1"):
        Asha("min", reduction_factor=1)
