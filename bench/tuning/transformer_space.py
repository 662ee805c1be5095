"""A search space in which many configurations do not fit. The model is a small transformer that reads digits row by
row on a small virtual GPU.

The memory of a configuration depends on width × layers and on the batch size, so no single parameter determines
whether it fits. This space was written independently of `convnet_space`. The network, the data (scikit-learn's digits)
and the training are real. A trial takes 2 to 12 s on one core. The best configurations have medium width and few
layers. `train` is for Legroom, and `epochs` is the same training for other loops.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.tuning.digits import MakeStep, training_losses

METRIC, MODE = "loss", "min"
GPU = "32MiB"
"""The size of the virtual GPU."""
SPACE: dict[str, Any] = {
    "width": {"int_log2": [5, 8]},
    "layers": {"int": [1, 4]},
    "batch_size": {"int_log2": [4, 9]},
    "lr": {"log": [1e-4, 3e-2]},
    "dropout": {"uniform": [0.0, 0.5]},
    "epochs": 4,
}
TYPICAL = {"width": 128, "layers": 2, "batch_size": 32, "lr": 1e-3, "dropout": 0.1, "epochs": 2}
"""The configuration with which the number of threads is chosen."""
HEAD = 16
"""The width of an attention head."""


class Block(nn.Module):
    """Attention over the rows of an image and two linear layers, with residual connections."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, rows, width = x.shape
        parts = self.qkv(self.norm1(x)).view(images, rows, 3, self.heads, HEAD).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.dropout(self.joined(seen.transpose(1, 2).reshape(images, rows, width)))
        return x + self.dropout(self.narrow(F.gelu(self.wide(self.norm2(x)))))


class RowReader(nn.Module):
    """A transformer in which each row of eight pixels is a token. The scores are computed from the mean over
    tokens."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.row = nn.Linear(8, width)
        self.place = nn.Parameter(torch.randn(8, width) * 0.1)
        self.blocks = nn.Sequential(*[Block(width, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.scores(self.norm(self.blocks(self.row(images) + self.place)).mean(1))


def train(config: dict[str, Any], trial: Any) -> None:
    """Train a trial of `legroom.tune`."""
    for loss in epochs(config, trial.device, lambda model, optimizer: trial.guard(model, optimizer).step):
        trial.report(loss=loss)


def epochs(config: dict[str, Any], device: str, make_step: MakeStep) -> Iterator[float]:
    """Train, and yield the validation loss after each epoch."""
    torch.manual_seed(0)
    model = RowReader(config["width"], config["layers"], config["dropout"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    return training_losses(model, optimizer, config, device, make_step, 8, 8)
