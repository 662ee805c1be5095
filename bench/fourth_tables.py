"""Tables, recommenders, graphs and points. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, joined, normed_lines
from bench.model_parts import Spec, alone, bits, classified, kinds, labelled, made, numbers, perceptron

FOURTH_TABLES = CaseSet()
case = FOURTH_TABLES.case


# Tables and recommenders.


@case("adamw", "tf32", 8192, ema=True)
def loans() -> Spec:
    """Residual perceptrons over 120 columns."""
    blocks = [
        Residual(
            nn.BatchNorm1d(384),
            nn.Linear(384, 768),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(768, 384),
            nn.Dropout(0.1),
        )
        for _ in range(4)
    ]
    model = joined(nn.Linear(120, 384), *blocks, nn.BatchNorm1d(384), nn.ReLU(), nn.Linear(384, 2))
    return Spec(model, labelled(120, classes=2), classified)


@case("adam", "fp32", 2048)
def columns_one_by_one() -> Spec:
    """A mask chooses columns anew in each of five steps, gates share half of their layers (TabNet)."""

    class Chosen(nn.Module):
        def __init__(self, columns: int = 200, width: int = 64) -> None:
            super().__init__()
            self.norm, self.shared = nn.BatchNorm1d(columns), nn.Linear(columns, 4 * width)
            self.own = nn.ModuleList(
                nn.Sequential(nn.Linear(2 * width, 4 * width), nn.BatchNorm1d(4 * width)) for _ in range(6)
            )
            self.choose = nn.ModuleList(
                nn.Sequential(nn.Linear(width, columns), nn.BatchNorm1d(columns)) for _ in range(5)
            )
            self.width, self.head = width, nn.Linear(width, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x)
            left, total, seen = torch.ones_like(x), torch.zeros(len(x), self.width, device=x.device), x
            for turn, own in enumerate(self.own):
                told, ask = F.glu(own(F.glu(self.shared(seen)))).split(self.width, 1)
                if turn:
                    total = total + F.relu(told)
                if turn < 5:
                    mask = (self.choose[turn](ask) * left).softmax(1)
                    left, seen = left * (1.3 - mask), x * mask
            out: Tensor = self.head(total)
            return out

    return Spec(Chosen(), labelled(200, classes=5), classified)


class _Factors(nn.Module):
    """Fields as vectors, all pairs of them multiplied, a perceptron beside (DeepFM)."""

    def __init__(self, fields: int = 39, words: int = 15000, width: int = 10) -> None:
        super().__init__()
        self.register_buffer("begins", torch.arange(fields) * words)
        self.first, self.words = nn.Embedding(fields * words, 1), nn.Embedding(fields * words, width)
        self.deep = joined(normed_lines(fields * width, 400, 400, 400, drop=0.2), nn.Linear(400, 1))

    def forward(self, fields: Tensor) -> Tensor:
        ids = fields + self.begins
        x = self.words(ids)
        pairs = 0.5 * (x.sum(1).pow(2) - x.pow(2).sum(1)).sum(1)
        out: Tensor = self.first(ids).sum((1, 2)) + pairs + self.deep(x.flatten(1)).squeeze(1)
        return out


@case("adam", "fp32", 8192)
def pairs_of_fields() -> Spec:
    return Spec(
        _Factors(),
        made(kinds(15000, 39), bits()),
        lambda m, fields, y: F.binary_cross_entropy_with_logits(m(fields), y),
    )


class _Bags(nn.Module):
    """What a person saw as bags of sparse words, a tower each for person and thing; whoever is in the batch is a wrong guess."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.things = nn.EmbeddingBag(120000, 96, mode="mean"), nn.Embedding(120000, 96)
        self.person, self.thing = perceptron(96, 256, 128), perceptron(96, 256, 128)

    def forward(self, seen: Tensor, thing: Tensor) -> Tensor:
        person, other = F.normalize(self.person(self.seen(seen))), F.normalize(self.thing(self.things(thing)))
        return F.cross_entropy(person @ other.t() * 15, torch.arange(len(thing), device=thing.device))


@case("adagrad", "fp32", 2048)
def films_in_bags() -> Spec:
    return Spec(_Bags(), made(kinds(120000, 50), kinds(120000)), lambda m, seen, thing: m(seen, thing))


@case("adam", "fp32", 512, evaluate=True)
def all_ratings_at_once() -> Spec:
    """What a person rated, through a code and back over 18,000 films (a variational autoencoder with many outputs)."""

    class Ratings(nn.Module):
        def __init__(self, films: int = 18000) -> None:
            super().__init__()
            self.read = nn.Sequential(nn.Dropout(0.5), nn.Linear(films, 600), nn.Tanh(), nn.Linear(600, 400))
            self.write = nn.Sequential(nn.Linear(200, 600), nn.Tanh(), nn.Linear(600, films))

        def forward(self, x: Tensor) -> Tensor:
            mean, spread = self.read(F.normalize(x)).chunk(2, 1)
            told = self.write(mean + torch.randn_like(mean) * (0.5 * spread).exp())
            far = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
            return -(told.log_softmax(1) * x).sum(1).mean() + 0.2 * far

    return Spec(Ratings(), made(bits(18000)), lambda m, x: m(x))


