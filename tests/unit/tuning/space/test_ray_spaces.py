"""Conversion of Ray spaces."""

import numpy as np
import pytest

pytest.importorskip("ray.tune")

from ray import tune

from legroom.errors import UsageError
from legroom.tuning.search.searchers import check_search
from legroom.tuning.space.domains import Categorical, FloatRange, IntRange
from legroom.tuning.space.ray_spaces import is_grid, is_ray_space, space_of
from legroom.tuning.space.space import read_space

pytestmark = pytest.mark.ray


@pytest.mark.parametrize(
    ("ray_domain", "domain"),
    [
        (tune.uniform(0, 1), FloatRange(0.0, 1.0)),
        (tune.quniform(0, 1, 0.25), FloatRange(0.0, 1.0, step=0.25)),
        (tune.loguniform(1e-4, 1e-1), FloatRange(1e-4, 1e-1, log=True)),
        (tune.randint(1, 9), IntRange(1, 8)),
        (tune.lograndint(1, 1025), IntRange(1, 1024, log=True)),
        (tune.qrandint(0, 12, 4), Categorical((0, 4, 8, 12))),
        (tune.choice([2, 4, 8]), Categorical((2, 4, 8))),
        (tune.grid_search([1, 2]), Categorical((1, 2))),
    ],
)
def test_each_ray_domain_is_converted(ray_domain: object, domain: object) -> None:
    assert space_of({"x": ray_domain}).parameters[0].domain == domain


def test_a_plain_value_is_the_same_in_every_trial() -> None:
    assert space_of({"lr": tune.uniform(0, 1), "epochs": 3}).constants == {"epochs": 3}


def test_functions_are_sampled_after_the_other_parameters_with_the_seed_of_the_study() -> None:
    space = space_of(
        {
            "double": tune.sample_from(lambda config: 2 * config["x"]),
            "old_style": tune.sample_from(lambda spec: 3 * spec.config.x),
            "power": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
            "x": tune.uniform(0.0, 1.0),
            "normal": tune.randn(0.0, 1.0),
        }
    )
    first, again = space.draw(np.random.default_rng(0)), space.draw(np.random.default_rng(0))
    assert first == again
    assert (first["double"], first["old_style"]) == (2 * first["x"], 3 * first["x"])
    assert type(first["power"]) is int
    assert read_space(space.as_dict()).names == space.names
    with pytest.raises(UsageError, match="which only random search supports"):
        check_search("optuna", space)


def test_nested_parameters_are_rejected() -> None:
    with pytest.raises(UsageError, match="`model` is nested. Use a flat space"):
        space_of({"model": {"width": tune.choice([1, 2])}, "lr": tune.uniform(0, 1)})


def test_grid_search_mixed_with_ranges_is_rejected() -> None:
    with pytest.raises(UsageError, match="mixes `grid_search` with ranges"):
        space_of({"a": tune.grid_search([1, 2]), "lr": tune.uniform(0, 1)})


def test_a_space_is_a_grid_if_everything_that_varies_is_grid_search() -> None:
    assert is_grid({"a": tune.grid_search([1, 2]), "epochs": 3})
    assert not is_grid({"a": tune.choice([1, 2])})


def test_a_legroom_space_is_not_a_ray_space() -> None:
    assert not is_ray_space({"lr": {"log": [1e-4, 1e-1]}, "batch_size": [2, 4]})
    assert is_ray_space({"lr": tune.uniform(0, 1)})
