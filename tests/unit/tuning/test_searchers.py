"""Searchers: the same after an interruption, and what they learn from what can never fit."""

import pytest

from legroom.errors import UsageError
from legroom.tuning.memory.admission import NO_GPU, Admission, Fit, Verdict
from legroom.tuning.search.bayes import ENOUGH, BayesSearcher
from legroom.tuning.search.penalties import Penalties
from legroom.tuning.search.searchers import Result, check_search, make_searcher
from legroom.tuning.space.space import Config, read_space

SPACE = read_space({"x": {"uniform": [0.0, 1.0]}, "n": {"int_log2": [0, 6]}, "fixed": "same"})
WITH_CHOICES = read_space({"x": {"uniform": [0.0, 1.0]}, "b": [2, 4], "m": {"int": [1, 3], "when": {"b": 2}}})


def value_of(config: Config) -> float:
    return (config["x"] - 0.3) ** 2


@pytest.mark.parametrize("search", ["random", "optuna", "hyperopt", "bayes"])
def test_a_searcher_that_was_asked_and_told_all_again_goes_on_the_same(search: str) -> None:
    first = make_searcher(search, SPACE, "min", 7)
    told: list[tuple[int, Config, Result]] = []
    for number in range(14):
        config = first.propose(number)
        assert config is not None
        result = Result(shortage=0.5) if config["n"] > 16 else Result(value_of(config))
        first.learn(number, config, result)
        told.append((number, config, result))
    again = make_searcher(search, SPACE, "min", 7)
    for number, config, result in told:
        again.propose(number)
        again.learn(number, config, result)
    mine, other = first.propose(14), again.propose(14)
    assert mine is not None
    assert other is not None
    assert mine["n"] == other["n"]
    assert mine["x"] == pytest.approx(other["x"], abs=1e-6)


@pytest.mark.parametrize("search", ["optuna", "hyperopt", "bayes"])
def test_a_configuration_that_was_moved_meanwhile_is_learned_as_it_is_now(search: str) -> None:
    """Every other one was moved to where all is well, the rest to where nothing is: what comes next is proposed in the better place."""
    searcher = make_searcher(search, read_space({"x": {"uniform": [0.0, 1.0]}}), "min", 0)
    for number in range(20):
        searcher.propose(number)
        place = 0.9 if number % 2 else 0.2
        searcher.learn(number, {"x": place + 0.005 * number}, Result(1.0 - place))
    config = searcher.propose(20)
    assert config is not None
    assert config["x"] > 0.7


@pytest.mark.parametrize("search", ["random", "optuna", "hyperopt", "bayes"])
def test_proposals_lie_in_the_space(search: str) -> None:
    searcher = make_searcher(search, SPACE, "max", 3)
    for number in range(12):
        config = searcher.propose(number)
        assert config is not None
        assert 0 <= config["x"] <= 1
        assert config["n"] in {1, 2, 4, 8, 16, 32, 64}
        assert config["fixed"] == "same"
        searcher.learn(number, config, Result(value_of(config)))


@pytest.mark.parametrize("search", ["optuna", "hyperopt"])
def test_conditions_are_observed_by_searchers_that_can(search: str) -> None:
    searcher = make_searcher(search, WITH_CHOICES, "min", 1)
    for number in range(14):
        config = searcher.propose(number)
        assert config is not None
        assert ("m" in config) == (config["b"] == 2)
        searcher.learn(number, config, Result(config["x"]))


@pytest.mark.parametrize("search", ["optuna", "hyperopt", "bayes"])
def test_what_never_fits_is_proposed_less_often_once_it_is_told(search: str) -> None:
    """Half of the space never fits, and the best that fits is at its edge."""

    def proposals_that_fit(tells: bool) -> int:
        searcher = make_searcher(
            search, read_space({"x": {"uniform": [0.0, 1.0]}, "y": {"uniform": [0.0, 1.0]}}), "min", 0
        )
        count = 0
        for number in range(30):
            config = searcher.propose(number)
            assert config is not None
            x, y = config["x"], config["y"]
            if x <= 0.5:
                searcher.learn(number, config, Result(1 - x + (y - 0.5) ** 2))
            else:
                searcher.learn(number, config, Result(shortage=x - 0.5) if tells else Result())
            count += x <= 0.5 and number >= 12
        return count

    assert proposals_that_fit(tells=True) > proposals_that_fit(tells=False)


def admitted(size: int, *, split: bool = False) -> Admission:
    fit = Fit(predicted=size, safe=size, micro_batch=1 if split else None)
    return Admission(verdict=Verdict.SPLIT if split else Verdict.FITS, fits={0: fit})


def drawn(count: int, seed: int = 0) -> tuple[BayesSearcher, list[Config]]:
    """A Bayesian search that was asked so often and told nothing."""
    space = read_space({"x": {"uniform": [0.0, 1.0]}, "y": {"uniform": [0.0, 1.0]}})
    searcher = BayesSearcher(space, "min", seed)
    return searcher, [searcher.propose(number) or {} for number in range(count)]


def test_draws_of_bayes_keep_their_order_without_gpus() -> None:
    searcher, _ = drawn(4)
    assert searcher.order({3: NO_GPU, 0: NO_GPU, 2: NO_GPU}) == [0, 2, 3]


