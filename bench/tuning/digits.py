"""Common parts of the digit search spaces: scikit-learn's digits and a training loop that yields validation losses."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from bench.tuning.plain_step import Step

MakeStep = Callable[[nn.Module, torch.optim.Optimizer], Step]


def training_losses(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: dict[str, Any],
    device: str,
    make_step: MakeStep,
    *shape: int,
) -> Iterator[float]:
    """Train, and yield the validation loss after each epoch. `shape` is the shape of one image as the model expects it."""
    x, y, valid_x, valid_y = _data(*shape)
    step = make_step(model, optimizer)
    rng = torch.Generator().manual_seed(1)
    for _ in range(config["epochs"]):
        model.train()
        for rows in torch.randperm(len(x), generator=rng).split(config["batch_size"]):
            step(lambda a, b: F.cross_entropy(model(a), b), x[rows].to(device), y[rows].to(device))
        model.eval()
        with torch.no_grad():
            pieces = zip(valid_x.split(16), valid_y.split(16), strict=True)
            total = sum(
                F.cross_entropy(model(a.to(device)), b.to(device), reduction="sum").item() for a, b in pieces
            )
        yield total / len(valid_x)


def _data(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)
    x, y = images.view(len(images), *shape) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:1437]], y[order[:1437]], x[order[1437:]], y[order[1437:]]
