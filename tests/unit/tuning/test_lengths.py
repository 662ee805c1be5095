"""How long trials will take, learned from those that run and those that ended."""

import statistics

import pytest
from numpy.random import default_rng

from legroom.tuning.memory.runtime_model import FUTURES, Lengths
from legroom.tuning.space.space import Config, read_space

SPACE = read_space(
    {
        "layers": {"int": [1, 8]},
        "lr": {"log": [1e-4, 1e-1]},
        "kind": ["cnn", "rnn"],
        "beam": {"int": [1, 4], "when": {"kind": "rnn"}},
    }
)
FLAT = read_space({"layers": {"int": [1, 20]}})


def learned(trials: int, *, by_luck: bool = False) -> Lengths:
    dice, lengths = default_rng(0), Lengths(SPACE)
    for number in range(trials):
        config = SPACE.draw(dice)
        seconds = 2.0 ** (config["layers"] / 2) * (3.0 if config["kind"] == "rnn" else 1.0)
        took(
            lengths,
            number,
            config,
            10 * (dice.uniform(1, 30) if by_luck else seconds * dice.uniform(0.9, 1.1)),
        )
    return lengths


def took(
    lengths: Lengths, number: int, config: Config, seconds: float, reports: int = 1, size: int = 0
) -> None:
    """A trial from its start to its end."""
    lengths.started(number, config, size, 0.0)
    for report in range(reports):
        lengths.reported(number, seconds * (report + 1) / reports)
    lengths.ended(number, seconds)


def expected(lengths: Lengths, config: Config, size: int = 0) -> float:
    futures = lengths.futures({99: (config, size)}, 0.0)
    assert futures is not None
    assert len(futures.waiting[99]) == FUTURES
    return statistics.median(futures.waiting[99])


def test_what_parameters_add_is_learned() -> None:
    lengths = learned(30)
    assert expected(lengths, {"layers": 6, "lr": 0.01, "kind": "cnn"}) == pytest.approx(80, rel=0.25)
    assert expected(lengths, {"layers": 2, "lr": 0.001, "kind": "rnn", "beam": 2}) == pytest.approx(
        60, rel=0.25
    )


def test_before_the_first_report_nothing_is_foretold() -> None:
    lengths = Lengths(FLAT)
    lengths.started(0, {"layers": 3}, 0, 0.0)
    assert lengths.futures({1: ({"layers": 4}, 0)}, 5.0) is None


def test_from_a_few_all_are_foretold_alike() -> None:
    lengths = learned(3)
    short, long = ({"layers": layers, "lr": 0.01, "kind": "cnn"} for layers in (1, 8))
    assert expected(lengths, short) == pytest.approx(expected(lengths, long), rel=0.7)


def test_where_lengths_are_luck_all_are_foretold_alike_and_the_luck_is_kept() -> None:
    lengths = learned(30, by_luck=True)
    futures = lengths.futures({n: ({"layers": layers, "lr": 0.01, "kind": "cnn"}, 0) for n, layers in ((98, 1), (99, 8))}, 0.0)  # fmt: skip
    assert futures is not None
    few, many = (statistics.median(futures.waiting[number]) for number in (98, 99))
    assert 0.5 < few / many < 2.0
    assert max(futures.waiting[99]) > 2 * min(futures.waiting[99])


def test_nothing_is_foretold_beyond_what_was_seen() -> None:
    lengths = Lengths(FLAT)
    for layers in range(1, 13):
        took(lengths, layers, {"layers": layers}, float(layers))
    assert expected(lengths, {"layers": 20}) == pytest.approx(12.0, rel=0.5)


def test_memory_tells_a_trials_pace_where_parameters_do_not() -> None:
    """Small ones are slow here, and no parameter says which are small."""
    lengths = Lengths(FLAT)
    for number in range(12):
        took(
            lengths, number, {"layers": 5}, 100.0 if number % 2 else 10.0, size=(1 if number % 2 else 8) << 30
        )
    assert expected(lengths, {"layers": 5}, size=1 << 30) > 5 * expected(lengths, {"layers": 5}, size=8 << 30)


def test_a_trials_pace_is_learned_before_any_has_ended() -> None:
    lengths = Lengths(FLAT)
    for layers in range(1, 11):
        lengths.started(layers, {"layers": layers}, 0, 0.0)
        lengths.reported(layers, 2.0**layers)
    assert expected(lengths, {"layers": 9}) > 8 * expected(lengths, {"layers": 2})


def test_a_trial_that_runs_is_not_foretold_to_have_ended() -> None:
    lengths = Lengths(FLAT)
    for number in range(4):
        took(lengths, number, {"layers": 5}, 10.0 * (number + 1), reports=10 * (number + 1))
    lengths.started(9, {"layers": 5}, 0, 100.0)
    for report in range(30):
        lengths.reported(9, 101.0 + report)
    futures = lengths.futures({}, 130.0)
    assert futures is not None
    assert all(0 < left <= 30.0 for left in futures.running[9])


def test_one_that_has_run_longer_than_any_other_is_given_as_long_again() -> None:
    lengths = Lengths(FLAT)
    took(lengths, 0, {"layers": 5}, 10.0)
    lengths.started(1, {"layers": 5}, 0, 0.0)
    lengths.reported(1, 40.0)
    futures = lengths.futures({}, 50.0)
    assert futures is not None
    assert set(futures.running[1]) == {50.0}


def test_of_a_trial_that_went_on_from_the_middle_nothing_is_learned() -> None:
    lengths = Lengths(FLAT)
    took(lengths, 0, {"layers": 5}, 100.0)
    lengths.started(1, {"layers": 5}, 0, 0.0, is_whole=False)
    lengths.reported(1, 1.0)
    lengths.ended(1, 1.0)
    assert expected(lengths, {"layers": 5}) == pytest.approx(100.0)
