"""The cheapest strategy that fits is selected, with its reason and the alternatives."""

from legroom.scale.auto_strategy import StrategyChoice, cheapest
from legroom.scale.prediction.strategy_memory import StrategyPrediction
from legroom.units import GiB


def predictions(ddp: float, fsdp: float, pipeline: float) -> list[StrategyPrediction]:
    return [
        StrategyPrediction("ddp", int(ddp * GiB), 24 * GiB),
        StrategyPrediction("fsdp", int(fsdp * GiB), 24 * GiB),
        StrategyPrediction(
            "pipeline", int(pipeline * GiB), 24 * GiB, "" if pipeline else "this model cannot be split"
        ),
    ]


def test_the_first_strategy_that_fits_is_selected() -> None:
    assert cheapest(predictions(20, 10, 12)).strategy == "ddp"
    assert cheapest(predictions(30, 10, 12)).strategy == "fsdp"
    assert cheapest(predictions(30, 26, 12)).strategy == "pipeline"


def test_a_strategy_that_needs_nearly_all_memory_does_not_fit() -> None:
    assert cheapest(predictions(23.9, 10, 0)).strategy == "fsdp"


def test_if_nothing_fits_the_strategy_with_the_least_memory_is_selected() -> None:
    choice = cheapest(predictions(60, 30, 0))
    assert choice.strategy == "fsdp"
    assert (
        "no strategy is predicted to fit: it needs the least memory, 30.00 GiB of 24.00 GiB" in choice.reason
    )


def test_the_message_contains_the_reason_and_the_alternatives() -> None:
    message = cheapest(predictions(30.5, 9.75, 0), note="Without activations.").message
    assert message.splitlines() == [
        "strategy='auto' selected fsdp, the cheapest strategy that fits: it needs",
        "9.75 GiB of 24.00 GiB on the GPU with the highest memory use, and it gathers",
        "weights twice and sends gradients once per step.",
        "Without activations.",
        "    strategy      needs         of",
        "    ddp       30.50 GiB  24.00 GiB  does not fit",
        "  → fsdp       9.75 GiB  24.00 GiB  fits",
        "    pipeline             24.00 GiB  this model cannot be split",
    ]


def test_a_given_strategy_has_no_message() -> None:
    assert StrategyChoice("ddp", "").message == ""
