"""Implements strategy `auto`, which selects the cheapest strategy that is predicted to fit. The result contains the
reason for the choice and a table of the alternatives.
"""

import textwrap
from dataclasses import dataclass

from legroom.scale.cutting.planning import PipelinePlan
from legroom.scale.prediction.strategy_memory import StrategyPrediction
from legroom.units import format_size

MAX_COLUMNS = 76
"""The maximum line length, which is below 80 columns because a launcher adds the rank to each line."""
COSTS = {
    "ddp": "it sends gradients once per step",
    "fsdp": "it gathers weights twice and sends gradients once per step",
    "pipeline": "ranks are idle at the start and end of a step",
    "fsdp, offloaded": "it copies weights and gradients to host memory, where the optimizer runs",
    "dp": "it copies the model to every GPU in every step",
    "split": "only one GPU computes at a time",
}
"""The cost of each strategy as text, in order of increasing cost."""


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The selected strategy, with its reason."""

    strategy: str
    reason: str
    predictions: tuple[StrategyPrediction, ...] = ()
    note: str = ""
    plan: PipelinePlan | None = None
    peaks: tuple[int, ...] = ()
    """The predicted peak of each GPU in bytes, if memory determined how samples or layers were distributed."""

    @property
    def message(self) -> str:
        paragraphs = [
            textwrap.fill(text, MAX_COLUMNS, break_on_hyphens=False)
            for text in (self.reason, self.note)
            if text
        ]
        if len(self.predictions) > 1:
            paragraphs.append(strategy_table(self.predictions, self.strategy))
        return "\n".join(paragraphs)


def cheapest(predictions: list[StrategyPrediction], *, note: str = "") -> StrategyChoice:
    """Return the first strategy that fits. If no strategy fits, return the strategy with the smallest ratio of
    predicted peak to GPU memory.
    """
    fitting = [prediction for prediction in predictions if prediction.fits]
    if not fitting:
        best = min((each for each in predictions if each.peak), key=lambda each: each.peak / each.capacity)
        reason = (
            f"strategy='auto' selected {best.strategy}, although no strategy is predicted to fit: it needs the least memory, "
            f"{format_size(best.peak)} of {format_size(best.capacity)} on the GPU with the highest memory use. Reduce the batch size, or "
            "use more GPUs."
        )
        return StrategyChoice(best.strategy, reason, tuple(predictions), note)
    chosen = fitting[0]
    rank = "the cheapest strategy" if chosen is predictions[0] else "the cheapest strategy that fits"
    reason = (
        f"strategy='auto' selected {chosen.strategy}, {rank}: it needs {format_size(chosen.peak)} of "
        f"{format_size(chosen.capacity)} on the GPU with the highest memory use, and {COSTS[chosen.strategy]}."
    )
    return StrategyChoice(chosen.strategy, reason, tuple(predictions), note)


def strategy_table(predictions: tuple[StrategyPrediction, ...], chosen: str) -> str:
    lines = [("", "strategy", "needs", "of", "")]
    for prediction in predictions:
        lines.append(
            (
                "→" if prediction.strategy == chosen else "",
                prediction.strategy,
                format_size(prediction.peak) if prediction.peak else "",
                format_size(prediction.capacity),
                prediction.reason or ("fits" if prediction.fits else "does not fit"),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        f"  {line[0]:<{widths[0]}} {line[1]:<{widths[1]}}  {line[2]:>{widths[2]}}  {line[3]:>{widths[3]}}  {line[4]}".rstrip()
        for line in lines
    )
