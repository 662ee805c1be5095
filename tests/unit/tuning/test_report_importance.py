"""Which parameter mattered: found where there is something to find, and nothing where there is not."""

from random import Random

from legroom.tuning.report.importance import importance


def drawn(count: int, seed: int = 0) -> list[dict[str, object]]:
    dice = Random(seed)
    return [
        {"lr": 10 ** dice.uniform(-4, -1), "width": 2 ** dice.randint(2, 9), "kind": dice.choice(["a", "b"])}
        for _ in range(count)
    ]


def test_the_parameter_that_decides_comes_first_with_nearly_all_of_it() -> None:
    configs = drawn(200)
    shares = importance(configs, [float(config["width"]) for config in configs], ["lr", "width", "kind"])  # type: ignore[arg-type]
    assert next(iter(shares)) == "width"
    assert shares["width"] > 0.9


def test_a_choice_that_decides_is_found() -> None:
    configs = drawn(60)
    values = [(1.0 if config["kind"] == "a" else 0.0) + 0.001 * index for index, config in enumerate(configs)]
    shares = importance(configs, values, ["lr", "width", "kind"])
    assert next(iter(shares)) == "kind"


def test_chance_is_given_next_to_nothing() -> None:
    dice = Random(1)
    configs = drawn(400)
    shares = importance(configs, [dice.random() for _ in configs], ["lr", "width", "kind"])
    assert max(shares.values()) < 0.05


def test_one_diverged_trial_does_not_decide() -> None:
    configs = drawn(100)
    values = [float(config["width"]) for config in configs]  # type: ignore[arg-type]
    values[3] = 1e30
    assert next(iter(importance(configs, values, ["lr", "width", "kind"]))) == "width"


def test_a_parameter_that_never_changed_is_left_out() -> None:
    configs = [{"lr": 0.1 * index, "epochs": 10} for index in range(1, 20)]
    assert set(importance(configs, [config["lr"] for config in configs], ["lr", "epochs"])) == {"lr"}


def test_a_conditional_parameter_counts_its_absence_as_a_group() -> None:
    configs = [{"momentum": 0.9 * index / 20} if index % 2 else {} for index in range(20)]
    values = [1.0 if index % 2 else 0.0 for index in range(20)]
    assert importance(configs, values, ["momentum"])["momentum"] > 0.9


def test_too_few_trials_say_nothing() -> None:
    configs = drawn(5)
    assert importance(configs, [1.0, 2.0, 3.0, 4.0, 5.0], ["lr"]) == {}