def test_small_draws_of_bayes_go_first_and_split_ones_last_before_there_are_results() -> None:
    searcher, _ = drawn(4)
    waiting = {0: admitted(9), 1: admitted(1, split=True), 2: admitted(5), 3: admitted(7)}
    assert searcher.order(waiting) == [2, 3, 0, 1]


def test_with_a_few_results_the_draw_that_promises_most_goes_first_whatever_its_size() -> None:
    searcher, configs = drawn(10)
    searcher.learn(0, configs[0], Result(shortage=0.5))
    by_place = sorted(range(1, 10), key=lambda number: configs[number]["x"])
    waiting = {number: admitted(1 + index) for index, number in enumerate([by_place[0], by_place[-1]])}
    for number in set(range(1, 10)) - set(waiting):
        searcher.learn(number, configs[number], Result(1.0 - configs[number]["x"], seconds=1.0))
    assert searcher.order(waiting) == [by_place[-1], by_place[0]]


def test_a_draw_that_must_be_split_waits_for_whole_ones_whatever_it_promises() -> None:
    searcher, configs = drawn(10)
    searcher.learn(0, configs[0], Result(shortage=0.5))
    by_place = sorted(range(1, 10), key=lambda number: configs[number]["x"])
    waiting = {by_place[0]: admitted(1), by_place[-1]: admitted(1, split=True)}
    for number in set(range(1, 10)) - set(waiting):
        searcher.learn(number, configs[number], Result(1.0 - configs[number]["x"], seconds=1.0))
    assert searcher.order(waiting) == [by_place[0], by_place[-1]]


def test_bayes_is_judged_by_the_best_value_of_a_trial_and_not_by_its_last() -> None:
    searcher, configs = drawn(10)
    searcher.learn(0, configs[0], Result(shortage=0.5))
    by_place = sorted(range(1, 10), key=lambda number: configs[number]["x"])
    waiting = {number: admitted(1) for number in (by_place[0], by_place[-1])}
    for number in set(range(1, 10)) - set(waiting):
        loss = configs[number]["x"]
        searcher.learn(number, configs[number], Result(1.0 - loss, best=loss - 1.0, seconds=1.0))
    assert searcher.order(waiting) == [by_place[0], by_place[-1]]


def test_bayes_proposes_by_what_it_learned_as_soon_as_its_draws_are_made_and_a_few_have_ended() -> None:
    """Where all that ran was the better the farther right, and half of it never fits."""
    searcher, configs = drawn(10)
    ran = [number for number in range(10) if configs[number]["x"] <= 0.5][:ENOUGH]
    for number in range(10):
        if configs[number]["x"] > 0.5:
            searcher.learn(number, configs[number], Result(shortage=configs[number]["x"] - 0.5))
        elif number in ran:
            searcher.learn(number, configs[number], Result(1.0 - configs[number]["x"]))
    config = searcher.propose(10)
    assert config is not None
    assert 0.5 * max(configs[number]["x"] for number in ran) < config["x"] < 0.75


def test_bayes_goes_by_what_it_learned_though_some_of_its_draws_have_not_ended() -> None:
    """One that is held back, or failed, must not make it draw at random until all have."""
    _, at_random = drawn(11)
    searcher, configs = drawn(10)
    for number in range(ENOUGH - 1):
        searcher.learn(number, configs[number], Result(configs[number]["x"]))
    searcher.learn(9, configs[9], Result(configs[9]["x"]))
    assert searcher.propose(10) != at_random[10]


def test_grid_gives_each_configuration_once_then_none() -> None:
    searcher = make_searcher("grid", read_space({"b": [2, 4], "n": {"int": [1, 2]}}), "min", 0)
    configs = [searcher.propose(number) for number in range(4)]
    assert configs == [{"b": 2, "n": 1}, {"b": 4, "n": 1}, {"b": 2, "n": 2}, {"b": 4, "n": 2}]
    assert searcher.propose(4) is None


def test_a_penalty_is_worse_than_the_worst_and_grows_with_the_shortage() -> None:
    penalties = Penalties("max")
    for value in (0.2, 0.9):
        penalties.learn(Result(value))
    little, much = penalties.loss(Result(shortage=0.1)), penalties.loss(Result(shortage=0.9))
    assert -0.9 < -0.2 < little < much


def test_an_unknown_search_is_told_with_those_that_are_known() -> None:
    with pytest.raises(
        UsageError, match="the search 'tpe' is not known: choose random, grid, bayes, hyperopt or optuna"
    ):
        check_search("tpe", SPACE)


def test_bayes_with_choices_says_what_to_use_instead() -> None:
    with pytest.raises(UsageError, match="b is a list of choices: use the search optuna or hyperopt"):
        check_search("bayes", WITH_CHOICES)


def test_bayes_with_conditions_says_what_to_use_instead() -> None:
    space = read_space(
        {"x": {"uniform": [0, 1]}, "n": {"int": [1, 2]}, "y": {"uniform": [0, 1], "when": {"n": 1}}}
    )
    with pytest.raises(UsageError, match="conditions"):
        check_search("bayes", space)
