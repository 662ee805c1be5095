"""How long a trial will take, learned from those that ended."""

import pytest
from numpy.random import default_rng

from legroom.tuning.lengths import Lengths
from legroom.tuning.space import read_space

SPACE = read_space(
    {
        "layers": {"int": [1, 8]},
        "lr": {"log": [1e-4, 1e-1]},
        "kind": ["cnn", "rnn"],
        "beam": {"int": [1, 4], "when": {"kind": "rnn"}},
    }
)


def learned(trials: int, *, by_luck: bool = False) -> Lengths:
    dice, lengths = default_rng(0), Lengths(SPACE)
    for _ in range(trials):
        config = SPACE.draw(dice)
        seconds = 2.0 ** (config["layers"] / 2) * (3.0 if config["kind"] == "rnn" else 1.0)
        lengths.learn(config, 10 * (dice.uniform(1, 30) if by_luck else seconds * dice.uniform(0.9, 1.1)))
    return lengths


def test_what_parameters_add_is_learned() -> None:
    lengths = learned(30)
    assert lengths.expected({"layers": 6, "lr": 0.01, "kind": "cnn"}) == pytest.approx(80, rel=0.25)
    assert lengths.expected({"layers": 2, "lr": 0.001, "kind": "rnn", "beam": 2}) == pytest.approx(
        60, rel=0.25
    )


def test_nothing_is_foretold_from_a_few() -> None:
    assert learned(5).expected({"layers": 6, "lr": 0.01, "kind": "cnn"}) is None


def test_nothing_is_foretold_where_lengths_are_luck() -> None:
    assert learned(30, by_luck=True).expected({"layers": 6, "lr": 0.01, "kind": "cnn"}) is None


def test_nothing_is_foretold_beyond_what_was_seen() -> None:
    lengths = Lengths(read_space({"layers": {"int": [1, 20]}}))
    for layers in range(1, 13):
        lengths.learn({"layers": layers}, float(layers))
    assert lengths.expected({"layers": 20}) == pytest.approx(12.0)
