"""A space in which many configurations do not fit: a small network for digits on a small virtual GPU.

About a quarter of it fits only in micro-batches and about a quarter not at all. The network is real and is trained for real; it is small so that
hundreds of trials take minutes on a laptop. `train` is for Legroom; `epochs` is the same body for anyone else's loop.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

METRIC, MODE = "loss", "min"
GPU = "32MiB"
"""Of a virtual GPU."""
GPUS = f"{GPU},{GPU}"
"""Two of them, so that two trials can run at once without sharing one."""
EPOCHS = 3
ROWS = 1024
"""Of the training set in one epoch."""
SPACE = {
    "width": {"int_log2": [6, 13]},
    "depth": {"int": [1, 2]},
    "batch_size": {"int_log2": [5, 10]},
    "lr": {"log": [1e-4, 1e-1]},
    "dropout": {"uniform": [0.0, 0.5]},
}

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Step = Callable[[LossFunction, torch.Tensor, torch.Tensor], Any]


def train(config: dict[str, Any], trial: Any) -> None:
    """For `legroom.tune`."""
    for loss in epochs(config, trial.device, lambda model, optimizer: trial.guard(model, optimizer).step):
        trial.report(loss=loss)


def train_plainly(config: dict[str, Any], trial: Any) -> None:
    """The same without a guard: what does not fit fails."""
    for loss in epochs(config, trial.device, plain_step):
        trial.report(loss=loss)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """What a loop without a guard does."""

    def step(loss_fn: LossFunction, x: torch.Tensor, y: torch.Tensor) -> None:
        loss_fn(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def epochs(
    config: dict[str, Any], device: str, make_step: Callable[[nn.Module, torch.optim.Optimizer], Step]
) -> Iterator[float]:
    """Trains, and gives the validation loss after each epoch."""
    torch.manual_seed(0)
    x, y, valid_x, valid_y = _data()
    model = _network(config).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    step = make_step(model, optimizer)
    dice = torch.Generator().manual_seed(1)
    for _ in range(EPOCHS):
        model.train()
        for rows in torch.randperm(len(x), generator=dice)[:ROWS].split(config["batch_size"]):
            step(lambda a, b: F.cross_entropy(model(a), b), x[rows].to(device), y[rows].to(device))
        model.eval()
        with torch.no_grad():
            pieces = zip(valid_x.split(32), valid_y.split(32), strict=True)
            total = sum(
                F.cross_entropy(model(a.to(device)), b.to(device), reduction="sum").item() for a, b in pieces
            )
        yield total / len(valid_x)


def _network(config: dict[str, Any]) -> nn.Module:
    width, layers = config["width"], [nn.Linear(64, config["width"])]
    for _ in range(config["depth"] - 1):
        layers += [nn.GELU(), nn.LayerNorm(width), nn.Dropout(config["dropout"]), nn.Linear(width, width)]
    return nn.Sequential(
        *layers, nn.GELU(), nn.LayerNorm(width), nn.Dropout(config["dropout"]), nn.Linear(width, 10)
    )


def _data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:1437]], y[order[:1437]], x[order[1437:]], y[order[1437:]]
