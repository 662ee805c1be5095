"""Tables of numbers and categories, and recommenders."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts
from bench.lib.models.blocks import binary_loss
from bench.lib.models.layers import Recurrent, Residual, linear_norm, sequential
from bench.lib.models.parts import (
    Spec,
    batch_of,
    classification_loss,
    integers,
    labelled,
    mlp,
    mse_loss,
    normal,
    unlabelled,
    with_targets,
    zeros_or_ones,
)

CASES = CaseSet()
case = CASES.case


# Tables.


@case("adamw_fused", "amp_bf16", 24000)
def sensors_of_a_plant() -> Spec:
    """Build six residual MLP blocks on 220 columns."""

    def block() -> Residual:
        return Residual(
            nn.BatchNorm1d(448), nn.Linear(448, 896), nn.ReLU(), nn.Dropout(0.2), nn.Linear(896, 448)
        )

    model = sequential(
        nn.Linear(220, 448), *(block() for _ in range(6)), nn.BatchNorm1d(448), nn.ReLU(), nn.Linear(448, 9)
    )
    return Spec(model, labelled(220, classes=9), classification_loss)


@case("adam", "fp32", 12345, keep_grads=True)
def rent_of_flats() -> Spec:
    """Build linear layers with batch norm and one regression target."""
    model = sequential(linear_norm(96, 768, 384, 192, 96, drop=0.15), nn.Linear(96, 1))
    return Spec(model, with_targets(96, outputs=(1,)), lambda m, x, y: F.smooth_l1_loss(m(x), y))


class _ObliviousTrees(nn.Module):
    """Differentiable oblivious decision trees (NODE)."""

    def __init__(self, columns: int, trees: int = 192, depth: int = 5) -> None:
        super().__init__()
        self.choose = nn.Parameter(torch.randn(columns, trees * depth) * 0.1)
        self.edge, self.slope = (
            nn.Parameter(torch.zeros(trees, depth)),
            nn.Parameter(torch.zeros(trees, depth)),
        )
        self.answer = nn.Parameter(torch.randn(trees, 2**depth))

    def forward(self, x: Tensor) -> Tensor:
        projected = (x @ self.choose.softmax(0)).unflatten(1, self.edge.shape)
        yes = ((projected - self.edge) * torch.exp(-self.slope)).sigmoid()
        share = torch.ones_like(yes[:, :, :1])
        for question in range(yes.size(2)):
            one = yes[:, :, question : question + 1]
            share = torch.cat([share * one, share * (1 - one)], 2)
        return (share * self.answer).sum(2)


@case("nadamw", "fp32", 2500)
def soft_trees() -> Spec:
    """Build two layers of trees. The second layer also receives the output of the first layer."""

    class Forest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = _ObliviousTrees(54), _ObliviousTrees(54 + 192)

        def forward(self, x: Tensor) -> Tensor:
            output = self.first(x)
            return torch.stack([output, self.second(torch.cat([x, output], 1))], 1).mean((1, 2)).unsqueeze(1)

    return Spec(Forest(), with_targets(54, outputs=(1,)), mse_loss)


class _GatedResidual(nn.Module):
    """A gated residual network."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.short = nn.Linear(inputs, outputs)
        self.layers = sequential(nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width), nn.Dropout(0.1))
        self.gate, self.norm = nn.Linear(width, 2 * outputs), nn.LayerNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.short(x) + F.glu(self.gate(self.layers(x)), -1))
        return out


class _VariableSelection(nn.Module):
    """A variable selection network with one gated network per column, weighted by a softmax."""

    def __init__(self, columns: int = 32, width: int = 80) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(1, width) for _ in range(columns))
        self.gates = nn.ModuleList(_GatedResidual(width, width, width) for _ in range(columns))
        self.weigh, self.head = _GatedResidual(columns * width, width, columns), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        known = [line(x[:, place : place + 1]) for place, line in enumerate(self.lines)]
        weight = self.weigh(torch.cat(known, 1)).softmax(1)
        bent = torch.stack([gate(column) for gate, column in zip(self.gates, known, strict=True)], 1)
        out: Tensor = self.head((weight.unsqueeze(2) * bent).sum(1))
        return out


@case("adamax", "fp32", 3000, clip=True)
def chosen_columns() -> Spec:
    return Spec(_VariableSelection(), labelled(32, classes=3), classification_loss)


class _PeriodicEmbedding(nn.Module):
    """Periodic embeddings of numbers with learned frequencies."""

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
    model = sequential(_PeriodicEmbedding(70), parts.mlp(1400, 512, 512, 1))
    return Spec(model, with_targets(70, outputs=(1,)), mse_loss)


