"""Graph networks, molecules, knowledge graphs and sensor networks."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.layers import sequential
from bench.lib.models.parts import (
    Spec,
    batch_of,
    integers,
    mlp,
    mse_loss,
    normal,
    uniform,
    with_targets,
    zeros_or_ones,
)

CASES = CaseSet()
case = CASES.case


def _edges(degree: int) -> Callable[[int], Tensor]:
    """Return random edges. The batch size is the number of nodes."""
    return lambda count: torch.randint(0, count, (2, degree * count))


def _node_loss(model: nn.Module, *graph: Tensor) -> Tensor:
    """Return the cross-entropy over nodes. The last tensor of the batch is the target."""
    *seen, target = graph
    return F.cross_entropy(model(*seen), target)


def _sum_messages(messages: Tensor, ends: Tensor, nodes: int) -> Tensor:
    """Sum messages at their target nodes."""
    return messages.new_zeros(nodes, *messages.shape[1:]).index_add(0, ends, messages)


class _PNALayer(nn.Module):
    """A layer that aggregates the mean, minimum, maximum and standard deviation of the neighbors' messages (PNA)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.send = nn.Linear(2 * width, width)
        self.take = sequential(nn.Linear(5 * width, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        messages = self.send(torch.cat([x[ends[0]], x[ends[1]]], 1))
        where = ends[1].unsqueeze(1).expand_as(messages)

        def over(what: Tensor, how: str) -> Tensor:
            return torch.zeros_like(x).scatter_reduce(0, where, what, how, include_self=False)

        mean = over(messages, "mean")
        spread = F.relu(over(messages * messages, "mean") - mean * mean).add(1e-5).sqrt()
        out: Tensor = x + self.take(
            torch.cat([x, mean, over(messages, "amin"), over(messages, "amax"), spread], 1)
        )
        return out


@case("adam", "fp32", 9000)
def four_ways_to_add() -> Spec:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.head = nn.Linear(75, 96), nn.Linear(96, 10)
            self.layers = nn.ModuleList(_PNALayer(96) for _ in range(3))

        def forward(self, x: Tensor, ends: Tensor) -> Tensor:
            x = self.enter(x)
            for layer in self.layers:
                x = layer(x, ends)
            out: Tensor = self.head(x)
            return out

    return Spec(Graph(), batch_of(normal(75), _edges(5), integers(10)), _node_loss)


class _GCNII(nn.Module):
    """A graph network of sixteen layers with initial residuals and identity mapping (GCNII)."""

    def __init__(self, inputs: int, width: int, classes: int, depth: int = 16) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(inputs, width), nn.Linear(width, classes)
        self.lines = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x: Tensor, ends: Tensor, weight: Tensor) -> Tensor:
        first = x = F.dropout(self.enter(x).relu(), 0.5, self.training)
        for place, line in enumerate(self.lines):
            share = 0.5 / (place + 1)
            x = 0.9 * _sum_messages(x[ends[0]] * weight.view(-1, 1) / 3, ends[1], len(x)) + 0.1 * first
            x = F.dropout(((1 - share) * x + share * line(x)).relu(), 0.5, self.training)
        out: Tensor = self.head(x)
        return out


@case("adam", "fp32", 13000)
def sixteen_layers_of_neighbours() -> Spec:
    return Spec(_GCNII(300, 128, 18), batch_of(normal(300), _edges(6), uniform(6), integers(18)), _node_loss)


class _RelationalConv(nn.Module):
    """Relational convolution. A layer in which the weights of forty relations are mixtures of six bases (R-GCN)."""

    def __init__(self, inputs: int, outputs: int, relations: int = 40, few: int = 6) -> None:
        super().__init__()
        self.few = nn.Parameter(torch.randn(few, inputs, outputs) * 0.05)
        self.mix, self.own = nn.Parameter(torch.randn(relations, few)), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, ends: Tensor, kind: Tensor) -> Tensor:
        moved = torch.einsum("ni,fio->nfo", x, self.few)
        messages = (moved[ends[0]] * self.mix[kind].unsqueeze(2)).sum(1)
        out: Tensor = self.own(x) + _sum_messages(messages, ends[1], len(x)) / 4
        return out