class _Session(nn.Module):
    """What was clicked, weighed by what is asked for now (DIN)."""

    def __init__(self, things: int = 100000, width: int = 64) -> None:
        super().__init__()
        self.things = nn.Embedding(things, width)
        self.weigh = nn.Sequential(
            nn.Linear(4 * width, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1)
        )
        self.head = nn.Sequential(
            nn.Linear(2 * width, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 1)
        )

    def forward(self, past: Tensor, now: Tensor) -> Tensor:
        seen, asked = self.things(past), self.things(now)
        beside = asked.unsqueeze(1).expand_as(seen)
        weight = self.weigh(torch.cat([seen, beside, seen - beside, seen * beside], 2))
        out: Tensor = self.head(torch.cat([(weight * seen).sum(1), asked], 1)).squeeze(1)
        return out


@case("adam_fused", "fp32", 1024)
def clicked_before() -> Spec:
    return Spec(
        _Session(),
        made(kinds(100000, 60), kinds(100000), bits()),
        lambda m, past, now, y: F.binary_cross_entropy_with_logits(m(past, now), y),
    )


@case("adam", "fp32", 2048)
def genes() -> Spec:
    """Some thousand genes of a cell and its batch, counts told back (scVI)."""

    class Cells(nn.Module):
        def __init__(self, genes: int = 2400) -> None:
            super().__init__()
            self.read = nn.Sequential(
                nn.Linear(genes + 8, 256), nn.LayerNorm(256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 60)
            )
            self.write = nn.Sequential(nn.Linear(30 + 8, 256), nn.LayerNorm(256), nn.ReLU())
            self.mean, self.none, self.spread = (
                nn.Linear(256, genes),
                nn.Linear(256, genes),
                nn.Parameter(torch.zeros(genes)),
            )

        def forward(self, x: Tensor, batch: Tensor) -> Tensor:
            where = F.one_hot(batch, 8).float()
            mean, spread = self.read(torch.cat([torch.log1p(x), where], 1)).chunk(2, 1)
            y = self.write(torch.cat([mean + torch.randn_like(mean) * (0.5 * spread).exp(), where], 1))
            rate, odds = self.mean(y).softmax(1) * x.sum(1, keepdim=True), self.spread.exp()
            counted = torch.lgamma(x + odds) - torch.lgamma(odds) - torch.lgamma(x + 1)
            counted = (
                counted
                + odds * torch.log(odds / (odds + rate) + 1e-8)
                + x * torch.log(rate / (odds + rate) + 1e-8)
            )
            none = self.none(y)
            told = torch.where(
                x < 0.5, F.softplus(counted - none) - F.softplus(-none), counted - F.softplus(none)
            )
            return -told.sum(1).mean() - 0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()

    return Spec(
        Cells(),
        made(lambda count: torch.randint(0, 6, (count, 2400)).float(), kinds(8)),
        lambda m, x, batch: m(x, batch),
    )


# Graphs and points.


