"""Schedulers: who goes on, who stops, who takes over."""

import math

import pytest

from legroom.errors import UsageError
from legroom.tuning.schedule.population import Population
from legroom.tuning.schedule.schedulers import Action, Asha, Median, SchedulerOptions, make_scheduler
from legroom.tuning.space.space import read_space

SPACE = read_space({"lr": {"log": [1e-4, 1e-1]}})


def test_asha_stops_the_worse_half_at_a_rung_and_no_one_between_rungs() -> None:
    asha = Asha("min", grace=2, reduction=2)
    assert [asha.reported(n, {}, 1, 9.0).action for n in range(4)] == [Action.GO_ON] * 4
    actions = [asha.reported(n, {}, 2, value).action for n, value in enumerate([0.1, 0.5, 0.3, 0.05])]
    assert actions == [Action.GO_ON, Action.STOP, Action.STOP, Action.GO_ON]
    assert asha.reported(3, {}, 3, 99.0).action is Action.GO_ON


def test_asha_of_a_metric_to_be_high_keeps_the_high_ones() -> None:
    asha = Asha("max")
    assert asha.reported(0, {}, 1, 0.5).action is Action.GO_ON
    assert asha.reported(1, {}, 1, 0.4).action is Action.STOP
    assert asha.reported(2, {}, 1, 0.6).action is Action.GO_ON


def test_asha_keeps_a_third_with_a_reduction_of_three() -> None:
    asha = Asha("min", reduction=3)
    for number in range(30):  # ever better ones: each is the best so far
        assert asha.reported(number, {}, 1, 100.0 - number).action is Action.GO_ON
    assert asha.reported(30, {}, 1, 100.0 - 20.5).action is Action.GO_ON
    assert asha.reported(31, {}, 1, 100.0 - 19.5).action is Action.STOP


def test_asha_ends_at_the_most_steps() -> None:
    assert Asha("min", most_steps=3).reported(0, {}, 3, 0.0).action is Action.STOP


def test_a_value_that_is_infinite_ranks_last() -> None:
    asha = Asha("max")
    asha.reported(0, {}, 1, 0.5)
    assert asha.reported(1, {}, 1, math.inf).action is Action.STOP


def test_told_the_same_again_a_scheduler_decides_the_same() -> None:
    reports = [(n, step, ((n * 7 + step * 3) % 11) / 11) for step in (1, 2, 4) for n in range(6)]
    decide = [
        [asha.reported(n, {}, step, value) for n, step, value in reports]
        for asha in (Asha("min"), Asha("min"))
    ]
    assert decide[0] == decide[1]


def test_the_median_rule_stops_what_is_worse_than_the_median_of_the_others() -> None:
    median = Median("min", fewest=3)
    for number, value in enumerate([0.1, 0.2, 0.3]):
        assert median.reported(number, {}, 1, value).action is Action.GO_ON
    assert median.reported(3, {}, 1, 0.9).action is Action.STOP
    assert median.reported(4, {}, 1, 0.15).action is Action.GO_ON


def test_a_laggard_of_a_population_takes_over_the_best_with_a_changed_configuration() -> None:
    population = Population(SPACE, "min", seed=0, interval=2)
    for number in range(4):
        population.reported(number, {"lr": 1e-3}, 1, 1.0 + number)
    for number in range(3):
        population.reported(number, {"lr": 1e-3}, 2, 1.0 + number)
    decision = population.reported(3, {"lr": 1e-2}, 2, 4.0)
    assert decision.action is Action.TAKE_OVER
    assert decision.parent == 0
    assert decision.config is not None
    assert 1e-4 <= decision.config["lr"] <= 1e-1
    assert decision.config["lr"] != 1e-2


def test_what_weights_may_have_their_shapes_by_comes_along_with_them_unchanged() -> None:
    space = read_space({"lr": {"log": [1e-4, 1e-1]}, "width": {"int": [1, 99]}, "kind": ["a", "b"]})
    for seed in range(20):
        population = Population(space, "min", seed=seed)
        population.reported(0, {"lr": 1e-3, "width": 7, "kind": "b"}, 1, 1.0)
        decision = population.reported(1, {"lr": 1e-2, "width": 50, "kind": "a"}, 1, 2.0)
        assert decision.config is not None
        assert (decision.config["width"], decision.config["kind"]) == (7, "b")


def test_a_population_without_a_range_to_move_is_refused() -> None:
    with pytest.raises(UsageError, match="moves ranges of floats, and the space has none"):
        Population(read_space({"width": [1, 2]}), "min", seed=0)


def test_who_is_ahead_of_a_population_waits_for_the_others() -> None:
    population = Population(SPACE, "min", seed=0)
    population.reported(0, {"lr": 1e-3}, 1, 1.0)
    population.reported(1, {"lr": 1e-3}, 1, 2.0)
    assert population.reported(0, {"lr": 1e-3}, 2, 0.9).action is Action.PAUSE
    population.ended(1)
    assert population.reported(0, {"lr": 1e-3}, 3, 0.8).action is Action.GO_ON


def test_an_unknown_scheduler_is_told() -> None:
    with pytest.raises(UsageError, match="choose asha, median, pbt"):
        make_scheduler("hyperband", SPACE, "min", 0, SchedulerOptions())


def test_asha_without_a_reduction_is_refused() -> None:
    with pytest.raises(UsageError, match="above 1"):
        Asha("min", reduction=1)
