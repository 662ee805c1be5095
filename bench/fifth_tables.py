"""Tables. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import model_parts as parts
from bench.block_parts import yes_or_no
from bench.case import CaseSet
from bench.layer_parts import joined
from bench.model_parts import Spec, bits, classified, kinds, made, numbers, perceptron

FIFTH_TABLES = CaseSet()
case = FIFTH_TABLES.case


@case("adamw", "fp32", 16384)
def insurance() -> Spec:
    """Eighty columns through five wide layers with norms and dropout."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((80, 512), (512, 512), (512, 512), (512, 256), (256, 128)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.SiLU(), nn.Dropout(0.25)]
    return Spec(joined(layers, nn.Linear(128, 3)), parts.labelled(80, classes=3), classified)


@case("adam", "fp32", 20000, evaluate=True)
def self_normed_rows() -> Spec:
    """SELU and alpha dropout over 200 numbers."""
    layers = [
        part for a in (200, 400, 400, 400) for part in (nn.Linear(a, 400), nn.SELU(), nn.AlphaDropout(0.1))
    ]
    return Spec(joined(*layers, nn.Linear(400, 1)), parts.to_numbers(200, outputs=(1,)), parts.squared)


class _Entities(nn.Module):
    """Vectors for many categories beside some numbers, then a perceptron."""

    def __init__(self, sizes: tuple[int, ...] = (60000, 12000, 3000, 800, 200, 50, 30, 7)) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.ModuleList(nn.Embedding(size, min(50, size // 2)) for size in sizes)
        width = sum(table.embedding_dim for table in self.words) + 24
        self.head = perceptron(width, 1000, 500, 1)

    def forward(self, categories: Tensor, rest: Tensor) -> Tensor:
        found = [
            table(categories[:, place] % size)
            for place, (table, size) in enumerate(zip(self.words, self.sizes, strict=True))
        ]
        out: Tensor = self.head(torch.cat([*found, rest], 1)).squeeze(1)
        return out


@case("adam", "fp32", 8192)
def shops_and_seasons() -> Spec:
    return Spec(
        _Entities(),
        made(kinds(60000, 8), numbers(24), numbers()),
        lambda m, categories, rest, y: F.l1_loss(m(categories, rest), y),
    )


class _Experts(nn.Module):
    """Six experts, mixed anew for each of three questions (MMoE)."""

    def __init__(self, inputs: int = 300) -> None:
        super().__init__()
        self.experts = nn.ModuleList(perceptron(inputs, 512, 256) for _ in range(6))
        self.mixes = nn.ModuleList(nn.Linear(inputs, 6) for _ in range(3))
        self.heads = nn.ModuleList(perceptron(256, 64, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        known = torch.stack([expert(x) for expert in self.experts], 1)
        told = [
            head((mix(x).softmax(1).unsqueeze(2) * known).sum(1))
            for mix, head in zip(self.mixes, self.heads, strict=True)
        ]
        return torch.cat(told, 1)


@case("adagrad", "fp32", 4096)
def three_questions() -> Spec:
    return Spec(_Experts(), made(numbers(300), bits(3)), yes_or_no)
