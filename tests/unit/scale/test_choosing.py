"""The cheapest strategy that fits, said with its reason and the runners-up."""

from legroom.scale.auto_strategy import Choice, cheapest
from legroom.scale.prediction.strategy_memory import Forecast
from legroom.units import GiB


def forecasts(ddp: float, fsdp: float, pipeline: float) -> list[Forecast]:
    return [
        Forecast("ddp", int(ddp * GiB), 24 * GiB),
        Forecast("fsdp", int(fsdp * GiB), 24 * GiB),
        Forecast("pipeline", int(pipeline * GiB), 24 * GiB, "" if pipeline else "this model cannot be cut"),
    ]


def test_the_first_that_fits_is_taken() -> None:
    assert cheapest(forecasts(20, 10, 12)).strategy == "ddp"
    assert cheapest(forecasts(30, 10, 12)).strategy == "fsdp"
    assert cheapest(forecasts(30, 26, 12)).strategy == "pipeline"


def test_what_would_fill_a_gpu_to_the_brim_does_not_fit() -> None:
    assert cheapest(forecasts(23.9, 10, 0)).strategy == "fsdp"


def test_where_nothing_fits_the_nearest_is_taken_and_it_is_said() -> None:
    choice = cheapest(forecasts(60, 30, 0))
    assert choice.strategy == "fsdp"
    assert "nothing is foreseen to fit: it needs 30.00 GiB of 24.00 GiB" in choice.reason


def test_the_reason_and_the_runners_up_are_told() -> None:
    told = cheapest(forecasts(30.5, 9.75, 0), note="Activations are not counted.").told
    assert told.splitlines() == [
        "strategy='auto' takes fsdp, the cheapest that fits: 9.75 GiB of 24.00 GiB on",
        "the fullest GPU, and weights are gathered twice a step, gradients sent once.",
        "Activations are not counted.",
        "    strategy      needs         of",
        "    ddp       30.50 GiB  24.00 GiB  does not fit",
        "  → fsdp       9.75 GiB  24.00 GiB  fits",
        "    pipeline             24.00 GiB  this model cannot be cut",
    ]


def test_where_there_was_no_choice_nothing_is_told() -> None:
    assert Choice("ddp", "").told == ""
