"""How likely is it? Flows, energies, noise over tables, and masses that are moved. Cases stand above the model they train."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.layers import Residual
from bench.lib.models.parts import (
    Spec,
    StepParts,
    batch_of,
    integers,
    mlp,
    no_loss,
    normal,
    uniform,
    unlabelled,
)

CASES = CaseSet()
case = CASES.case


class _Masked(nn.Linear):
    """A line in which outputs see only inputs of lower rank."""

    def __init__(self, before: Tensor, after: Tensor, *, strict: bool = False) -> None:
        super().__init__(len(before), len(after))
        seen = after[:, None] > before if strict else after[:, None] >= before
        self.register_buffer("seen", seen.float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.seen, self.bias)


class _Ordered(nn.Module):
    """Each column is moved and stretched by what the columns before it say, eight times, turned round in between (MAF)."""

    def __init__(self, columns: int = 48, width: int = 768) -> None:
        super().__init__()
        order = torch.arange(columns)
        inner = torch.arange(width) % (columns - 1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                _Masked(order, inner), nn.ReLU(), _Masked(inner, inner), nn.ReLU(), _Masked(inner, order.repeat(2), strict=True)
            )
            for _ in range(8)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for layer in self.layers:
            move, size = layer(x).chunk(2, 1)
            size = size.clamp(-3, 3)
            x = ((x - move) * (-size).exp()).flip(1)
            total = total + size.sum(1)
        return (x.square().sum(1) / 2 + total).mean()


@case("adam", "fp32", 6000, clip=True)
def columns_in_order() -> Spec:
    return Spec(_Ordered(), unlabelled(48), lambda m, x: m(x))


class _Streaming(nn.Module):
    """Rows stream to where they are likely; how much they crowd on the way is guessed with one random direction (FFJORD)."""

    def __init__(self, columns: int = 32, width: int = 256) -> None:
        super().__init__()
        self.speed = mlp(columns + 1, width, width, columns, act=nn.Softplus)

    def forward(self, x: Tensor) -> Tensor:
        way, total = torch.randn_like(x), x.new_zeros(len(x))

        def moved(place: Tensor, time: float) -> tuple[Tensor, Tensor]:
            speed = self.speed(F.pad(place, (0, 1), value=time))
            (turned,) = torch.autograd.grad(speed, place, way, create_graph=True)
            return speed, (turned * way).sum(1)

        x = x.requires_grad_(True)
        for step in range(5):
            first, crowd = moved(x, step / 5)
            second, crowd2 = moved(x + first / 10, step / 5 + 0.1)
            x, total = x + second / 5, total + (crowd + 3 * crowd2) / 20
        return (x.square().sum(1) / 2 - total).mean()


@case("adamw", "fp32", 3000)
def rows_that_stream() -> Spec:
    return Spec(_Streaming(), unlabelled(32), lambda m, x: m(x))


def _walked(shop: StepParts) -> Callable[[], Tensor]:
    """Made-up rows walk down the energy for twelve noisy steps; then real ones shall lie lower than they (an energy model)."""
    model = shop.model
    optimizer = shop.optimizer(model.parameters())

    def step() -> Tensor:
        (real,) = shop.batch()
        with shop.precision():
            made_up = torch.rand_like(real)
            for _ in range(12):
                made_up = made_up.detach().requires_grad_(True)
                (slope,) = torch.autograd.grad(model(made_up).sum(), made_up)
                made_up = made_up - 10 * slope + 0.005 * torch.randn_like(slope)
            high, low = model(made_up.detach().clamp(0, 1)), model(real)
            loss = (low - high + 0.1 * (low.square() + high.square())).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()

    return step


@case("adam", "amp_bf16", 3000)
def lower_where_real() -> Spec:
    model = mlp(1024, 2048, 2048, 1024, 1, act=nn.SiLU)
    return Spec(model, unlabelled(1024), no_loss, _walked)


class _Cleaned(nn.Module):
    """Numbers and kinds of a row, both noisy; what they were, told by lines beside which the time stands (TabDDPM)."""

    def __init__(self, columns: int, kinds_of: int, width: int = 768) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(columns + kinds_of, width), nn.Linear(width, columns + kinds_of)
        self.time = mlp(64, width, width, act=nn.SiLU)
        self.layers = nn.Sequential(
            *(Residual(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Dropout(0.1)) for _ in range(5))
        )  # fmt: skip

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time.unsqueeze(1) * torch.exp(torch.linspace(0, 7, 32, device=x.device))
        known = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        out: Tensor = self.leave(self.layers(self.enter(x) + known))
        return out


@case("adamw", "fp32", 5000, ema=True)
def noise_over_tables() -> Spec:
    """Thirty numbers, and six columns of nine kinds each."""

    def loss(model: nn.Module, x: Tensor, kind: Tensor) -> Tensor:
        time, noise = torch.rand(len(x), device=x.device), torch.randn_like(x)
        angle = (time * math.pi / 2).unsqueeze(1)
        strange = torch.where(
            torch.rand(kind.shape, device=x.device) < time.unsqueeze(1), kind.roll(1, 0), kind
        )
        spread = (strange.unsqueeze(2) == torch.arange(9, device=x.device)).to(x.dtype).flatten(1)
        told, odds = model(torch.cat([angle.cos() * x + angle.sin() * noise, spread], 1), time).split(
            (30, 54), 1
        )
        return F.mse_loss(told, noise) + F.cross_entropy(odds.reshape(-1, 9), kind.flatten())

    return Spec(_Cleaned(30, 54), batch_of(normal(30), integers(9, 6)), loss)


def _cost_of_moving(a: Tensor, b: Tensor, rounds: int = 24, blur: float = 0.05) -> Tensor:
    """What it costs to move one heap of points onto another (Sinkhorn's rounds, all of them remembered)."""
    cost = torch.cdist(a, b).square()
    here, there = torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0])
    for _ in range(rounds):
        here = -blur * torch.logsumexp((there - cost) / blur, 1)
        there = -blur * torch.logsumexp((here.unsqueeze(1) - cost) / blur, 0)
    plan = ((here.unsqueeze(1) + there - cost) / blur).exp()
    return (plan * cost).sum() / len(a)


@case("rmsprop", "fp32", 1600)
def heaps_of_sand() -> Spec:
    """A code for each point; all points together shall lie as those of the batch."""

    def loss(model: nn.Module, code: Tensor, points: Tensor) -> Tensor:
        return _cost_of_moving(model(code), points)

    return Spec(mlp(32, 512, 512, 3, act=nn.LeakyReLU), batch_of(normal(32), uniform(3)), loss)
