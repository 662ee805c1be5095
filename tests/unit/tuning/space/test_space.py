"""Search spaces: reading, sampling, grids and errors."""

import itertools
import re
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from legroom.errors import UsageError
from legroom.tuning.space.domains import Categorical, FloatRange, IntRange, PowerRange
from legroom.tuning.space.space import read_space, read_toml

TOML = """
lr = {log = [1e-4, 1e-1]}
batch_size = [2, 4, 8, 16]
l1 = {int_log2 = [2, 9]}
optimizer = ["sgd", "adam"]
momentum = {uniform = [0.5, 0.99], when = {optimizer = "sgd"}}
epochs = 10

[study]
metric = "loss"
"""


def test_every_kind_of_domain_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(TOML)
    space = read_space(file)
    domains = {parameter.name: parameter.domain for parameter in space.parameters}
    assert domains["lr"] == FloatRange(1e-4, 1e-1, log=True)
    assert domains["batch_size"] == Categorical((2, 4, 8, 16))
    assert domains["l1"] == PowerRange(2, 9)
    assert space.constants == {"epochs": 10}
    assert read_toml(file)[1] == {"metric": "loss"}


def test_a_space_survives_conversion_to_a_dict(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(TOML + "\n[x]\nint = [1, 9]\npoints = 3\n[y]\nuniform = [0, 1]\nstep = 0.25\n")
    space = read_space(file)
    assert read_space(space.as_dict()) == space


def test_a_parameter_is_active_only_if_its_condition_holds() -> None:
    space = read_space({"m": {"uniform": [0, 1], "when": {"o": "sgd"}}, "o": ["sgd", "adam"]})
    drawn = [space.draw(default_rng(seed)) for seed in range(50)]
    assert {config["o"] for config in drawn} == {"sgd", "adam"}
    assert all(("m" in config) == (config["o"] == "sgd") for config in drawn)


def test_a_grid_contains_every_configuration_once() -> None:
    space = read_space(
        {"o": ["sgd", "adam"], "m": {"choice": [0.5, 0.9], "when": {"o": "sgd"}}, "l": {"int_log2": [1, 2]}}
    )
    configs = list(space.grid())
    assert len(configs) == (2 + 1) * 2
    assert all(a != b for a, b in itertools.combinations(configs, 2))


def test_points_sets_the_number_of_grid_points() -> None:
    space = read_space({"lr": {"log": [1e-3, 1e-1], "points": 3}})
    assert [config["lr"] for config in space.grid()] == pytest.approx([1e-3, 1e-2, 1e-1])


def test_steps_have_no_rounding_errors() -> None:
    domain = FloatRange(0.0, 0.5, step=0.1)
    assert domain.grid() == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert {domain.draw(default_rng(seed)) for seed in range(99)} <= set(domain.grid() or [])


@given(
    domain=st.sampled_from(
        [
            FloatRange(1e-4, 1e-1, log=True),
            FloatRange(-3.0, 5.0),
            IntRange(1, 9),
            IntRange(1, 999, log=True),
            PowerRange(0, 12),
        ]
    ),
    share=st.floats(0, 1),
)
def test_mapping_to_the_unit_interval_is_invertible(domain: FloatRange, share: float) -> None:
    value = domain.from_unit(share)
    assert domain.from_unit(domain.to_unit(value)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {"lr": {"log": [0, 1]}},
            "must be greater than 0, not 0. Increase the lower bound, or use `uniform`",
        ),
        ({"lr": {"log": [1, 0.1]}}, "larger than the upper bound"),
        ({"lr": {"log": [1]}}, "needs a lower and an upper bound"),
        ({"lr": {"lgo": [1, 2]}}, "use exactly one of `uniform`, `log`"),
        ({"lr": {"log": [1, 2], "stpe": 1}}, "unknown key `stpe`"),
        ({"m": {"lr": {"log": [1, 2]}}}, "`m` is nested. Use a flat space .* `m_lr`"),
        ({"m": {"layers": 2}, "x": [1, 2]}, "`m` is nested"),
        (
            {"data": object(), "x": [1, 2]},
            r"not object. Pass other objects with `functools.partial\(train, data=",
        ),
        ({"n": {"int": [1.5, 2]}}, "needs integer bounds"),
        ({"b": []}, "needs a list of options"),
        ({"b": [1, 1]}, "same value more than once"),
        ({"epochs": 10}, "no parameter to search"),
        ({"b": [1, 2], "m": {"int": [1, 2], "when": {"c": 1}}}, "which is not in the space"),
        ({"b": [1, 2], "m": {"int": [1, 2], "when": {"b": 3}}}, "not one of the choices for `b`"),
        (
            {"a": {"int": [1, 2], "when": {"b": 1}}, "b": {"int": [1, 2], "when": {"a": 1}}},
            "form a cycle",
        ),
        ("nowhere.toml", "does not exist"),
        (7, "must be a dict or a TOML file"),
    ],
)
def test_an_invalid_space_is_an_error(space: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_space(space)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"layer": 2}, "sets `layer`, which is not in the space. Did you mean `layers`?"),
        ({"lr": 2.0}, "has a value for `lr` that is not in the space: 2.0"),
        ({"layers": 1.5}, "`layers`"),
        ({"width": 24}, "`width`"),
        ({"optimizer": "lion"}, "`optimizer`"),
    ],
)
def test_a_point_outside_of_the_space_is_an_error(point: dict[str, object], message: str) -> None:
    space = read_space(
        {
            "lr": {"log": [1e-4, 1]},
            "layers": {"int": [1, 4]},
            "width": {"int_log2": [2, 6]},
            "optimizer": ["sgd", "adam"],
        }
    )
    space.check_points([{"lr": 1, "layers": 4, "width": 64, "optimizer": "adam"}, {}])
    with pytest.raises(UsageError, match=re.escape(message)):
        space.check_points([point])


def test_a_numpy_constant_is_stored_as_a_number() -> None:
    assert read_space({"x": [1, 2], "epochs": numpy.int64(3)}).constants == {"epochs": 3}


def test_a_grid_rejects_a_range_without_steps() -> None:
    with pytest.raises(UsageError, match="`lr`.*points = 5"):
        next(read_space({"lr": {"log": [1e-4, 1e-1]}}).grid())


def test_an_invalid_toml_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("lr = {log")
    with pytest.raises(UsageError, match="is not valid TOML"):
        read_space(file)
