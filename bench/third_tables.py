"""Tables, recommenders, graphs and points. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import joined, normed_lines
from bench.model_parts import (
    Spec,
    bits,
    classified,
    kinds,
    made,
    numbers,
    perceptron,
    squared,
    to_numbers,
)

THIRD_TABLES = CaseSet()
case = THIRD_TABLES.case


# Tables and recommenders.


@case("adam", "fp32", 4096)
def wide_rows() -> Spec:
    """Fifty numbers through layers of 1024 with norms."""
    model = joined(normed_lines(50, 1024, 1024, 512, drop=0.3), nn.Linear(512, 1))
    return Spec(model, to_numbers(50, outputs=(1,)), squared)


class _Crossed(nn.Module):
    """Twenty-six fields as vectors, crossed by a matrix in each layer, a perceptron beside (DCN v2)."""

    def __init__(self, width: int = 26 * 16 + 13) -> None:
        super().__init__()
        self.words = nn.Embedding(26 * 20000, 16)
        self.register_buffer("begins", torch.arange(26) * 20000)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.deep, self.head = perceptron(width, 768, 768, last=True), nn.Linear(width + 768, 1)

    def forward(self, fields: Tensor, values: Tensor) -> Tensor:
        first = torch.cat([self.words(fields + self.begins).flatten(1), values], 1)
        x = first
        for line in self.cross:
            x = first * line(x) + x
        out: Tensor = self.head(torch.cat([x, self.deep(first)], 1)).squeeze(1)
        return out


@case("adam", "fp32", 4096)
def crossed_fields() -> Spec:
    return Spec(
        _Crossed(),
        made(kinds(20000, 26), numbers(13), bits()),
        lambda m, fields, values, y: F.binary_cross_entropy_with_logits(m(fields, values), y),
    )


class _WordsNear(nn.Module):
    """Words near each other and five that are not (word2vec)."""

    def __init__(self, words: int = 80000, width: int = 128) -> None:
        super().__init__()
        self.inside, self.outside = nn.Embedding(words, width), nn.Embedding(words, width)

    def forward(self, word: Tensor, near: Tensor, far: Tensor) -> Tensor:
        x = self.inside(word)
        good = F.logsigmoid((x * self.outside(near)).sum(1))
        bad = F.logsigmoid(-torch.bmm(self.outside(far), x.unsqueeze(2)).squeeze(2)).sum(1)
        return -(good + bad).mean()


@case("adagrad", "fp32", 2048)
def words_near() -> Spec:
    return Spec(
        _WordsNear(), made(kinds(80000), kinds(80000), kinds(80000, 5)), lambda m, a, b, c: m(a, b, c)
    )


class _Neighbours(nn.Module):
    """Users and things as one graph; their vectors are spread over it three times (LightGCN)."""

    def __init__(self, users: int = 30000, things: int = 40000) -> None:
        super().__init__()
        self.users = users
        self.nodes = nn.Embedding(users + things, 64)
        edges = torch.stack(
            [torch.randint(0, users, (400000,)), torch.randint(users, users + things, (400000,))]
        )
        self.register_buffer("edges", torch.cat([edges, edges.flip(0)], 1))

    def forward(self, user: Tensor, liked: Tensor, other: Tensor) -> Tensor:
        x = self.nodes.weight
        layers = [x]
        for _ in range(3):
            x = torch.zeros_like(x).index_add(0, self.edges[0], x[self.edges[1]] * 0.1)
            layers.append(x)
        x = torch.stack(layers).mean(0)
        of_user = x[user]
        good, bad = (of_user * x[liked + self.users]).sum(1), (of_user * x[other + self.users]).sum(1)
        return F.softplus(bad - good).mean()


@case("adam", "fp32", 2048)
def liked_by_neighbours() -> Spec:
    return Spec(_Neighbours(), made(kinds(30000), kinds(40000), kinds(40000)), lambda m, a, b, c: m(a, b, c))


# Graphs and points.


class _Sums(nn.Module):
    """Neighbours are added, a perceptron bends them (GIN); whole graphs are summed."""

    def __init__(self, width: int = 300) -> None:
        super().__init__()
        self.atoms, self.bonds = (
            nn.Embedding(119, width),
            nn.ModuleList(nn.Embedding(8, width) for _ in range(5)),
        )
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.BatchNorm1d(width))
            for _ in range(5)
        )  # fmt: skip
        self.head = nn.Linear(width, 12)

    def forward(self, atoms: Tensor, edges: Tensor, bonds: Tensor, graph: Tensor, count: int) -> Tensor:
        x = self.atoms(atoms)
        for layer, bond in zip(self.layers, self.bonds, strict=True):
            message = F.relu(x[edges[0]] + bond(bonds))
            x = F.dropout(
                F.relu(layer(x + torch.zeros_like(x).index_add_(0, edges[1], message))), 0.5, self.training
            )
        whole = torch.zeros(count, x.size(1), device=x.device).index_add_(0, graph, x)
        out: Tensor = self.head(whole)
        return out


@case("adam", "fp32", 256)
def poisons() -> Spec:
    """Molecules of 25 atoms and 54 bonds."""

    def batch(count: int, device: str) -> list[Tensor]:
        graph = torch.arange(count).repeat_interleave(25)
        edges = torch.randint(0, 25, (2, count * 54)) + torch.arange(count).repeat_interleave(54) * 25
        made_here = (
            torch.randint(0, 119, (count * 25,)),
            edges,
            torch.randint(0, 8, (count * 54,)),
            graph,
            torch.randint(0, 2, (count, 12)).float(),
        )
        return [one.to(device) for one in made_here]

    def loss(
        model: nn.Module, atoms: Tensor, edges: Tensor, bonds: Tensor, graph: Tensor, y: Tensor
    ) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(atoms, edges, bonds, graph, len(y)), y)

    return Spec(_Sums(), batch, loss)


class _Mean(nn.Module):
    """One large graph at once; the mean of neighbours beside the node itself (GraphSAGE)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (128, 256, 256)
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, (256, 256, 40), strict=True))
        self.near = nn.ModuleList(
            nn.Linear(a, b, bias=False) for a, b in zip(widths, (256, 256, 40), strict=True)
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        many = (
            torch.zeros(len(x), 1, device=x.device)
            .index_add_(0, edges[1], torch.ones(edges.size(1), 1, device=x.device))
            .clamp(min=1)
        )
        for level, (own, near) in enumerate(zip(self.own, self.near, strict=True)):
            total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            x = own(x) + near(total / many)
            if level < 2:
                x = F.dropout(F.relu(x), 0.5, self.training)
        return x


@case("adam", "fp32", 60000)
def papers() -> Spec:
    """The batch counts the papers of the graph."""

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            one.to(device)
            for one in (
                torch.randn(count, 128),
                torch.randint(0, count, (2, 7 * count)),
                torch.randint(0, 40, (count,)),
            )
        ]

    return Spec(_Mean(), batch, lambda m, x, edges, y: F.cross_entropy(m(x, edges), y))


class _Points(nn.Module):
    """Every point alone, then all together, then every point again with what all know (PointNet, parts)."""

    def __init__(self) -> None:
        super().__init__()

        def line(*widths: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for inputs, outputs in itertools.pairwise(widths):
                layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
            return nn.Sequential(*layers)

        self.low, self.high = line(6, 64, 128, 128), line(128, 512, 1024)
        self.part = nn.Sequential(line(1024 + 128, 256, 128), nn.Dropout(0.3), nn.Conv1d(128, 13, 1))

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(x)
        whole = self.high(low).amax(2, keepdim=True).expand(-1, -1, x.size(2))
        out: Tensor = self.part(torch.cat([low, whole], 1))
        return out


@case("adam", "fp32", 16)
def rooms_of_points() -> Spec:
    return Spec(_Points(), made(numbers(6, 4096), kinds(13, 4096)), classified)
