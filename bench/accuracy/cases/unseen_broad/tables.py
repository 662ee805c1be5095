"""Tables of numbers and categories. Cases stand above the model they train."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts as parts
from bench.lib.models.layers import Residual, joined, normed_lines
from bench.lib.models.parts import Spec, alone, bits, classified, labelled, made, numbers, squared, to_numbers

SEVENTH_TABLES = CaseSet()
case = SEVENTH_TABLES.case


@case("adamw_fused", "amp_bf16", 24000)
def sensors_of_a_plant() -> Spec:
    """Six residual perceptrons over 220 numbers."""

    def block() -> Residual:
        return Residual(
            nn.BatchNorm1d(448), nn.Linear(448, 896), nn.ReLU(), nn.Dropout(0.2), nn.Linear(896, 448)
        )

    model = joined(
        nn.Linear(220, 448), *(block() for _ in range(6)), nn.BatchNorm1d(448), nn.ReLU(), nn.Linear(448, 9)
    )
    return Spec(model, labelled(220, classes=9), classified)


@case("adam", "fp32", 12345, keep_grads=True)
def rent_of_flats() -> Spec:
    """Normed lines, wide and then narrow, one number."""
    model = joined(normed_lines(96, 768, 384, 192, 96, drop=0.15), nn.Linear(96, 1))
    return Spec(model, to_numbers(96, outputs=(1,)), lambda m, x, y: F.smooth_l1_loss(m(x), y))


class _Trees(nn.Module):
    """Trees of five soft questions: every leaf's share is a product, its answer is learnt (NODE)."""

    def __init__(self, columns: int, trees: int = 192, depth: int = 5) -> None:
        super().__init__()
        self.choose = nn.Parameter(torch.randn(columns, trees * depth) * 0.1)
        self.edge, self.slope = (
            nn.Parameter(torch.zeros(trees, depth)),
            nn.Parameter(torch.zeros(trees, depth)),
        )
        self.answer = nn.Parameter(torch.randn(trees, 2**depth))

    def forward(self, x: Tensor) -> Tensor:
        asked = (x @ self.choose.softmax(0)).unflatten(1, self.edge.shape)
        yes = ((asked - self.edge) * torch.exp(-self.slope)).sigmoid()
        share = torch.ones_like(yes[:, :, :1])
        for question in range(yes.size(2)):
            one = yes[:, :, question : question + 1]
            share = torch.cat([share * one, share * (1 - one)], 2)
        return (share * self.answer).sum(2)


@case("nadamw", "fp32", 2500)
def soft_trees() -> Spec:
    """Two layers of trees; the second sees the first's answers too."""

    class Forest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = _Trees(54), _Trees(54 + 192)

        def forward(self, x: Tensor) -> Tensor:
            told = self.first(x)
            return torch.stack([told, self.second(torch.cat([x, told], 1))], 1).mean((1, 2)).unsqueeze(1)

    return Spec(Forest(), to_numbers(54, outputs=(1,)), squared)


class _Gate(nn.Module):
    """Two lines, and a gate that says how much of them is added to what came in."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.short = nn.Linear(inputs, outputs)
        self.layers = joined(nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width), nn.Dropout(0.1))
        self.gate, self.norm = nn.Linear(width, 2 * outputs), nn.LayerNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.short(x) + F.glu(self.gate(self.layers(x)), -1))
        return out


class _Chosen(nn.Module):
    """Every column through a gate of its own, weighed by what all say (a variable selection network)."""

    def __init__(self, columns: int = 32, width: int = 80) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(1, width) for _ in range(columns))
        self.gates = nn.ModuleList(_Gate(width, width, width) for _ in range(columns))
        self.weigh, self.head = _Gate(columns * width, width, columns), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        known = [line(x[:, place : place + 1]) for place, line in enumerate(self.lines)]
        weight = self.weigh(torch.cat(known, 1)).softmax(1)
        bent = torch.stack([gate(column) for gate, column in zip(self.gates, known, strict=True)], 1)
        out: Tensor = self.head((weight.unsqueeze(2) * bent).sum(1))
        return out


@case("adamax", "fp32", 3000, clip=True)
def chosen_columns() -> Spec:
    return Spec(_Chosen(), labelled(32, classes=3), classified)


class _Waves(nn.Module):
    """Every number as sines and cosines of learnt frequencies, a line for each column."""

    def __init__(self, columns: int, waves: int = 24, width: int = 20) -> None:
        super().__init__()
        self.speeds = nn.Parameter(torch.randn(columns, waves) * 0.1)
        self.lines = nn.Parameter(torch.randn(columns, 2 * waves, width) / math.sqrt(2 * waves))

    def forward(self, x: Tensor) -> Tensor:
        angles = 2 * math.pi * x.unsqueeze(2) * self.speeds
        waves = torch.cat([angles.sin(), angles.cos()], 2)
        return torch.einsum("bcw,cwo->bco", waves, self.lines).relu().flatten(1)


@case("adamw", "fp32", 7000)
def waves_for_numbers() -> Spec:
    model = joined(_Waves(70), parts.perceptron(1400, 512, 512, 1))
    return Spec(model, to_numbers(70, outputs=(1,)), squared)


@case("sgdm", "bf16", 9500)
def cells_swapped_between_rows() -> Spec:
    """One cell in seven comes from another row; three wide layers tell what stood there (a denoising autoencoder)."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        swapped = torch.where(torch.rand_like(x) < 0.15, x[torch.randperm(len(x), device=x.device)], x)
        return F.mse_loss(model(swapped), x)

    return Spec(parts.perceptron(221, 1500, 1500, 1500, 221), alone(221), loss)


@case("adam_amsgrad", "fp32", 9000)
def months_until_they_leave() -> Spec:
    """Customers in the order of their times; each who left is weighed against all who were still there (Cox)."""

    def loss(model: nn.Module, x: Tensor, left: Tensor) -> Tensor:
        risk = model(x).squeeze(1)
        return -((risk - torch.logcumsumexp(risk, 0)) * left).sum() / (left.sum() + 1)

    return Spec(
        joined(normed_lines(140, 640, 640, drop=0.4), nn.Linear(640, 1)), made(numbers(140), bits()), loss
    )
