"""With the same seed and results, Legroom's searchers propose the same configurations as Ray Tune's."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from legroom.tuning.search.protocol import Result
from legroom.tuning.search.searchers import make_searcher
from legroom.tuning.space.space import Config, read_space

pytest.importorskip("ray.tune")

from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search import Searcher as RaySearcher
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.bayesopt import BayesOptSearch
from ray.tune.search.hyperopt import HyperOptSearch
from ray.tune.search.optuna import OptunaSearch

pytestmark = pytest.mark.ray

WRITTEN = {
    "units": {"int": [1, 300]},
    "lr": {"log": [1e-4, 1e-1]},
    "dropout": {"uniform": [0.0, 0.5]},
    "kind": ["sgd", "adam", "lion"],
    "width": {"int_log": [4, 500]},
    "clip": {"uniform": [0.0, 2.0], "step": 0.25},
}
SAME_IN_RAY = {
    "units": tune.randint(1, 301),  # Ray excludes the upper end
    "lr": tune.loguniform(1e-4, 1e-1),
    "dropout": tune.uniform(0.0, 0.5),
    "kind": tune.choice(["sgd", "adam", "lion"]),
    "width": tune.lograndint(4, 501),
    "clip": tune.quniform(0.0, 2.0, 0.25),
}
FLOATS = {"lr": {"uniform": [0.1, 0.3]}, "dropout": {"uniform": [0.0, 5.0]}}
SAME_FLOATS_IN_RAY = {"lr": tune.uniform(0.1, 0.3), "dropout": tune.uniform(0.0, 5.0)}


def loss_of(config: Config) -> float:
    """Return a loss that depends on most parameters, so that a searcher can learn from it."""
    size = config.get("units", 1) / 300 + math.log(config.get("width", 4))
    return (math.log(config["lr"]) + 5) ** 2 + config["dropout"] + 0.1 * size


def rays(search: str, seed: int, mode: str, space: dict[str, Any]) -> RaySearcher:
    made: dict[str, Callable[[], RaySearcher]] = {
        "optuna": lambda: OptunaSearch(seed=seed),
        "hyperopt": lambda: HyperOptSearch(random_state_seed=seed),
        "bayes": lambda: BayesOptSearch(random_state=seed),
    }
    searcher = made[search]()
    searcher.set_search_properties("loss", mode, space)
    return searcher


def both(
    search: str,
    trials: int,
    seed: int = 3,
    mode: str = "min",
    never_fits: Callable[[Config], bool] = lambda _: False,
) -> list[tuple[Config, Config]]:
    """Return pairs of proposals of Legroom's and Ray's searcher. A configuration that can never fit is reported to
    Ray's searcher as an error."""
    written, in_ray = (FLOATS, SAME_FLOATS_IN_RAY) if search == "bayes" else (WRITTEN, SAME_IN_RAY)
    ours, theirs = make_searcher(search, read_space(written), mode, seed), rays(search, seed, mode, in_ray)  # type: ignore[arg-type]
    pairs = []
    for number in range(trials):
        name, mine = str(number), ours.propose(number)
        other = theirs.suggest(name)
        assert mine is not None
        assert other is not None
        pairs.append((mine, other))
        ours.learn(number, mine, Result(shortage=0.5) if never_fits(mine) else Result(loss_of(mine)))
        if never_fits(other):
            theirs.on_trial_complete(name, error=True)
        else:
            theirs.on_trial_complete(name, {"loss": loss_of(other), "training_iteration": 1})
    return pairs


def assert_same(mine: Config, other: Config) -> None:
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        assert value == (pytest.approx(other[name], rel=1e-6) if isinstance(value, float) else other[name])


@pytest.mark.parametrize(("search", "trials"), [("optuna", 25), ("hyperopt", 30), ("bayes", 13)])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_learning_searcher_proposes_the_same_as_rays(search: str, trials: int, mode: str) -> None:
    for mine, other in both(search, trials, mode=mode):
        assert_same(mine, other)


@pytest.mark.parametrize(("search", "random_first"), [("optuna", 10), ("hyperopt", 20), ("bayes", 10)])
def test_random_proposals_do_not_depend_on_configurations_that_do_not_fit(
    search: str, random_first: int
) -> None:
    pairs = both(search, random_first, never_fits=lambda config: config["dropout"] > 0.3)
    for mine, other in pairs:
        assert_same(mine, other)


def test_random_search_proposes_the_same_as_ray() -> None:
    experiment = Experiment("drawn", run=lambda config: None, config=dict(SAME_IN_RAY), num_samples=20)
    generator = BasicVariantGenerator(random_state=5)
    generator.add_configurations([experiment])
    ours = make_searcher("random", read_space(WRITTEN), "min", 5)
    for number in range(20):
        mine, trial = ours.propose(number), generator.next_trial()
        assert mine is not None
        assert_same(mine, trial.config)


def test_a_grid_has_the_same_order_as_in_ray() -> None:
    lists = {"b": [2, 4, 8], "a": ["x", "y"], "c": [True, False]}
    experiment = Experiment(
        "counted", run=lambda config: None, config={name: tune.grid_search(v) for name, v in lists.items()}
    )
    generator = BasicVariantGenerator()
    generator.add_configurations([experiment])
    ours = make_searcher("grid", read_space(lists), "min", 0)
    assert [ours.propose(number) for number in range(12)] == [
        generator.next_trial().config for _ in range(12)
    ]
