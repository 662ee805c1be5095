"""Training that is neither plain pictures nor plain texts: games, likeness, physics. Cases stand above the model they train."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, joined, normed
from bench.model_parts import (
    Spec,
    Workshop,
    alone,
    bits,
    freeze,
    kinds,
    labelled,
    made,
    no_loss,
    numbers,
    perceptron,
    shares,
)

THIRD_OTHERS = CaseSet()
case = THIRD_OTHERS.case


# Games.


class _Dueling(nn.Module):
    """How good a place is, and how much better each move (dueling), beside an older copy of itself."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see = nn.Sequential(
                nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()
            )  # fmt: skip
            self.place, self.move = perceptron(3136, 512, 1), perceptron(3136, 512, 18)

        def forward(self, x: Tensor) -> Tensor:
            y = self.see(x / 255)
            move = self.move(y)
            out: Tensor = self.place(y) + move - move.mean(1, keepdim=True)
            return out

    def __init__(self) -> None:
        super().__init__()
        self.now = self.Net()
        self.older = copy.deepcopy(self.now)
        freeze(self.older)

    def forward(self, screen: Tensor, move: Tensor, reward: Tensor, after: Tensor, done: Tensor) -> Tensor:
        told = self.now(screen.float()).gather(1, move.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.now(after.float()).argmax(1, keepdim=True)
            wanted = reward + 0.99 * (1 - done) * self.older(after.float()).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(told, wanted)


@case("adam", "fp32", 256, clip=True)
def duels() -> Spec:
    def screen(count: int) -> Tensor:
        return torch.randint(0, 256, (count, 4, 84, 84), dtype=torch.uint8)

    return Spec(_Dueling(), made(screen, kinds(18), numbers(), screen, bits()), lambda m, *rows: m(*rows))


def _two_judges(shop: Workshop) -> Callable[[], Tensor]:
    """An actor, two judges and their slow copies (TD3)."""
    act, judge, slow_act, slow_judge = (
        shop.model[name] for name in ("act", "judge", "slow_act", "slow_judge")
    )
    of_act, of_judge = shop.optimizer(act.parameters()), shop.optimizer(judge.parameters())

    def step() -> Tensor:
        state, move, reward, after, done = shop.batch()
        with torch.no_grad():
            noise = (torch.randn_like(move) * 0.2).clamp(-0.5, 0.5)
            later = torch.cat([after, (slow_act(after) + noise).clamp(-1, 1)], 1)
            wanted = reward + (1 - done) * 0.99 * torch.min(slow_judge[0](later), slow_judge[1](later))
        seen = torch.cat([state, move], 1)
        loss = F.mse_loss(judge[0](seen), wanted) + F.mse_loss(judge[1](seen), wanted)
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        of_act.zero_grad()
        (-judge[0](torch.cat([state, act(state)], 1)).mean()).backward()
        of_act.step()
        with torch.no_grad():
            for slow, fast in ((slow_act, act), (slow_judge, judge)):
                for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
                    old.mul_(0.995).add_(0.005 * new)
        return loss.detach()

    return step


@case("adam", "fp32", 1024)
def two_judges() -> Spec:
    act = nn.Sequential(perceptron(376, 1024, 1024, 17), nn.Tanh())
    judge = nn.ModuleList(perceptron(393, 1024, 1024, 1) for _ in range(2))
    slow_act, slow_judge = (
        copy.deepcopy(act).requires_grad_(False),
        copy.deepcopy(judge).requires_grad_(False),
    )
    model = nn.ModuleDict({"act": act, "judge": judge, "slow_act": slow_act, "slow_judge": slow_judge})
    return Spec(
        model, made(numbers(376), numbers(17), numbers(1), numbers(376), bits(1)), no_loss, _two_judges
    )


class _Driver(nn.Module):
    """What a driver did, learnt from pictures and speed."""

    def __init__(self) -> None:
        super().__init__()
        self.see = joined(
            normed(3, 32, 5, 2),
            normed(32, 32),
            normed(32, 64, 3, 2),
            normed(64, 64),
            normed(64, 128, 3, 2),
            normed(128, 256, 3, 2),
            nn.Flatten(),
        )
        self.speed, self.join = (
            perceptron(1, 128, 128),
            nn.Sequential(nn.Linear(256 * 6 * 13 + 128, 512), nn.ReLU(), nn.Dropout(0.3)),
        )
        self.ways = nn.ModuleList(perceptron(512, 256, 256, 3) for _ in range(4))

    def forward(self, x: Tensor, speed: Tensor) -> Tensor:
        y = self.join(torch.cat([self.see(x), self.speed(speed)], 1))
        return torch.stack([way(y) for way in self.ways], 1)


@case("adam", "fp32", 120)
def drivers() -> Spec:
    def loss(model: nn.Module, x: Tensor, speed: Tensor, way: Tensor, y: Tensor) -> Tensor:
        told = model(x, speed).gather(1, way[:, None, None].expand(-1, 1, 3)).squeeze(1)
        return F.mse_loss(told, y)

    return Spec(_Driver(), made(numbers(3, 88, 200), numbers(1), kinds(4), numbers(3)), loss)


# Likeness.


class _Same(nn.Module):
    """Two signatures: the same hand or not."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(1, 96, 11), nn.ReLU(), nn.LocalResponseNorm(5, alpha=0.0001, beta=0.75, k=2), nn.MaxPool2d(3, 2),
            nn.Conv2d(96, 128, 5, padding=2), nn.ReLU(), nn.LocalResponseNorm(5, alpha=0.0001, beta=0.75, k=2), nn.MaxPool2d(3, 2),
            nn.Dropout2d(0.3), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
            nn.Linear(128 * 11 * 16, 512), nn.ReLU(), nn.Linear(512, 64),
        )  # fmt: skip

    def forward(self, a: Tensor, b: Tensor, same: Tensor) -> Tensor:
        far = F.pairwise_distance(self.see(a), self.see(b))
        return (same * far**2 + (1 - same) * F.relu(2 - far) ** 2).mean()


@case("rmsprop", "fp32", 32)
def signatures() -> Spec:
    return Spec(
        _Same(), made(numbers(1, 105, 145), numbers(1, 105, 145), bits()), lambda m, a, b, y: m(a, b, y)
    )


def _sharp(shop: Workshop) -> Callable[[], Tensor]:
    """Each step first climbs a little, then learns from there (SAM)."""
    model = shop.model
    optimizer = shop.optimizer(model.parameters())

    def step() -> Tensor:
        x, y = shop.batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            size = torch.norm(torch.stack([p.grad.norm(2) for p in model.parameters()]), 2)
            moves = [p.grad * (0.05 / (size + 1e-12)) for p in model.parameters()]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        return loss.detach()

    return step


@case("sgdm", "fp32", 64)
def flat_valleys() -> Spec:
    layers = [*normed(3, 64), Residual(*normed(64, 64), *normed(64, 64)), *normed(64, 160, 3, 2), Residual(*normed(160, 160), *normed(160, 160)), *normed(160, 320, 3, 2)]  # fmt: skip
    model = joined(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 100))
    return Spec(model, labelled(3, 32, 32, classes=100), no_loss, _sharp)


# Physics.


@case("adam", "fp32", 30000)
def waves_on_a_string() -> Spec:
    """A wave equation at points of space and time, second derivatives in both."""
    model = perceptron(2, *[100] * 5, 1, act=nn.Tanh)

    def loss(model: nn.Module, points: Tensor) -> Tensor:
        points = points.detach().requires_grad_(True)
        (first,) = torch.autograd.grad(model(points).sum(), points, create_graph=True)
        in_space, in_time = (
            torch.autograd.grad(first[:, i].sum(), points, create_graph=True)[0][:, i] for i in (0, 1)
        )
        edge = torch.cat([torch.zeros_like(points[:1000, :1]), points[:1000, 1:]], 1)
        return (in_time - 4 * in_space).pow(2).mean() + model(edge).pow(2).mean()

    return Spec(model, alone(2), loss)


class _Operators(nn.Module):
    """A function as a hundred numbers and where to look: what it becomes there (DeepONet)."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.trunk = (
            perceptron(100, 256, 256, 256, 200),
            perceptron(1, 256, 256, 256, 200, last=True),
        )

    def forward(self, values: Tensor, places: Tensor) -> Tensor:
        return torch.einsum("bi,bpi->bp", self.branch(values), self.trunk(places))


@case("adam", "fp32", 512)
def functions_of_functions() -> Spec:
    return Spec(
        _Operators(),
        made(numbers(100), shares(100, 1), numbers(100)),
        lambda m, values, places, y: F.mse_loss(m(values, places), y),
    )