@case("sgdm", "bf16", 9500)
def cells_swapped_between_rows() -> Spec:
    """Return a denoising autoencoder. One value in seven is replaced by the value of another sample."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        swapped = torch.where(torch.rand_like(x) < 0.15, x[torch.randperm(len(x), device=x.device)], x)
        return F.mse_loss(model(swapped), x)

    return Spec(parts.mlp(221, 1500, 1500, 1500, 221), unlabelled(221), loss)


@case("adam_amsgrad", "fp32", 9000)
def months_until_they_leave() -> Spec:
    """Build a survival model with the Cox partial likelihood over sorted times."""

    def loss(model: nn.Module, x: Tensor, left: Tensor) -> Tensor:
        risk = model(x).squeeze(1)
        return -((risk - torch.logcumsumexp(risk, 0)) * left).sum() / (left.sum() + 1)

    return Spec(
        sequential(linear_norm(140, 640, 640, drop=0.4), nn.Linear(640, 1)),
        batch_of(normal(140), zeros_or_ones()),
        loss,
    )


# Recommenders.


class _GRU4Rec(nn.Module):
    """A session-based GRU with in-batch negatives (GRU4Rec)."""

    def __init__(self, things: int = 90000, width: int = 128) -> None:
        super().__init__()
        self.things, self.read = nn.Embedding(things, width), Recurrent(nn.GRU, width, 2 * width)
        self.leave = nn.Linear(2 * width, width)

    def forward(self, clicked: Tensor, following: Tensor) -> Tensor:
        seen = self.leave(F.dropout(self.read(self.things(clicked)), 0.2)).transpose(0, 1)
        near = seen @ self.things(following).transpose(0, 1).transpose(1, 2)
        right = torch.arange(len(clicked), device=near.device).repeat(near.size(0))
        return F.cross_entropy(near.flatten(0, 1), right)


@case("adagrad", "fp32", 600)
def sessions_of_clicks() -> Spec:
    return Spec(_GRU4Rec(), batch_of(integers(90000, 20), integers(90000, 20)), lambda m, *ids: m(*ids))


class _Fields(nn.Module):
    """Embeddings of many categorical fields in one table."""

    def __init__(self, fields: int, words: int, width: int) -> None:
        super().__init__()
        self.register_buffer("begins", torch.arange(fields) * words)
        self.table = nn.Embedding(fields * words, width)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.table(ids + self.begins)
        return out


class _XDeepFM(nn.Module):
    """A compressed interaction network over outer products of fields (xDeepFM)."""

    def __init__(self, fields: int = 22, width: int = 16, few: int = 64) -> None:
        super().__init__()
        self.fields = _Fields(fields, 15000, width)
        self.few = nn.ModuleList(nn.Conv1d(fields * inputs, few, 1) for inputs in (fields, few, few))
        self.deep, self.head = mlp(fields * width, 400, 400, 1), nn.Linear(3 * few, 1)

    def forward(self, ids: Tensor) -> Tensor:
        first = self.fields(ids)
        now, kept = first, []
        for few in self.few:
            now = few(torch.einsum("bid,bjd->bijd", first, now).flatten(1, 2)).relu()
            kept.append(now.sum(2))
        return (self.head(torch.cat(kept, 1)) + self.deep(first.flatten(1))).squeeze(1)


@case("adam", "fp32", 1500)
def fields_in_outer_products() -> Spec:
    return Spec(_XDeepFM(), batch_of(integers(15000, 22), zeros_or_ones()), binary_loss)


class _FwFM(nn.Module):
    """A field-weighted factorization machine and an MLP (FwFM)."""

    def __init__(self, fields: int = 39, width: int = 12) -> None:
        super().__init__()
        self.fields, self.alone = _Fields(fields, 12000, width), _Fields(fields, 12000, 1)
        self.register_buffer("pairs", torch.triu_indices(fields, fields, 1))
        self.weigh = nn.Linear(fields * (fields - 1) // 2, 1)
        self.deep = mlp(fields * width, 512, 256, 1)

    def forward(self, ids: Tensor) -> Tensor:
        known = self.fields(ids)
        products = (known[:, self.pairs[0]] * known[:, self.pairs[1]]).sum(2)
        return (self.weigh(products) + self.deep(known.flatten(1)) + self.alone(ids).sum(1)).squeeze(1)


@case("adam_loop", "amp_bf16", 6000)
def weighed_pairs_of_fields() -> Spec:
    return Spec(_FwFM(), batch_of(integers(12000, 39), zeros_or_ones()), binary_loss)


class _Caser(nn.Module):
    """Horizontal and vertical convolutions over an image of the last nine items (Caser)."""

    def __init__(self, songs: int = 40000, width: int = 96, last: int = 9) -> None:
        super().__init__()
        self.songs, self.people = nn.Embedding(songs, width), nn.Embedding(60000, width)
        self.over = nn.ModuleList(nn.Conv2d(1, 24, (high, width)) for high in range(1, last + 1))
        self.along = nn.Conv2d(1, 6, (last, 1))
        self.join, self.head = nn.Linear(24 * last + 6 * width, width), nn.Linear(2 * width, songs)

    def forward(self, played: Tensor, person: Tensor) -> Tensor:
        picture = self.songs(played).unsqueeze(1)
        seen = [over(picture).relu().amax(2).flatten(1) for over in self.over]
        known = self.join(F.dropout(torch.cat([*seen, self.along(picture).flatten(1)], 1), 0.4)).relu()
        out: Tensor = self.head(torch.cat([known, self.people(person)], 1))
        return out


@case("adam", "amp_fp16", 1200)
def songs_as_pictures() -> Spec:
    return Spec(
        _Caser(),
        batch_of(integers(40000, 9), integers(60000), integers(40000)),
        lambda m, played, person, y: F.cross_entropy(m(played, person), y),
    )


@case("lion", "fp32", 8000)
def one_of_all_shops() -> Spec:
    """Return a model that predicts one of 3,000 shops from a bag of seventy search terms."""
    model = sequential(nn.EmbeddingBag(110000, 80, mode="mean"), mlp(80, 320, 3000))
    return Spec(model, batch_of(integers(110000, 70), integers(3000)), classification_loss)