class _Looks(nn.Module):
    """Nodes look at their neighbours with four heads; one large graph at once (GAT)."""

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.heads, self.line = heads, nn.Linear(inputs, heads * outputs, bias=False)
        self.of_from, self.of_to = (nn.Parameter(torch.randn(heads, outputs) * 0.1) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        y = self.line(x).unflatten(1, (self.heads, -1))
        score = F.leaky_relu(
            (y * self.of_from).sum(2)[edges[0]] + (y * self.of_to).sum(2)[edges[1]], 0.2
        ).exp()
        whole = torch.zeros(len(x), self.heads, device=x.device).index_add(0, edges[1], score)
        weight = F.dropout(score / (whole[edges[1]] + 1e-9), 0.3, self.training)
        told = torch.zeros_like(y).index_add(0, edges[1], y[edges[0]] * weight.unsqueeze(2))
        return told.flatten(1)


class _Friends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = _Looks(100, 32, 4), _Looks(128, 32, 4), nn.Linear(128, 47)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        y = F.elu(self.second(F.elu(self.first(x, edges)), edges))
        out: Tensor = self.head(F.dropout(y, 0.5, self.training))
        return out


@case("adam", "fp32", 40000)
def products_bought_together() -> Spec:
    """The batch counts the products of the graph."""

    def batch(count: int, device: str) -> list[Tensor]:
        parts = (
            torch.randn(count, 100),
            torch.randint(0, count, (2, 12 * count)),
            torch.randint(0, 47, (count,)),
        )
        return [part.to(device) for part in parts]

    return Spec(_Friends(), batch, lambda m, x, edges, y: F.cross_entropy(m(x, edges), y))


class _Forces(nn.Module):
    """Atoms send each other messages by distance; the energy's slope must be the forces (SchNet)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.atoms = nn.Embedding(20, width)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(50, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(3)
        )
        self.lines = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(3)
        )
        self.head = nn.Sequential(nn.Linear(width, 64), nn.Softplus(), nn.Linear(64, 1))
        self.register_buffer("centres", torch.linspace(0, 5, 50))

    def forward(self, kind: Tensor, place: Tensor) -> Tensor:
        far = (place.unsqueeze(2) - place.unsqueeze(1)).pow(2).sum(3).add(1e-6).sqrt()
        bells = (-10 * (far.unsqueeze(3) - self.centres) ** 2).exp()
        x = self.atoms(kind)
        for weigh, line in zip(self.filters, self.lines, strict=True):
            x = x + line((weigh(bells) * x.unsqueeze(1)).sum(2))
        out: Tensor = self.head(x).sum((1, 2))
        return out


@case("adam", "fp32", 32)
def forces_of_atoms() -> Spec:
    def loss(model: nn.Module, kind: Tensor, place: Tensor, energy: Tensor, force: Tensor) -> Tensor:
        place = place.detach().requires_grad_(True)
        told = model(kind, place)
        (slope,) = torch.autograd.grad(told.sum(), place, create_graph=True)
        return F.mse_loss(told, energy) + 100 * F.mse_loss(-slope, force)

    return Spec(_Forces(), made(kinds(20, 21), numbers(21, 3), numbers(), numbers(21, 3)), loss)


class _Edges(nn.Module):
    """Every point looks at its twenty nearest, found anew in each layer (DGCNN)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(2 * inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)
        )

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x.transpose(1, 2), x.transpose(1, 2)).topk(20, largest=False).indices
        n, width, points = x.shape
        around = x.gather(2, near.view(n, 1, -1).expand(-1, width, -1)).view(n, width, points, 20)
        own = x.unsqueeze(3).expand_as(around)
        out: Tensor = self.look(torch.cat([around - own, own], 1)).amax(3)
        return out


@case("sgdm", "fp32", 16)
def nearest_points() -> Spec:
    class Shapes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(_Edges(a, b) for a, b in ((3, 64), (64, 64), (64, 128)))
            self.join = nn.Sequential(
                nn.Conv1d(256, 512, 1, bias=False), nn.BatchNorm1d(512), nn.LeakyReLU(0.2)
            )
            self.head = nn.Sequential(
                nn.Linear(1024, 256), nn.BatchNorm1d(256), nn.LeakyReLU(0.2), nn.Dropout(), nn.Linear(256, 40)
            )

        def forward(self, x: Tensor) -> Tensor:
            seen = []
            for layer in self.layers:
                x = layer(x)
                seen.append(x)
            y = self.join(torch.cat(seen, 1))
            out: Tensor = self.head(torch.cat([y.amax(2), y.mean(2)], 1))
            return out

    return Spec(Shapes(), labelled(3, 1024, classes=40), classified)


@case("adagrad", "fp32", 4096)
def triples_of_knowledge() -> Spec:
    """Things and relations as turned numbers; of twenty-four wrong ends each counts by how wrong it is (RotatE)."""

    class Turned(nn.Module):
        def __init__(self, width: int = 200) -> None:
            super().__init__()
            self.things, self.ties = nn.Embedding(40000, 2 * width), nn.Embedding(400, width)

        def far(self, begin: Tensor, tie: Tensor, end: Tensor) -> Tensor:
            a, b = self.things(begin).chunk(2, -1)
            angle = self.ties(tie)
            c, d = self.things(end).chunk(2, -1)
            real, other = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
            return torch.stack([real - c, other - d]).norm(dim=0).sum(-1)

        def forward(self, begin: Tensor, tie: Tensor, end: Tensor, wrong: Tensor) -> Tensor:
            right, other = self.far(begin, tie, end), self.far(begin.unsqueeze(1), tie.unsqueeze(1), wrong)
            weight = (-other).softmax(1).detach()
            return -(F.logsigmoid(9 - right) + (weight * F.logsigmoid(other - 9)).sum(1)).mean()

    return Spec(
        Turned(), made(kinds(40000), kinds(400), kinds(40000), kinds(40000, 24)), lambda m, *ids: m(*ids)
    )


@case("adam", "fp32", 50000)
def odd_payments() -> Spec:
    """A perceptron that repeats thirty numbers; what it cannot is odd."""
    return Spec(perceptron(30, 256, 128, 16, 128, 256, 30), alone(30), lambda m, x: F.mse_loss(m(x), x))