@case("adamw_loop", "fp32", 20000)
def forty_kinds_of_edges() -> Spec:
    """Build a graph network whose nodes have only a learned embedding."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nodes, self.head = nn.Embedding(20000, 64), _RelationalConv(64, 8)
            self.layer = _RelationalConv(64, 64)

        def forward(self, ids: Tensor, ends: Tensor, kind: Tensor) -> Tensor:
            out: Tensor = self.head(
                self.layer(self.nodes(ids), ends, kind.flatten()).relu(), ends, kind.flatten()
            )
            return out

    return Spec(Graph(), batch_of(integers(20000), _edges(4), integers(40, 4), integers(8)), _node_loss)


class _EGNN(nn.Module):
    """Equivariant message passing over atom positions (EGNN)."""

    def __init__(self, width: int = 96, layers: int = 4) -> None:
        super().__init__()
        self.atoms, self.head = nn.Embedding(12, width), mlp(width, width, 1)
        self.send = nn.ModuleList(
            mlp(2 * width + 1, width, width, last=True, act=nn.SiLU) for _ in range(layers)
        )
        self.take = nn.ModuleList(mlp(2 * width, width, width, act=nn.SiLU) for _ in range(layers))
        self.move = nn.ModuleList(nn.Linear(width, 1) for _ in range(layers))

    def forward(self, atoms: Tensor, places: Tensor) -> Tensor:
        x = self.atoms(atoms)
        for send, take, move in zip(self.send, self.take, self.move, strict=True):
            apart = places.unsqueeze(2) - places.unsqueeze(1)
            pair = x.unsqueeze(2).expand(-1, -1, x.size(1), -1)
            messages = send(torch.cat([pair, pair.transpose(1, 2), apart.pow(2).sum(3, keepdim=True)], 3))
            places = places + (apart * move(messages)).mean(2)
            x = x + take(torch.cat([x, messages.sum(2)], 2))
        out: Tensor = self.head(x.sum(1)).squeeze(1)
        return out


@case("adamw", "tf32", 64, ema=True)
def atoms_that_move_each_other() -> Spec:
    return Spec(
        _EGNN(),
        batch_of(integers(12, 29), normal(29, 3), normal()),
        lambda m, atoms, places, y: F.l1_loss(m(atoms, places), y),
    )


class _ConvE(nn.Module):
    """Knowledge graph completion, in which subject and relation form a small image for a convolution (ConvE)."""

    def __init__(self, things: int = 15000, relations: int = 470, width: int = 200) -> None:
        super().__init__()
        self.things, self.relations = nn.Embedding(things, width), nn.Embedding(relations, width)
        self.see = sequential(
            nn.BatchNorm2d(1),
            nn.Dropout(0.2),
            nn.Conv2d(1, 32, 3),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Dropout2d(0.2),
            nn.Flatten(),
            nn.Linear(32 * 18 * 18, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )
        self.bias = nn.Parameter(torch.zeros(things))

    def forward(self, thing: Tensor, relation: Tensor) -> Tensor:
        pair = torch.cat([self.things(thing), self.relations(relation)], 1).view(-1, 1, 20, 20)
        out: Tensor = self.see(pair) @ self.things.weight.T + self.bias
        return out


@case("adam", "tf32", 512)
def facts_as_pictures() -> Spec:
    return Spec(
        _ConvE(),
        batch_of(integers(15000), integers(470), zeros_or_ones(15000)),
        lambda m, thing, relation, y: F.binary_cross_entropy_with_logits(m(thing, relation), y * 0.9 + 1e-4),
    )


class _STGCN(nn.Module):
    """Gated temporal convolutions and graph convolutions over road sensors (STGCN)."""

    def __init__(self, sensors: int = 325, width: int = 64) -> None:
        super().__init__()
        self.register_buffer("near", torch.rand(sensors, sensors).softmax(1))
        sizes = ((2, width), (width // 4, width), (width, width), (width // 4, width))
        self.looks = nn.ModuleList(nn.Conv2d(a, 2 * b, (3, 1)) for a, b in sizes)
        self.across = nn.ModuleList(nn.Conv2d(width, width // 4, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm([sensors, width]) for _ in range(2))
        self.head = nn.Conv2d(width, 12, (4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2)
        for place, (across, norm) in enumerate(zip(self.across, self.norms, strict=True)):
            x = F.glu(self.looks[2 * place](x), 1)
            x = across(torch.einsum("bctn,mn->bctm", x, self.near)).relu()
            x = F.glu(self.looks[2 * place + 1](x), 1)
            x = F.dropout(norm(x.permute(0, 2, 3, 1)), 0.3, self.training).permute(0, 3, 1, 2)
        out: Tensor = self.head(x).squeeze(2)
        return out


@case("rmsprop_momentum", "amp_bf16", 72)
def sensors_on_roads() -> Spec:
    return Spec(_STGCN(), with_targets(12, 325, 2, outputs=(12, 325)), mse_loss)
