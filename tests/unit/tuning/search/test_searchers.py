"""Searchers: replay after an interruption, and learning from configurations that never fit."""

import pytest
from optuna.samplers import GridSampler

from legroom.errors import UsageError
from legroom.tuning.memory.admission import NO_GPU, Admission, AdmissionVerdict, Fit
from legroom.tuning.search.bayes import MIN_RESULTS, BayesSearcher
from legroom.tuning.search.penalties import Penalties
from legroom.tuning.search.protocol import Result
from legroom.tuning.search.searchers import check_search, make_searcher, optuna_sampler
from legroom.tuning.space.space import Config, read_space

SPACE = read_space({"x": {"uniform": [0.0, 1.0]}, "n": {"int_log2": [0, 6]}, "fixed": "same"})
WITH_CHOICES = read_space({"x": {"uniform": [0.0, 1.0]}, "b": [2, 4], "m": {"int": [1, 3], "when": {"b": 2}}})


def value_of(config: Config) -> float:
    return (config["x"] - 0.3) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("search", ["random", "optuna", "hyperopt", "bayes"])
def test_a_replayed_searcher_continues_with_the_same_proposals(search: str) -> None:
    first = make_searcher(search, SPACE, "min", 7)
    results: list[tuple[int, Config, Result]] = []
    for number in range(14):
        config = first.propose(number)
        assert config is not None
        result = Result(shortage=0.5) if config["n"] > 16 else Result(value_of(config))
        first.learn(number, config, result)
        results.append((number, config, result))
    again = make_searcher(search, SPACE, "min", 7)
    for number, config, result in results:
        again.propose(number)
        again.learn(number, config, result)
    mine, other = first.propose(14), again.propose(14)
    assert mine is not None
    assert other is not None
    assert mine["n"] == other["n"]
    assert mine["x"] == pytest.approx(other["x"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["optuna", "hyperopt", "bayes"])
def test_a_changed_configuration_is_learned_with_its_new_values(search: str) -> None:
    """Half of the configurations are changed to a good region and half to a bad region. The next proposal is in the
    good region."""
    searcher = make_searcher(search, read_space({"x": {"uniform": [0.0, 1.0]}}), "min", 0)
    for number in range(20):
        searcher.propose(number)
        x = 0.9 if number % 2 else 0.2
        searcher.learn(number, {"x": x + 0.005 * number}, Result(1.0 - x))
    config = searcher.propose(20)
    assert config is not None
    assert config["x"] > 0.7


@pytest.mark.parametrize("search", ["random", "optuna", "hyperopt", "bayes"])
def test_proposals_are_in_the_space(search: str) -> None:
    searcher = make_searcher(search, SPACE, "max", 3)
    for number in range(12):
        config = searcher.propose(number)
        assert config is not None
        assert 0 <= config["x"] <= 1
        assert config["n"] in {1, 2, 4, 8, 16, 32, 64}
        assert config["fixed"] == "same"
        searcher.learn(number, config, Result(value_of(config)))


@pytest.mark.parametrize("search", ["optuna", "hyperopt"])
def test_conditions_are_respected(search: str) -> None:
    searcher = make_searcher(search, WITH_CHOICES, "min", 1)
    for number in range(14):
        config = searcher.propose(number)
        assert config is not None
        assert ("m" in config) == (config["b"] == 2)
        searcher.learn(number, config, Result(config["x"]))


@pytest.mark.slow
@pytest.mark.parametrize("search", ["optuna", "hyperopt", "bayes"])
def test_learning_from_misfits_reduces_their_number(search: str) -> None:
    """Half of the space never fits, and the optimum is at the edge of that half."""

    def proposals_that_fit(reports_shortage: bool) -> int:
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
                searcher.learn(number, config, Result(shortage=x - 0.5) if reports_shortage else Result())
            count += x <= 0.5 and number >= 12
        return count

    assert proposals_that_fit(reports_shortage=True) > proposals_that_fit(reports_shortage=False)


def admission(size: int, *, split: bool = False) -> Admission:
    fit = Fit(predicted=size, safe=size, micro_batch=1 if split else None)
    return Admission(verdict=AdmissionVerdict.SPLIT if split else AdmissionVerdict.FITS, fits={0: fit})


def proposed(count: int, seed: int = 0) -> tuple[BayesSearcher, list[Config]]:
    """Return a Bayesian searcher after `count` proposals, without results."""
    space = read_space({"x": {"uniform": [0.0, 1.0]}, "y": {"uniform": [0.0, 1.0]}})
    searcher = BayesSearcher(space, "min", seed)
    return searcher, [searcher.propose(number) or {} for number in range(count)]


def test_without_gpus_random_points_start_in_order() -> None:
    searcher, _ = proposed(4)
    assert searcher.start_order({3: NO_GPU, 0: NO_GPU, 2: NO_GPU}) == [0, 2, 3]


def test_without_results_small_points_start_first_and_split_ones_last() -> None:
    searcher, _ = proposed(4)
    waiting = {0: admission(9), 1: admission(1, split=True), 2: admission(5), 3: admission(7)}
    assert searcher.start_order(waiting) == [2, 3, 0, 1]


def test_with_results_the_most_promising_point_starts_first() -> None:
    searcher, configs = proposed(10)
    searcher.learn(0, configs[0], Result(shortage=0.5))
    by_x = sorted(range(1, 10), key=lambda number: configs[number]["x"])
    waiting = {number: admission(1 + index) for index, number in enumerate([by_x[0], by_x[-1]])}
    for number in set(range(1, 10)) - set(waiting):
        searcher.learn(number, configs[number], Result(1.0 - configs[number]["x"], seconds=1.0))
    assert searcher.start_order(waiting) == [by_x[-1], by_x[0]]


def test_a_split_point_starts_after_unsplit_ones() -> None:
    searcher, configs = proposed(10)
    searcher.learn(0, configs[0], Result(shortage=0.5))
    by_x = sorted(range(1, 10), key=lambda number: configs[number]["x"])
    waiting = {by_x[0]: admission(1), by_x[-1]: admission(1, split=True)}
    for number in set(range(1, 10)) - set(waiting):
        searcher.learn(number, configs[number], Result(1.0 - configs[number]["x"], seconds=1.0))
    assert searcher.start_order(waiting) == [by_x[0], by_x[-1]]


def test_bayes_learns_the_best_value_of_a_trial() -> None:
    searcher, configs = proposed(10)
    searcher.learn(0, configs[0], Result(shortage=0.5))
    by_x = sorted(range(1, 10), key=lambda number: configs[number]["x"])
    waiting = {number: admission(1) for number in (by_x[0], by_x[-1])}
    for number in set(range(1, 10)) - set(waiting):
        loss = configs[number]["x"]
        searcher.learn(number, configs[number], Result(1.0 - loss, best=loss - 1.0, seconds=1.0))
    assert searcher.start_order(waiting) == [by_x[0], by_x[-1]]


def test_bayes_uses_its_model_after_a_few_results() -> None:
    """The loss decreases with `x`, but configurations with `x` above 0.5 never fit."""
    searcher, configs = proposed(10)
    ran = [number for number in range(10) if configs[number]["x"] <= 0.5][:MIN_RESULTS]
    for number in range(10):
        if configs[number]["x"] > 0.5:
            searcher.learn(number, configs[number], Result(shortage=configs[number]["x"] - 0.5))
        elif number in ran:
            searcher.learn(number, configs[number], Result(1.0 - configs[number]["x"]))
    config = searcher.propose(10)
    assert config is not None
    assert 0.5 * max(configs[number]["x"] for number in ran) < config["x"] < 0.75


def test_bayes_uses_its_model_before_all_random_points_have_ended() -> None:
    """A delayed or failed trial must not cause further random proposals."""
    _, at_random = proposed(11)
    searcher, configs = proposed(10)
    for number in range(MIN_RESULTS - 1):
        searcher.learn(number, configs[number], Result(configs[number]["x"]))
    searcher.learn(9, configs[9], Result(configs[9]["x"]))
    assert searcher.propose(10) != at_random[10]


def test_a_grid_proposes_each_configuration_once() -> None:
    searcher = make_searcher("grid", read_space({"b": [2, 4], "n": {"int": [1, 2]}}), "min", 0)
    configs = [searcher.propose(number) for number in range(4)]
    assert configs == [{"b": 2, "n": 1}, {"b": 4, "n": 1}, {"b": 2, "n": 2}, {"b": 4, "n": 2}]
    assert searcher.propose(4) is None


def test_a_penalty_exceeds_the_worst_loss_and_grows_with_the_shortage() -> None:
    penalties = Penalties("max")
    for value in (0.2, 0.9):
        penalties.learn(Result(value))
    little, much = penalties.loss(Result(shortage=0.1)), penalties.loss(Result(shortage=0.9))
    assert -0.9 < -0.2 < little < much


def test_a_sampler_of_the_user_proposes_the_configurations() -> None:
    sampler = GridSampler({"x": [1, 5, 7]}, seed=0)
    searcher = make_searcher("optuna", read_space({"x": {"int": [0, 9]}}), "min", 0, sampler=sampler)
    proposed = []
    for number in range(3):
        config = searcher.propose(number)
        assert config is not None
        proposed.append(config["x"])
        searcher.learn(number, config, Result(1.0))
    assert sorted(proposed) == [1, 5, 7]
    assert searcher.propose(3) is None


def test_a_sampler_that_does_not_support_the_space_is_a_usage_error() -> None:
    searcher = make_searcher(
        "optuna", read_space({"y": {"int": [0, 9]}}), "min", 0, sampler=GridSampler({"x": [1]})
    )
    with pytest.raises(UsageError, match="GridSampler cannot propose a configuration: .*y"):
        searcher.propose(0)


def test_only_objects_of_optuna_are_samplers() -> None:
    sampler = GridSampler({"x": [1]})
    assert optuna_sampler(sampler) is sampler
    assert optuna_sampler("optuna") is None


def test_the_error_for_an_unknown_search_lists_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="Unknown search `tpe`. Choose `random`, `grid`, `bayes`, `hyperopt` or `optuna`"
    ):
        check_search("tpe", SPACE)


def test_bayes_rejects_choices_with_an_alternative() -> None:
    with pytest.raises(UsageError, match="b is a list of choices. Use the search `optuna` or `hyperopt`"):
        check_search("bayes", WITH_CHOICES)


def test_bayes_rejects_conditions() -> None:
    space = read_space(
        {"x": {"uniform": [0, 1]}, "n": {"int": [1, 2]}, "y": {"uniform": [0, 1], "when": {"n": 1}}}
    )
    with pytest.raises(UsageError, match="conditions"):
        check_search("bayes", space)
