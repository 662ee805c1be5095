"""Shares of a batch that leave GPUs equally full, foreseen from a batch."""

from typing import Any

import torch
from torch import nn

from legroom.scale.prediction.step_trace import Likeness, foreseen
from legroom.scale.prediction.strategy_steps import replicated_step
from legroom.train.guarding.batches.splitting import BatchArguments

TRIES = 4


def coordinator_shares(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, batch: Any, devices: int, like: Likeness
) -> tuple[list[float], list[int]]:
    """Rows for each device of a DataParallel, the coordinator first, and the peaks foreseen with them.

    The coordinator gets as many rows as it can have without holding more than the others do on average. Both grow in a straight line with
    their rows, so that where the lines meet is found by trying the ends and then the meeting point.
    """
    rows = BatchArguments((batch,), {}).batch_size
    tried: dict[int, tuple[list[int], float]] = {}

    def over(coordinator: int) -> float:
        """By how many bytes the coordinator holds more than the others."""
        if coordinator not in tried:
            shares = _shares(rows, coordinator, devices)
            told = foreseen(like, devices, replicated_step(model, optimizer, batch, devices, shares))
            peaks = [peak.allocated for peak in told.peaks]
            tried[coordinator] = (peaks, peaks[0] - sum(peaks[1:]) / (devices - 1))
        return tried[coordinator][1]

    low, high = 0, rows // devices
    if over(high) > 0 and over(low) < 0:
        for _ in range(TRIES):
            meeting = low + (high - low) * -over(low) / (over(high) - over(low))
            middle = min(max(round(meeting), low + 1), high - 1)
            if high - low <= 1:
                break
            low, high = (middle, high) if over(middle) <= 0 else (low, middle)
    fitting = [number for number, (_, more) in tried.items() if more <= 0]
    chosen = max(fitting) if fitting else min(tried, key=lambda number: tried[number][1])
    return _shares(rows, chosen, devices), tried[chosen][0]


def _shares(rows: int, coordinator: int, devices: int) -> list[float]:
    return [coordinator, *[(rows - coordinator) / (devices - 1)] * (devices - 1)]
