"""A search space in which many configurations do not fit. The model is a small CNN for digits on a small virtual GPU.

About a quarter of the configurations fit only in micro-batches, and about a quarter do not fit at all. The network,
the data (scikit-learn's digits) and the training are real. A trial takes a few seconds on one core. `train` is for
Legroom, and `epochs` is the same training for other loops.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.tuning.digits import MakeStep, training_losses

METRIC, MODE = "loss", "min"
GPU = "96MiB"
"""The size of the virtual GPU."""
SPACE: dict[str, Any] = {
    "channels": {"int_log2": [4, 6]},
    "units": {"int_log2": [7, 14]},
    "batch_size": {"int_log2": [5, 10]},
    "lr": {"log": [1e-4, 1e-1]},
    "dropout": {"uniform": [0.0, 0.5]},
    "epochs": 6,
}
TYPICAL = {"channels": 32, "units": 2048, "batch_size": 128, "lr": 1e-3, "dropout": 0.2, "epochs": 3}
"""The configuration with which the number of threads is chosen."""


class DigitsNet(nn.Module):
    """Two convolutions with `channels` channels, and then one linear layer with `units` units."""

    def __init__(self, channels: int, units: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.hidden = nn.Linear(channels * 16, units)
        self.dropout = nn.Dropout(dropout)
        self.scores = nn.Linear(units, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.scores(self.dropout(F.relu(self.hidden(x.flatten(1)))))


def train(config: dict[str, Any], trial: Any) -> None:
    """Train a trial of `legroom.tune`."""
    for loss in epochs(config, trial.device, lambda model, optimizer: trial.guard(model, optimizer).step):
        trial.report(loss=loss)


def epochs(config: dict[str, Any], device: str, make_step: MakeStep) -> Iterator[float]:
    """Train, and yield the validation loss after each epoch."""
    torch.manual_seed(0)
    model = DigitsNet(config["channels"], config["units"], config["dropout"]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    return training_losses(model, optimizer, config, device, make_step, 1, 8, 8)
