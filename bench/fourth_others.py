"""Training that is neither plain pictures nor plain texts: control, dreams, shapes, physics. Cases stand above the model they
train.
"""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, joined
from bench.model_parts import (
    Spec,
    Workshop,
    bits,
    follow,
    made,
    no_loss,
    numbers,
    perceptron,
    shares,
    squared,
    to_numbers,
)

FOURTH_OTHERS = CaseSet()
case = FOURTH_OTHERS.case


# Control.


def _soft(shop: Workshop) -> Callable[[], Tensor]:
    """An actor that stays uncertain, two judges and their slow copy, all over one encoder of screens (SAC from pixels)."""
    see, act, judge, slow = (shop.model[name] for name in ("see", "act", "judge", "slow"))
    of_judge = shop.optimizer([*see.parameters(), *judge.parameters()])
    of_act = shop.optimizer(act.parameters())

    def moved(seen: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = act(seen).chunk(2, 1)
        spread = spread.clamp(-10, 2)
        noise = torch.randn_like(mean)
        move = torch.tanh(mean + spread.exp() * noise)
        chance = (-0.5 * noise**2 - spread - torch.log(1 - move**2 + 1e-6)).sum(1, keepdim=True)
        return move, chance

    def least(judges: nn.ModuleList, seen: Tensor, move: Tensor) -> Tensor:
        both = torch.cat([seen, move], 1)
        return torch.min(judges[0](both), judges[1](both))

    def step() -> Tensor:
        screen, move, reward, after = shop.batch()
        with torch.no_grad():
            later = see(after)
            ahead, chance = moved(later)
            wanted = reward + 0.99 * (least(slow, later, ahead) - 0.1 * chance)
        seen = see(screen)
        both = torch.cat([seen, move], 1)
        loss = F.mse_loss(judge[0](both), wanted) + F.mse_loss(judge[1](both), wanted)
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        known = seen.detach()
        ahead, chance = moved(known)
        of_act.zero_grad()
        (0.1 * chance - least(judge, known, ahead)).mean().backward()
        of_act.step()
        follow(slow.parameters(), judge.parameters(), 0.01)
        return loss.detach()

    return step


@case("adam", "fp32", 128)
def walks_from_screens() -> Spec:
    layers: list[nn.Module] = [nn.Conv2d(9, 32, 3, 2), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(32, 32, 3), nn.ReLU()]
    see = joined(layers, nn.Flatten(), nn.Linear(32 * 35 * 35, 50), nn.LayerNorm(50), nn.Tanh())
    judge = nn.ModuleList(perceptron(56, 1024, 1024, 1) for _ in range(2))
    slow = copy.deepcopy(judge).requires_grad_(False)
    model = nn.ModuleDict({"see": see, "act": perceptron(50, 1024, 1024, 12), "judge": judge, "slow": slow})
    screen = shares(9, 84, 84)
    return Spec(model, made(screen, numbers(6), numbers(1), screen), no_loss, _soft)


class _Dreams(nn.Module):
    """Screens, moves and a state that goes on by itself; every screen is told back from the state (as Dreamer's world)."""

    def __init__(self, state: int = 200, code: int = 32) -> None:
        super().__init__()
        self.code = code
        self.see = joined(nn.Conv2d(3, 32, 4, 2), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 128, 4, 2), nn.ReLU(), nn.Conv2d(128, 256, 4, 2), nn.ReLU(), nn.Flatten())  # fmt: skip
        self.cell, self.enter = nn.GRUCell(state, state), nn.Linear(code + 6, state)
        self.before, self.after = perceptron(state, 200, 2 * code), perceptron(state + 1024, 200, 2 * code)
        self.show = joined(
            nn.Linear(state + code, 1024), nn.Unflatten(1, (1024, 1, 1)), nn.ConvTranspose2d(1024, 128, 5, 2), nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 5, 2), nn.ReLU(), nn.ConvTranspose2d(64, 32, 6, 2), nn.ReLU(), nn.ConvTranspose2d(32, 3, 6, 2),
        )  # fmt: skip
        self.reward = perceptron(state + code, 300, 300, 1)

    def forward(self, screens: Tensor, moves: Tensor, rewards: Tensor) -> Tensor:
        n, length = screens.shape[:2]
        seen = self.see(screens.flatten(0, 1)).view(n, length, -1)
        state, code = (
            torch.zeros(n, 200, device=screens.device),
            torch.zeros(n, self.code, device=screens.device),
        )
        states, far = [], []
        for time in range(length):
            state = self.cell(F.elu(self.enter(torch.cat([code, moves[:, time]], 1))), state)
            mean0, spread0 = self.before(state).chunk(2, 1)
            mean, spread = self.after(torch.cat([state, seen[:, time]], 1)).chunk(2, 1)
            sizes0, sizes = F.softplus(spread0) + 0.1, F.softplus(spread) + 0.1
            code = mean + torch.randn_like(mean) * sizes
            far.append(
                (torch.log(sizes0 / sizes) + (sizes**2 + (mean - mean0) ** 2) / (2 * sizes0**2) - 0.5).sum(1)
            )
            states.append(torch.cat([state, code], 1))
        known = torch.stack(states, 1).flatten(0, 1)
        told = F.mse_loss(self.show(known), screens.flatten(0, 1))
        won = F.mse_loss(self.reward(known).squeeze(1), rewards.flatten())
        return told * 100 + won + torch.stack(far).mean().clamp(min=3)


