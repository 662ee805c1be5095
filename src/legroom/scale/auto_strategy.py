"""`auto`: the cheapest strategy that fits, from estimates; the reason and the runners-up in a table."""

import textwrap
from dataclasses import dataclass

from legroom.scale.cutting.planning import Plan
from legroom.scale.prediction.strategy_memory import Forecast
from legroom.units import format_size

WIDTH = 76
"""Columns of what is told: a launcher puts the rank before it."""
PRICES = {
    "ddp": "gradients are sent once a step",
    "fsdp": "weights are gathered twice a step, gradients sent once",
    "pipeline": "ranks wait for each other at the ends of a step",
    "fsdp, offloaded": "weights and gradients cross to host memory, and the optimizer runs there",
    "dp": "the model is copied to every GPU in every step",
    "split": "one GPU computes at a time",
}
"""Cheapest first, among those that one way of starting allows."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy and why."""

    strategy: str
    reason: str
    forecasts: tuple[Forecast, ...] = ()
    """Of all that were looked at, cheapest first."""
    note: str = ""
    plan: Plan | None = None
    """Of a pipeline: where the model is cut."""
    peaks: tuple[int, ...] = ()
    """What each GPU is foreseen to hold, in bytes, where the rows or layers were divided by that."""

    @property
    def told(self) -> str:
        """What a person should read now; empty where there was nothing to choose."""
        told = [
            textwrap.fill(part, WIDTH, break_on_hyphens=False) for part in (self.reason, self.note) if part
        ]
        if len(self.forecasts) > 1:
            told.append(table(self.forecasts, self.strategy))
        return "\n".join(told)


def cheapest(forecasts: list[Forecast], *, note: str = "") -> Choice:
    """The first that fits; where none does, the one that is nearest to it."""
    fitting = [forecast for forecast in forecasts if forecast.fits]
    if not fitting:
        nearest = min((each for each in forecasts if each.peak), key=lambda each: each.peak / each.room)
        reason = (
            f"strategy='auto' takes {nearest.strategy}, though nothing is foreseen to fit: it needs {format_size(nearest.peak)} of "
            f"{format_size(nearest.room)} on the fullest GPU, the least of all. Take a smaller batch, or more GPUs."
        )
        return Choice(nearest.strategy, reason, tuple(forecasts), note)
    chosen = fitting[0]
    why = "the cheapest" if chosen is forecasts[0] else "the cheapest that fits"
    reason = (
        f"strategy='auto' takes {chosen.strategy}, {why}: {format_size(chosen.peak)} of {format_size(chosen.room)} on the fullest "
        f"GPU, and {PRICES[chosen.strategy]}."
    )
    return Choice(chosen.strategy, reason, tuple(forecasts), note)


def table(forecasts: tuple[Forecast, ...], chosen: str) -> str:
    """One line for each strategy, within 80 columns."""
    rows = [("", "strategy", "needs", "of", "")]
    for forecast in forecasts:
        needs = format_size(forecast.peak) if forecast.peak else ""
        verdict = forecast.why_not or ("fits" if forecast.fits else "does not fit")
        rows.append(
            (
                "→" if forecast.strategy == chosen else "",
                forecast.strategy,
                needs,
                format_size(forecast.room),
                verdict,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"  {row[0]:<{widths[0]}} {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}".rstrip()
        for row in rows
    )
