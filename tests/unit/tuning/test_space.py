"""Spaces: what can be written, what comes of it, and what is said of mistakes."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from legroom.errors import UsageError
from legroom.tuning.space.domains import Choice, FloatRange, IntRange, PowerRange
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


def test_every_kind_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(TOML)
    space = read_space(file)
    domains = {parameter.name: parameter.domain for parameter in space.parameters}
    assert domains["lr"] == FloatRange(1e-4, 1e-1, log=True)
    assert domains["batch_size"] == Choice((2, 4, 8, 16))
    assert domains["l1"] == PowerRange(2, 9)
    assert space.constants == {"epochs": 10}
    assert read_toml(file)[1] == {"metric": "loss"}


def test_a_space_written_out_is_read_as_the_same_space(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(TOML + "\n[x]\nint = [1, 9]\npoints = 3\n[y]\nuniform = [0, 1]\nstep = 0.25\n")
    space = read_space(file)
    assert read_space(space.written()) == space


def test_a_parameter_counts_only_where_its_condition_holds() -> None:
    space = read_space({"m": {"uniform": [0, 1], "when": {"o": "sgd"}}, "o": ["sgd", "adam"]})
    drawn = [space.draw(default_rng(seed)) for seed in range(50)]
    assert {config["o"] for config in drawn} == {"sgd", "adam"}
    assert all(("m" in config) == (config["o"] == "sgd") for config in drawn)


def test_a_grid_has_every_configuration_once_conditions_observed() -> None:
    space = read_space(
        {"o": ["sgd", "adam"], "m": {"choice": [0.5, 0.9], "when": {"o": "sgd"}}, "l": {"int_log2": [1, 2]}}
    )
    configs = list(space.grid())
    assert len(configs) == (2 + 1) * 2
    assert all(a != b for a, b in itertools.combinations(configs, 2))


def test_a_range_has_the_points_that_it_was_given_in_a_grid() -> None:
    space = read_space({"lr": {"log": [1e-3, 1e-1], "points": 3}})
    assert [config["lr"] for config in space.grid()] == pytest.approx([1e-3, 1e-2, 1e-1])


def test_steps_are_written_as_people_write_them() -> None:
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
def test_a_value_and_its_place_on_the_line_lead_to_each_other(domain: FloatRange, share: float) -> None:
    value = domain.at(share)
    assert domain.at(domain.share(value)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"lr": {"log": [0, 1]}}, "no logarithm of 0"),
        ({"lr": {"log": [1, 0.1]}}, "larger end first"),
        ({"lr": {"log": [1]}}, "needs its two ends"),
        ({"lr": {"lgo": [1, 2]}}, "write one of uniform, log"),
        ({"lr": {"log": [1, 2], "stpe": 1}}, "'stpe' means nothing here"),
        ({"n": {"int": [1.5, 2]}}, "whole numbers"),
        ({"b": []}, "needs its options"),
        ({"b": [1, 1]}, "same option twice"),
        ({"epochs": 10}, "nothing to search"),
        ({"b": [1, 2], "m": {"int": [1, 2], "when": {"c": 1}}}, "which the space does not have"),
        ({"b": [1, 2], "m": {"int": [1, 2], "when": {"b": 3}}}, "none of its choices"),
        (
            {"a": {"int": [1, 2], "when": {"b": 1}}, "b": {"int": [1, 2], "when": {"a": 1}}},
            "round in a circle",
        ),
        ("nowhere.toml", "there is no space file"),
        (7, "a dict or a TOML file"),
    ],
)
def test_mistakes_are_told_in_a_sentence(written: object, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_space(written)


def test_a_grid_cannot_count_off_a_range_without_steps() -> None:
    with pytest.raises(UsageError, match="'lr'.*points = 5"):
        next(read_space({"lr": {"log": [1e-4, 1e-1]}}).grid())


def test_a_file_that_is_no_toml_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("lr = {log")
    with pytest.raises(UsageError, match="is no TOML"):
        read_space(file)