@case("adam", "fp32", 24, clip=True)
def dreamt_worlds() -> Spec:
    return Spec(
        _Dreams(), made(numbers(32, 3, 64, 64), numbers(32, 6), numbers(32)), lambda m, *rows: m(*rows)
    )


# Shapes and physics.


@case("adam", "fp32", 40000)
def surface_of_a_shape() -> Spec:
    """How far points are from a surface; the slope must be one everywhere (an eikonal loss)."""

    class Far(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = perceptron(3, 256, 256, 256, last=True), perceptron(259, 256, 256, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(torch.cat([F.softplus(self.first(x), beta=100), x], 1))
            return out

    def loss(model: nn.Module, on: Tensor, around: Tensor) -> Tensor:
        around = around.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(model(around).sum(), around, create_graph=True)
        return model(on).abs().mean() + 0.1 * (slope.norm(dim=1) - 1).pow(2).mean()

    return Spec(Far(), made(numbers(3), numbers(3)), loss)


class _Meshes(nn.Module):
    """Nodes and edges of a mesh send messages back and forth; how each node moves (MeshGraphNet)."""

    def __init__(self, width: int = 128, depth: int = 8) -> None:
        super().__init__()

        def lines(inputs: int) -> nn.Sequential:
            return nn.Sequential(perceptron(inputs, width, width, width), nn.LayerNorm(width))

        self.nodes, self.edges = lines(11), lines(4)
        self.of_edges = nn.ModuleList(lines(3 * width) for _ in range(depth))
        self.of_nodes = nn.ModuleList(lines(2 * width) for _ in range(depth))
        self.head = perceptron(width, width, 2)

    def forward(self, nodes: Tensor, edges: Tensor, ends: Tensor) -> Tensor:
        x, e = self.nodes(nodes), self.edges(edges)
        for of_edges, of_nodes in zip(self.of_edges, self.of_nodes, strict=True):
            e = e + of_edges(torch.cat([e, x[ends[0]], x[ends[1]]], 1))
            x = x + of_nodes(torch.cat([x, torch.zeros_like(x).index_add(0, ends[1], e)], 1))
        out: Tensor = self.head(x)
        return out


@case("adam", "fp32", 6000)
def air_around_wings() -> Spec:
    """The batch counts the nodes of the mesh."""

    def batch(count: int, device: str) -> list[Tensor]:
        parts = (
            torch.randn(count, 11),
            torch.randn(6 * count, 4),
            torch.randint(0, count, (2, 6 * count)),
            torch.randn(count, 2),
        )
        return [part.to(device) for part in parts]

    return Spec(_Meshes(), batch, lambda m, nodes, edges, ends, y: F.mse_loss(m(nodes, edges, ends), y))


class _Splines(nn.Module):
    """Lines whose weights are curves: bumps along each input, weighed (KAN)."""

    def __init__(self, inputs: int, outputs: int, bumps: int = 8) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(-2, 2, bumps))
        self.base, self.curves = nn.Linear(inputs, outputs), nn.Linear(inputs * bumps, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        bumps = (-(((x.unsqueeze(2) - self.centres) * 2) ** 2)).exp()
        out: Tensor = self.base(F.silu(x)) + self.curves(bumps.flatten(1))
        return out


@case("adamw", "fp32", 512, evaluate=True)
def curves_for_weights() -> Spec:
    model = nn.Sequential(
        nn.Flatten(),
        _Splines(784, 256),
        nn.LayerNorm(256),
        _Splines(256, 128),
        nn.LayerNorm(128),
        _Splines(128, 10),
    )
    return Spec(
        model, made(numbers(1, 28, 28), bits(10)), lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y)
    )


@case("adamw", "fp32", 1024)
def dense_forecasts() -> Spec:
    """Residual perceptrons from a long past to a future, with dropout and norms (TiDE)."""

    def block(inputs: int, inner: int, outputs: int) -> nn.Module:
        layers = Residual(
            nn.Linear(inputs, inner),
            nn.ReLU(),
            nn.Linear(inner, outputs),
            nn.Dropout(0.3),
            short=nn.Linear(inputs, outputs),
        )
        return nn.Sequential(layers, nn.LayerNorm(outputs))

    model = joined(
        nn.Flatten(),
        block(720 * 4, 1024, 512),
        block(512, 1024, 512),
        block(512, 1024, 512),
        block(512, 1024, 96),
    )
    return Spec(model, to_numbers(720, 4, outputs=(96,)), squared)
