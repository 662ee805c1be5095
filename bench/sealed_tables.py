"""Tables, recommenders, graphs and points. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import (
    Spec,
    classified,
    labelled,
    perceptron,
)

SEALED_TABLES = CaseSet()
case = SEALED_TABLES.case


# Tables and recommenders.


class _Clicks(nn.Module):
    """Bags of many categories, a perceptron over numbers, and how near each is to each (DLRM)."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(size, 32, mode="sum") for size in (200000, 50000, 10000, 3000, 500, 100)
        )
        self.bottom, self.top = perceptron(13, 256, 64, 32, last=True), perceptron(32 + 21, 256, 128, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        all_of_them = torch.stack([dense, *(bag(kinds[:, i]) for i, bag in enumerate(self.bags))], 1)
        near = torch.bmm(all_of_them, all_of_them.transpose(1, 2))
        row, column = torch.tril_indices(7, 7, -1, device=near.device)
        out: Tensor = self.top(torch.cat([dense, near[:, row, column]], 1))
        return out.squeeze(1)


@case("sgd", "fp32", 2048)
def clicks() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        made = (
            torch.rand(count, 13),
            torch.randint(0, 100, (count, 6, 4)),
            torch.randint(0, 2, (count,)).float(),
        )
        return [one.to(device) for one in made]

    return Spec(
        _Clicks(),
        batch,
        lambda m, numbers, kinds, y: F.binary_cross_entropy_with_logits(m(numbers, kinds), y),
    )


class _Towers(nn.Module):
    """A tower for people, a tower for things; all other things of the batch are wrong ones."""

    def __init__(self) -> None:
        super().__init__()
        self.people, self.things = nn.Embedding(300000, 64), nn.Embedding(80000, 64)
        self.left, self.right = perceptron(64 + 10, 256, 128, 64), perceptron(64 + 30, 256, 128, 64)

    def forward(self, person: Tensor, about: Tensor, thing: Tensor, what: Tensor) -> Tensor:
        a = F.normalize(self.left(torch.cat([self.people(person), about], 1)), dim=1)
        b = F.normalize(self.right(torch.cat([self.things(thing), what], 1)), dim=1)
        return F.cross_entropy(a @ b.t() / 0.05, torch.arange(len(a), device=a.device))


@case("adagrad", "fp32", 1024)
def two_towers() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        made = (
            torch.randint(0, 300000, (count,)),
            torch.randn(count, 10),
            torch.randint(0, 80000, (count,)),
            torch.randn(count, 30),
        )
        return [one.to(device) for one in made]

    return Spec(_Towers(), batch, lambda m, *inputs: m(*inputs))


class _Collaborative(nn.Module):
    """A product of vectors beside a perceptron over others (NeuMF)."""

    def __init__(self) -> None:
        super().__init__()
        self.user_product, self.item_product = nn.Embedding(60000, 32), nn.Embedding(40000, 32)
        self.user_layers, self.item_layers = nn.Embedding(60000, 64), nn.Embedding(40000, 64)
        self.layers, self.head = perceptron(128, 128, 64, 32, last=True), nn.Linear(64, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = self.user_product(user) * self.item_product(item)
        deep = self.layers(torch.cat([self.user_layers(user), self.item_layers(item)], 1))
        return torch.sigmoid(self.head(torch.cat([product, deep], 1))).squeeze(1)


@case("adam", "fp32", 256, evaluate=True)
def film_nights() -> Spec:
    """Each watched film with four that were not."""

    def batch(count: int, device: str) -> list[Tensor]:
        user = torch.randint(0, 60000, (count,)).repeat_interleave(5)
        item, seen = torch.randint(0, 40000, (5 * count,)), (torch.arange(5 * count) % 5 == 0).float()
        return [one.to(device) for one in (user, item, seen)]

    return Spec(_Collaborative(), batch, lambda m, user, item, y: F.binary_cross_entropy(m(user, item), y))


class _NextThing(nn.Module):
    """What was bought so far, attention that looks back, what is bought next (SASRec)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.things, self.places = nn.Embedding(25000, width, padding_idx=0), nn.Embedding(100, width)
        self.looks = nn.ModuleList(nn.MultiheadAttention(width, 1, 0.2, batch_first=True) for _ in range(2))
        self.thinks = nn.ModuleList(perceptron(width, width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))

    def forward(self, seen: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
        length = seen.size(1)
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool, device=seen.device), 1)
        x = self.things(seen) * 8 + self.places(torch.arange(length, device=seen.device))
        for index, (look, think) in enumerate(zip(self.looks, self.thinks, strict=True)):
            y = self.norms[2 * index](x)
            x = y + look(y, x, x, attn_mask=ahead)[0]
            x = x + think(self.norms[2 * index + 1](x))
        x = self.norms[4](x)
        yes, no = (x * self.things(right)).sum(-1), (x * self.things(wrong)).sum(-1)
        return F.binary_cross_entropy_with_logits(yes, torch.ones_like(yes)) + F.binary_cross_entropy_with_logits(no, torch.zeros_like(no))  # fmt: skip


@case("adam", "fp32", 128)
def next_thing() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randint(1, 25000, (count, 100)).to(device) for _ in range(3)]

    return Spec(_NextThing(), batch, lambda m, *inputs: m(*inputs))


class _Fields(nn.Module):
    """Pairs of fields by the trick of squares, and a perceptron beside (DeepFM)."""

    def __init__(self, fields: int = 39, width: int = 10) -> None:
        super().__init__()
        self.register_buffer("begins", torch.arange(fields) * 5000)
        self.line, self.vectors = nn.Embedding(fields * 5000, 1), nn.Embedding(fields * 5000, width)
        self.deep = nn.Sequential(nn.Linear(fields * width, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Dropout(0.5), nn.Linear(400, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Dropout(0.5), nn.Linear(400, 1))  # fmt: skip

    def forward(self, kinds: Tensor) -> Tensor:
        ids = kinds + self.begins
        vectors = self.vectors(ids)
        pairs = (vectors.sum(1).pow(2) - vectors.pow(2).sum(1)).sum(1, keepdim=True) / 2
        out: Tensor = self.line(ids).sum(1) + pairs + self.deep(vectors.flatten(1))
        return out.squeeze(1)


@case("adam", "fp32", 4096)
def advertisements() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randint(0, 5000, (count, 39)).to(device),
            torch.randint(0, 2, (count,)).float().to(device),
        ]

    return Spec(_Fields(), batch, lambda m, kinds, y: F.binary_cross_entropy_with_logits(m(kinds), y))


class _ResidualTable(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.enter = nn.Linear(200, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * width, width), nn.Dropout(0.1))
            for _ in range(6)
        )  # fmt: skip
        self.head = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 9))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        out: Tensor = self.head(x)
        return out


@case("adamw", "fp32", 1024, ema=True)
def transactions() -> Spec:
    return Spec(_ResidualTable(), labelled(200, classes=9), classified)


# Graphs and points.


class _Sampled(nn.Module):
    """The mean of neighbours beside oneself, three times (GraphSAGE)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (100, 256, 256, 47)
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.near = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        begin, end = edges
        count = torch.zeros(len(x), 1, device=x.device).index_add_(
            0, end, torch.ones(len(end), 1, device=x.device)
        )
        for index, (own, near) in enumerate(zip(self.own, self.near, strict=True)):
            mean = torch.zeros_like(x).index_add_(0, end, x[begin]) / count.clamp(min=1)
            x = own(x) + near(mean)
            if index < 2:
                x = F.dropout(F.relu(x), 0.5, self.training)
        return x


@case("adam", "fp32", 1024)
def products() -> Spec:
    """A batch of nodes and all that was sampled around them; how much differs from batch to batch."""
    around = itertools.cycle((23, 26, 21))

    def batch(count: int, device: str) -> list[Tensor]:
        nodes = count * next(around)
        made = (
            torch.randn(nodes, 100),
            torch.randint(0, nodes, (2, 3 * nodes)),
            torch.randint(0, 47, (count,)),
        )
        return [one.to(device) for one in made]

    return Spec(_Sampled(), batch, lambda m, x, edges, y: F.cross_entropy(m(x, edges)[: len(y)], y))


class _Messages(nn.Module):
    """Edges say what is told along them; a GRU cell takes it in (MPNN)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter, self.edge = nn.Linear(11, width), perceptron(5, 128, width * width)
        self.cell, self.width = nn.GRUCell(width, width), width
        self.head = perceptron(2 * width, 64, 1)

    def forward(self, x: Tensor, edges: Tensor, kinds: Tensor, graph: Tensor, count: int) -> Tensor:
        state = first = F.relu(self.enter(x))
        weights = self.edge(kinds).view(-1, self.width, self.width)
        for _ in range(3):
            told = torch.bmm(state[edges[0]].unsqueeze(1), weights).squeeze(1)
            met = torch.zeros_like(state).scatter_reduce(
                0, edges[1][:, None].expand_as(told), told, "mean", include_self=False
            )
            state = self.cell(F.relu(met), state)
        whole = torch.zeros(count, 2 * self.width, device=x.device).index_add_(
            0, graph, torch.cat([state, first], 1)
        )
        out: Tensor = self.head(whole)
        return out


@case("adam", "fp32", 64)
def properties_of_molecules() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        nodes, links = 18 * count, 37 * count
        begins = torch.randint(0, nodes, (links,))
        edges = torch.stack([begins, begins // 18 * 18 + torch.randint(0, 18, (links,))])
        made = (
            torch.rand(nodes, 11),
            edges,
            torch.rand(links, 5),
            torch.arange(count).repeat_interleave(18),
            torch.randn(count, 1),
        )
        return [one.to(device) for one in made]

    def loss(model: nn.Module, x: Tensor, edges: Tensor, kinds: Tensor, graph: Tensor, y: Tensor) -> Tensor:
        return F.l1_loss(model(x, edges, kinds, graph, len(y)), y)

    return Spec(_Messages(), batch, loss)


class _NearPoints(nn.Module):
    """Each point and its twenty nearest, found anew in every layer (DGCNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)) for a, b in ((3, 64), (64, 64), (64, 128))
        )  # fmt: skip
        self.join = nn.Sequential(nn.Conv1d(256, 512, 1, bias=False), nn.BatchNorm1d(512), nn.LeakyReLU(0.2))
        self.head = nn.Sequential(
            nn.Linear(1024, 256), nn.BatchNorm1d(256), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(256, 40)
        )

    @staticmethod
    def with_neighbours(x: Tensor) -> Tensor:
        n, channels, points = x.shape
        square = (x**2).sum(1, keepdim=True)
        near = (2 * x.transpose(1, 2) @ x - square - square.transpose(1, 2)).topk(20, dim=-1).indices
        flat = (near + torch.arange(n, device=x.device).view(-1, 1, 1) * points).view(-1)
        others = x.transpose(1, 2).reshape(n * points, channels)[flat].view(n, points, 20, channels)
        own = x.transpose(1, 2).unsqueeze(2).expand_as(others)
        return torch.cat([others - own, own], 3).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for layer in self.layers:
            x = layer(self.with_neighbours(x)).max(-1).values
            found.append(x)
        y = self.join(torch.cat(found, 1))
        out: Tensor = self.head(torch.cat([y.amax(2), y.mean(2)], 1))
        return out


@case("sgdm", "fp32", 16)
def shapes_of_points() -> Spec:
    return Spec(_NearPoints(), labelled(3, 1024, classes=40), classified)
