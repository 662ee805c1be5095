"""Parameter importance: high for decisive parameters, about zero for noise."""

from random import Random

from legroom.tuning.report.importance import importance


def sample_configs(count: int, seed: int = 0) -> list[dict[str, object]]:
    rng = Random(seed)
    return [
        {"lr": 10 ** rng.uniform(-4, -1), "width": 2 ** rng.randint(2, 9), "kind": rng.choice(["a", "b"])}
        for _ in range(count)
    ]


def test_the_decisive_parameter_has_nearly_all_importance() -> None:
    configs = sample_configs(200)
    shares = importance(configs, [float(config["width"]) for config in configs], ["lr", "width", "kind"])  # type: ignore[arg-type]
    assert next(iter(shares)) == "width"
    assert shares["width"] > 0.9


def test_a_decisive_choice_is_found() -> None:
    configs = sample_configs(60)
    values = [(1.0 if config["kind"] == "a" else 0.0) + 0.001 * index for index, config in enumerate(configs)]
    shares = importance(configs, values, ["lr", "width", "kind"])
    assert next(iter(shares)) == "kind"


def test_noise_has_almost_no_importance() -> None:
    rng = Random(1)
    configs = sample_configs(400)
    shares = importance(configs, [rng.random() for _ in configs], ["lr", "width", "kind"])
    assert max(shares.values()) < 0.05


def test_one_diverged_trial_does_not_change_the_result() -> None:
    configs = sample_configs(100)
    values = [float(config["width"]) for config in configs]  # type: ignore[arg-type]
    values[3] = 1e30
    assert next(iter(importance(configs, values, ["lr", "width", "kind"]))) == "width"


def test_a_constant_parameter_is_omitted() -> None:
    configs = [{"lr": 0.1 * index, "epochs": 10} for index in range(1, 20)]
    assert set(importance(configs, [config["lr"] for config in configs], ["lr", "epochs"])) == {"lr"}


def test_an_inactive_parameter_forms_a_group() -> None:
    configs = [{"momentum": 0.9 * index / 20} if index % 2 else {} for index in range(20)]
    values = [1.0 if index % 2 else 0.0 for index in range(20)]
    assert importance(configs, values, ["momentum"])["momentum"] > 0.9


def test_with_too_few_trials_there_is_no_importance() -> None:
    configs = sample_configs(5)
    assert importance(configs, [1.0, 2.0, 3.0, 4.0, 5.0], ["lr"]) == {}
