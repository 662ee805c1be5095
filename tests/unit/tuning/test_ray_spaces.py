"""Ray's spaces read as ours: the same values can come out."""

import pytest
from ray import tune

from legroom.errors import UsageError
from legroom.tuning.space.domains import Choice, FloatRange, IntRange
from legroom.tuning.space.ray_spaces import is_grid, is_ray_space, space_of


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (tune.uniform(0, 1), FloatRange(0.0, 1.0)),
        (tune.quniform(0, 1, 0.25), FloatRange(0.0, 1.0, step=0.25)),
        (tune.loguniform(1e-4, 1e-1), FloatRange(1e-4, 1e-1, log=True)),
        (tune.randint(1, 9), IntRange(1, 8)),
        (tune.lograndint(1, 1025), IntRange(1, 1024, log=True)),
        (tune.qrandint(0, 12, 4), Choice((0, 4, 8, 12))),
        (tune.choice([2, 4, 8]), Choice((2, 4, 8))),
        (tune.grid_search([1, 2]), Choice((1, 2))),
    ],
)
def test_each_domain(written: object, read: object) -> None:
    assert space_of({"x": written}).parameters[0].domain == read


def test_a_plain_value_is_the_same_in_every_trial() -> None:
    assert space_of({"lr": tune.uniform(0, 1), "epochs": 3}).constants == {"epochs": 3}


def test_a_function_that_draws_is_refused_with_what_to_write() -> None:
    with pytest.raises(UsageError, match=r"'l1' is drawn by a function \(sample_from\).*int_log2"):
        space_of({"l1": tune.sample_from(lambda _: 4)})


def test_a_normal_distribution_has_no_ends() -> None:
    with pytest.raises(UsageError, match=r"'x' is drawn from a normal distribution.*tune.uniform"):
        space_of({"x": tune.randn(0, 1)})


def test_nested_parameters_are_refused() -> None:
    with pytest.raises(UsageError, match="'model' holds others: write the space flat"):
        space_of({"model": {"width": tune.choice([1, 2])}, "lr": tune.uniform(0, 1)})


def test_a_grid_beside_ranges_is_refused() -> None:
    with pytest.raises(UsageError, match="grid_search beside ranges"):
        space_of({"a": tune.grid_search([1, 2]), "lr": tune.uniform(0, 1)})


def test_a_grid_is_one_where_all_that_varies_is_listed() -> None:
    assert is_grid({"a": tune.grid_search([1, 2]), "epochs": 3})
    assert not is_grid({"a": tune.choice([1, 2])})


def test_our_own_spaces_are_not_taken_for_rays() -> None:
    assert not is_ray_space({"lr": {"log": [1e-4, 1e-1]}, "batch_size": [2, 4]})
    assert is_ray_space({"lr": tune.uniform(0, 1)})
