"""A search space of small GPTs for a real GPU with little free memory. Some configurations fit only in micro-batches,
and some do not fit at all.

The texts are synthetic. In nine of ten cases, a rule determines a token from the two tokens before it. `train` is for
Legroom, and `epochs` is the same training for other loops.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.tuning.other_program import REAL

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Step = Callable[[LossFunction, torch.Tensor, torch.Tensor], Any]
VOCABULARY = 512
ROUNDS = 6
"""The number of reports per trial."""
GPU = REAL
SPACE: dict[str, Any] = {
    "width": {"int_log2": [9, 12]},
    "layers": {"int": [2, 8]},
    "batch_size": {"int_log2": [3, 8]},
    "lr": {"log": [1e-5, 1e-2]},
    "dropout": {"uniform": [0.0, 0.3]},
    "texts": 3072,  # per trial, for any batch size; takes a few seconds
    "length": 256,
}
TYPICAL = {
    "width": 1024, "layers": 4, "batch_size": 32, "lr": 1e-3, "dropout": 0.1, "texts": 3072, "length": 256
}  # fmt: skip
"""The configuration with which the number of threads is chosen."""


class GPT(nn.Module):
    """Transformer blocks with a linear layer of four times the width."""

    def __init__(self, width: int, layers: int, dropout: float, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        x = self.tokens(texts) + self.places.weight[: texts.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.pick, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        picked = self.pick(self.norm1(x)).view(rows, length, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(picked[0], picked[1], picked[2], is_causal=True)
        x = x + self.dropout(self.join(seen.transpose(1, 2).reshape(rows, length, width)))
        return x + self.dropout(self.narrow(F.gelu(self.widen(self.norm2(x)))))


def train(config: dict[str, Any], trial: Any) -> None:
    """Train a trial of `legroom.tune`."""
    for loss in epochs(config, trial.device, lambda model, optimizer: trial.guard(model, optimizer).step):
        trial.report(loss=loss)


def epochs(
    config: dict[str, Any], device: str, make_step: Callable[[nn.Module, torch.optim.Optimizer], Step]
) -> Iterator[float]:
    """Train, and yield the validation loss after each round."""
    torch.manual_seed(0)
    length = config["length"]
    texts, other = _texts(config["texts"], length, seed=1).to(device), _texts(64, length, seed=2).to(device)
    model = GPT(config["width"], config["layers"], config["dropout"], length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    step = make_step(model, optimizer)

    def loss_of(texts: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            return F.cross_entropy(model(texts).flatten(0, 1), following.flatten())

    for part in texts.split(len(texts) // ROUNDS):
        model.train()
        for batch in part.split(config["batch_size"]):
            step(loss_of, batch[:, :-1], batch[:, 1:])
        model.eval()
        with torch.no_grad():
            losses = [loss_of(piece[:, :-1], piece[:, 1:]).item() for piece in other.split(8)]
        yield sum(losses) / len(losses)


def _texts(count: int, length: int, *, seed: int) -> torch.Tensor:
    """Return tokens. Return synthetic texts. In nine of ten cases, a rule determines a token from the two tokens
    before it."""
    rng = torch.Generator().manual_seed(seed)
    texts = torch.randint(VOCABULARY, (count, length + 1), generator=rng)
    follows = torch.rand(count, length + 1, generator=rng) < 0.9
    for place in range(2, length + 1):
        ruled = (texts[:, place - 1] * 5 + texts[:, place - 2] // 16 + 7) % VOCABULARY
        texts[:, place] = torch.where(follows[:, place], ruled, texts[:, place])
    return texts
