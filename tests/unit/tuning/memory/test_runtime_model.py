"""Prediction of trial runtimes from running and ended trials."""

import statistics

import pytest
from numpy.random import default_rng

from legroom.tuning.memory.runtime_model import SAMPLES, RuntimeModel
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


def learned(trials: int, *, random_runtimes: bool = False) -> RuntimeModel:
    rng, model = default_rng(0), RuntimeModel(SPACE)
    for number in range(trials):
        config = SPACE.draw(rng)
        seconds = 2.0 ** (config["layers"] / 2) * (3.0 if config["kind"] == "rnn" else 1.0)
        complete(
            model,
            number,
            config,
            10 * (rng.uniform(1, 30) if random_runtimes else seconds * rng.uniform(0.9, 1.1)),
        )
    return model


def complete(
    model: RuntimeModel, number: int, config: Config, seconds: float, reports: int = 1, size: int = 0
) -> None:
    """Run a trial from its start to its end."""
    model.started(number, config, size, 0.0)
    for report in range(reports):
        model.reported(number, seconds * (report + 1) / reports)
    model.ended(number, seconds)


def expected(model: RuntimeModel, config: Config, size: int = 0) -> float:
    samples = model.predict({99: (config, size)}, 0.0)
    assert samples is not None
    assert len(samples.waiting[99]) == SAMPLES
    return statistics.median(samples.waiting[99])


def test_the_influence_of_parameters_is_learned() -> None:
    model = learned(30)
    assert expected(model, {"layers": 6, "lr": 0.01, "kind": "cnn"}) == pytest.approx(80, rel=0.25)
    assert expected(model, {"layers": 2, "lr": 0.001, "kind": "rnn", "beam": 2}) == pytest.approx(
        60, rel=0.25
    )


def test_nothing_is_predicted_before_the_first_report() -> None:
    model = RuntimeModel(FLAT)
    model.started(0, {"layers": 3}, 0, 0.0)
    assert model.predict({1: ({"layers": 4}, 0)}, 5.0) is None


def test_with_few_trials_all_predictions_are_similar() -> None:
    model = learned(3)
    short, long = ({"layers": layers, "lr": 0.01, "kind": "cnn"} for layers in (1, 8))
    assert expected(model, short) == pytest.approx(expected(model, long), rel=0.7)


def test_with_random_runtimes_predictions_are_similar_and_keep_the_variation() -> None:
    model = learned(30, random_runtimes=True)
    samples = model.predict({n: ({"layers": layers, "lr": 0.01, "kind": "cnn"}, 0) for n, layers in ((98, 1), (99, 8))}, 0.0)  # fmt: skip
    assert samples is not None
    few, many = (statistics.median(samples.waiting[number]) for number in (98, 99))
    assert 0.5 < few / many < 2.0
    assert max(samples.waiting[99]) > 2 * min(samples.waiting[99])


def test_predictions_stay_in_the_observed_range() -> None:
    model = RuntimeModel(FLAT)
    for layers in range(1, 13):
        complete(model, layers, {"layers": layers}, float(layers))
    assert expected(model, {"layers": 20}) == pytest.approx(12.0, rel=0.5)


def test_memory_predicts_the_time_per_report_if_parameters_do_not() -> None:
    """The trials with little memory are slow, but their parameters are the same as those of the others."""
    model = RuntimeModel(FLAT)
    for number in range(12):
        complete(
            model, number, {"layers": 5}, 100.0 if number % 2 else 10.0, size=(1 if number % 2 else 8) << 30
        )
    assert expected(model, {"layers": 5}, size=1 << 30) > 5 * expected(model, {"layers": 5}, size=8 << 30)


def test_the_time_per_report_is_learned_before_any_trial_has_ended() -> None:
    model = RuntimeModel(FLAT)
    for layers in range(1, 11):
        model.started(layers, {"layers": layers}, 0, 0.0)
        model.reported(layers, 2.0**layers)
    assert expected(model, {"layers": 9}) > 8 * expected(model, {"layers": 2})


def test_a_running_trial_is_not_predicted_to_have_ended() -> None:
    model = RuntimeModel(FLAT)
    for number in range(4):
        complete(model, number, {"layers": 5}, 10.0 * (number + 1), reports=10 * (number + 1))
    model.started(9, {"layers": 5}, 0, 100.0)
    for report in range(30):
        model.reported(9, 101.0 + report)
    samples = model.predict({}, 130.0)
    assert samples is not None
    assert all(0 < left <= 30.0 for left in samples.running[9])


def test_a_trial_longer_than_all_others_is_predicted_to_take_as_long_again() -> None:
    model = RuntimeModel(FLAT)
    complete(model, 0, {"layers": 5}, 10.0)
    model.started(1, {"layers": 5}, 0, 0.0)
    model.reported(1, 40.0)
    samples = model.predict({}, 50.0)
    assert samples is not None
    assert set(samples.running[1]) == {50.0}


def test_a_trial_continued_from_a_checkpoint_is_not_learned_from() -> None:
    model = RuntimeModel(FLAT)
    complete(model, 0, {"layers": 5}, 100.0)
    model.started(1, {"layers": 5}, 0, 0.0, from_start=False)
    model.reported(1, 1.0)
    model.ended(1, 1.0)
    assert expected(model, {"layers": 5}) == pytest.approx(100.0)
