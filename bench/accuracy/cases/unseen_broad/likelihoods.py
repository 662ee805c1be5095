"""Normalizing flows, energy models, diffusion on tables, optimal transport."""

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


class _MaskedLinear(nn.Linear):
    """A masked linear layer, whose outputs depend only on inputs of lower order."""

    def __init__(self, before: Tensor, after: Tensor, *, strict: bool = False) -> None:
        super().__init__(len(before), len(after))
        seen = after[:, None] > before if strict else after[:, None] >= before
        self.register_buffer("seen", seen.float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.seen, self.bias)


class _MAF(nn.Module):
    """Eight masked autoregressive layers (MAF)."""

    def __init__(self, columns: int = 48, width: int = 768) -> None:
        super().__init__()
        order = torch.arange(columns)
        inner = torch.arange(width) % (columns - 1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                _MaskedLinear(order, inner), nn.ReLU(), _MaskedLinear(inner, inner), nn.ReLU(), _MaskedLinear(inner, order.repeat(2), strict=True)
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
    return Spec(_MAF(), unlabelled(48), lambda m, x: m(x))


class _ContinuousFlow(nn.Module):
    """A continuous normalizing flow with Hutchinson's trace estimator (FFJORD)."""

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
    return Spec(_ContinuousFlow(), unlabelled(32), lambda m, x: m(x))


def _langevin_step(parts: StepParts) -> Callable[[], Tensor]:
    """Return a step of an energy-based model. Twelve Langevin steps produce negative samples."""
    model = parts.model
    optimizer = parts.optimizer(model.parameters())

    def step() -> Tensor:
        (real,) = parts.batch()
        with parts.precision():
            made_up = torch.rand_like(real)
            for _ in range(12):
                made_up = made_up.detach().requires_grad_(True)
                (gradient,) = torch.autograd.grad(model(made_up).sum(), made_up)
                made_up = made_up - 10 * gradient + 0.005 * torch.randn_like(gradient)
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
    return Spec(model, unlabelled(1024), no_loss, _langevin_step)


class _TabularDenoiser(nn.Module):
    """Diffusion on tables, which denoises numeric and categorical columns (TabDDPM)."""

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
    """Build a diffusion model for 30 numeric columns and 6 categorical columns with 9 categories each."""

    def loss(model: nn.Module, x: Tensor, kind: Tensor) -> Tensor:
        time, noise = torch.rand(len(x), device=x.device), torch.randn_like(x)
        angle = (time * math.pi / 2).unsqueeze(1)
        strange = torch.where(
            torch.rand(kind.shape, device=x.device) < time.unsqueeze(1), kind.roll(1, 0), kind
        )
        spread = (strange.unsqueeze(2) == torch.arange(9, device=x.device)).to(x.dtype).flatten(1)
        output, odds = model(torch.cat([angle.cos() * x + angle.sin() * noise, spread], 1), time).split(
            (30, 54), 1
        )
        return F.mse_loss(output, noise) + F.cross_entropy(odds.reshape(-1, 9), kind.flatten())

    return Spec(_TabularDenoiser(30, 54), batch_of(normal(30), integers(9, 6)), loss)


def _sinkhorn_cost(a: Tensor, b: Tensor, rounds: int = 24, blur: float = 0.05) -> Tensor:
    """Return the entropic optimal transport cost with Sinkhorn iterations. All iterations stay in the graph."""
    cost = torch.cdist(a, b).square()
    here, there = torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0])
    for _ in range(rounds):
        here = -blur * torch.logsumexp((there - cost) / blur, 1)
        there = -blur * torch.logsumexp((here.unsqueeze(1) - cost) / blur, 0)
    plan = ((here.unsqueeze(1) + there - cost) / blur).exp()
    return (plan * cost).sum() / len(a)


@case("rmsprop", "fp32", 1600)
def heaps_of_sand() -> Spec:
    """Return a generator of points that is trained with the transport cost to the points of the batch."""

    def loss(model: nn.Module, code: Tensor, points: Tensor) -> Tensor:
        return _sinkhorn_cost(model(code), points)

    return Spec(mlp(32, 512, 512, 3, act=nn.LeakyReLU), batch_of(normal(32), uniform(3)), loss)
