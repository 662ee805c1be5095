"""Games, learning from few, likeness, steps that look twice, physics. Cases stand above the model they train."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import (
    Spec,
    Workshop,
    alone,
    labelled,
    no_loss,
    perceptron,
    squared,
    to_numbers,
    zoo,
)

SEALED_OTHERS = CaseSet()
case = SEALED_OTHERS.case


# Games.


def _soft(shop: Workshop) -> Callable[[], Tensor]:
    """Two critics, their slow copies, an actor: an optimizer for critics and one for the actor (SAC)."""
    actor, critics = shop.model["actor"], shop.model["critics"]
    slow = copy.deepcopy(critics).requires_grad_(False)
    of_actor, of_critics = shop.optimizer(actor.parameters()), shop.optimizer(critics.parameters())

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(state).chunk(2, 1)
        choice = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp(), validate_args=False)
        free = choice.rsample()
        move = torch.tanh(free)
        return move, (choice.log_prob(free) - torch.log(1 - move.pow(2) + 1e-6)).sum(1, keepdim=True)

    def step() -> Tensor:
        state, move, reward, after = shop.batch()
        with torch.no_grad():
            then, odds = act(after)
            both = torch.min(*(critic(torch.cat([after, then], 1)) for critic in slow))
            goal = reward + 0.99 * (both - 0.2 * odds)
        loss = sum(F.mse_loss(critic(torch.cat([state, move], 1)), goal) for critic in critics)
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()
        now, odds = act(state)
        wish = (0.2 * odds - torch.min(*(critic(torch.cat([state, now], 1)) for critic in critics))).mean()
        of_actor.zero_grad()
        wish.backward()
        of_actor.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), critics.parameters(), strict=True):
                old.mul_(0.995).add_(new, alpha=0.005)
        return wish.detach()

    return step


@case("adam", "fp32", 256)
def running_body() -> Spec:
    model = nn.ModuleDict({
        "actor": perceptron(111, 256, 256, 16),
        "critics": nn.ModuleList([perceptron(119, 256, 256, 1), perceptron(119, 256, 256, 1)]),
    })  # fmt: skip

    def batch(count: int, device: str) -> list[Tensor]:
        made = (torch.randn(count, 111), torch.rand(count, 8), torch.randn(count, 1), torch.randn(count, 111))
        return [one.to(device) for one in made]

    return Spec(model, batch, no_loss, _soft)


class _Board(nn.Module):
    """A tower of convolutions over a board; which move, and who wins."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()

        def block(inputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

        self.enter = block(17)
        self.tower = nn.ModuleList(nn.Sequential(block(width), nn.ReLU(), block(width)) for _ in range(8))
        self.move = nn.Sequential(
            nn.Conv2d(width, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(338, 170)
        )
        self.win = nn.Sequential(nn.Conv2d(width, 1, 1), nn.BatchNorm2d(1), nn.ReLU(), nn.Flatten(), nn.Linear(169, 128), nn.ReLU(), nn.Linear(128, 1), nn.Tanh())  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.enter(x))
        for block in self.tower:
            x = F.relu(x + block(x))
        return self.move(x), self.win(x).squeeze(1)


@case("sgdm", "fp32", 256)
def board_game() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        made = (
            torch.randint(0, 2, (count, 17, 13, 13)).float(),
            torch.softmax(torch.randn(count, 170), 1),
            torch.rand(count) * 2 - 1,
        )
        return [one.to(device) for one in made]

    def loss(model: nn.Module, x: Tensor, moves: Tensor, wins: Tensor) -> Tensor:
        told, sure = model(x)
        return F.mse_loss(sure, wins) - (moves * F.log_softmax(told, 1)).sum(1).mean()

    return Spec(_Board(), batch, loss)


class _Remembering(nn.Module):
    """Screens through convolutions, then an LSTM cell, twenty moves in a row (A2C)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (1, 32, 32, 32):
            layers += [nn.Conv2d(inputs, 32, 3, 2, 1), nn.ELU()]
        self.see, self.cell = nn.Sequential(*layers, nn.Flatten()), nn.LSTMCell(32 * 25, 256)
        self.judge, self.act = nn.Linear(256, 1), nn.Linear(256, 6)

    def forward(self, screens: Tensor, rewards: Tensor) -> Tensor:
        h = c = torch.zeros(screens.size(1), 256, device=screens.device)
        worth, odds, sure = [], [], []
        for screen in screens:
            h, c = self.cell(self.see(screen), (h, c))
            choice = torch.distributions.Categorical(logits=self.act(h), validate_args=False)
            move = choice.sample()
            worth.append(self.judge(h).squeeze(1))
            odds.append(choice.log_prob(move))
            sure.append(choice.entropy())
        gain = rewards - torch.stack(worth)
        return (
            gain.pow(2).mean() / 2
            - (torch.stack(odds) * gain.detach()).mean()
            - 0.01 * torch.stack(sure).mean()
        )


@case("rmsprop", "fp32", 32, clip=True)
def remembering_player() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(20, count, 1, 80, 80).to(device), torch.randn(20, count).to(device)]

    return Spec(_Remembering(), batch, lambda m, screens, rewards: m(screens, rewards))


# Learning from few, likeness, steps that look twice.


def _four_convolutions(channels: int, width: int = 64) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs in (channels, width, width, width):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


@case("adam", "fp32", 20)
def prototypes() -> Spec:
    """Five examples of each class, fifteen questions of each; the batch counts classes."""

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 5, 3, 84, 84).to(device), torch.rand(count, 15, 3, 84, 84).to(device)]

    def loss(model: nn.Module, known: Tensor, asked: Tensor) -> Tensor:
        classes = known.size(0)
        found = model(torch.cat([known.flatten(0, 1), asked.flatten(0, 1)]))
        centres = found[: classes * 5].view(classes, 5, -1).mean(1)
        far = torch.cdist(found[classes * 5 :], centres).pow(2)
        return F.cross_entropy(-far, torch.arange(classes, device=far.device).repeat_interleave(15))

    return Spec(_four_convolutions(3), batch, loss)


class _Learner(nn.Module):
    """Weights from which a few steps lead far (MAML): gradients through three steps of learning."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (1, 48, 48, 48):
            layers += [
                nn.Conv2d(inputs, 48, 3, 2, 1),
                nn.BatchNorm2d(48, track_running_stats=False),
                nn.ReLU(),
            ]
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 4, 5))

    def forward(self, known: Tensor, kinds: Tensor, asked: Tensor, wanted: Tensor) -> Tensor:
        total = torch.zeros((), device=known.device)
        for task in range(len(known)):
            weights = dict(self.net.named_parameters())
            for _ in range(3):
                told = torch.func.functional_call(self.net, weights, (known[task],))
                slopes = torch.autograd.grad(
                    F.cross_entropy(told, kinds[task]), list(weights.values()), create_graph=True
                )
                weights = {
                    name: old - 0.4 * slope
                    for (name, old), slope in zip(weights.items(), slopes, strict=True)
                }
            total = total + F.cross_entropy(
                torch.func.functional_call(self.net, weights, (asked[task],)), wanted[task]
            )
        return total / len(known)


@case("adam", "fp32", 16)
def learning_to_learn() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        made = (
            torch.rand(count, 25, 1, 28, 28),
            torch.randint(0, 5, (count, 25)),
            torch.rand(count, 75, 1, 28, 28),
            torch.randint(0, 5, (count, 75)),
        )
        return [one.to(device) for one in made]

    return Spec(_Learner(), batch, lambda m, *inputs: m(*inputs))


def _own_past(shop: Workshop) -> Callable[[], Tensor]:
    """A network foretells what its own slow copy sees of another view (BYOL)."""
    model: Any = shop.model
    body, foretell = model["body"], model["foretell"]
    slow = copy.deepcopy(body).requires_grad_(False)
    optimizer = shop.optimizer(model.parameters())

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return 2 - 2 * (F.normalize(a, dim=1) * F.normalize(b, dim=1)).sum(1).mean()

    def step() -> Tensor:
        a, b = shop.batch()
        with shop.precision():
            with torch.no_grad():
                seen_a, seen_b = slow(a), slow(b)
            loss = apart(foretell(body(a)), seen_b) + apart(foretell(body(b)), seen_a)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), body.parameters(), strict=True):
                old.mul_(0.99).add_(new, alpha=0.01)
        return loss.detach()

    return step


@case("adam", "amp_bf16", 64)
def its_own_past() -> Spec:
    body = zoo("resnet18")
    body.fc = nn.Sequential(nn.Linear(512, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 128))
    foretell = nn.Sequential(nn.Linear(128, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128))

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 3, 112, 112).to(device) for _ in range(2)]

    return Spec(nn.ModuleDict({"body": body, "foretell": foretell}), batch, no_loss, _own_past)


def _sharpness(shop: Workshop) -> Callable[[], Tensor]:
    """Up the slope, look again, back, and down by what was seen there (SAM)."""
    model = shop.model
    optimizer = shop.optimizer(model.parameters())

    def step() -> Tensor:
        x, y = shop.batch()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moved = []
            for parameter in model.parameters():
                away = parameter.grad * (0.05 / (norm + 1e-12))
                parameter.add_(away)
                moved.append(away)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter, away in zip(model.parameters(), moved, strict=True):
                parameter.sub_(away)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@case("sgdm", "fp32", 128)
def looking_twice() -> Spec:
    model = nn.Sequential(_four_convolutions(3, 96), nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 100))
    return Spec(model, labelled(3, 32, 32, classes=100), no_loss, _sharpness)


@case("sgdm", "fp32", 100)
def hard_to_fool() -> Spec:
    """Pictures are first moved where they hurt most, in three small steps (PGD)."""
    model = zoo("resnet18")
    model.fc = nn.Linear(512, 10)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        moved = x + torch.empty_like(x).uniform_(-0.03, 0.03)
        for _ in range(3):
            moved = moved.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(model(moved), y), moved)
            moved = x + (moved + 0.01 * slope.sign() - x).clamp(-0.03, 0.03)
        return F.cross_entropy(model(moved.detach()), y)

    return Spec(model, labelled(3, 64, 64, classes=10), loss)


# Physics and functions.


class _Operator(nn.Module):
    """Waves of low frequency are weighed by complex numbers (FNO)."""

    def __init__(self, width: int = 32, waves: int = 12) -> None:
        super().__init__()
        self.waves = waves
        self.enter, self.leave = (
            nn.Conv2d(3, width, 1),
            nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1)),
        )
        self.weights = nn.ParameterList(
            torch.randn(width, width, waves, waves, dtype=torch.cfloat) / width**2 for _ in range(4)
        )
        self.beside = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for weight, beside in zip(self.weights, self.beside, strict=True):
            seen = torch.fft.rfft2(x)
            low = torch.zeros_like(seen)
            low[:, :, : self.waves, : self.waves] = torch.einsum(
                "bixy,ioxy->boxy", seen[:, :, : self.waves, : self.waves], weight
            )
            x = F.gelu(torch.fft.irfft2(low, s=x.shape[-2:]) + beside(x))
        out: Tensor = self.leave(x)
        return out


@case("adam", "fp32", 20)
def flow_through_rock() -> Spec:
    return Spec(_Operator(), to_numbers(3, 85, 85, outputs=(1, 85, 85)), squared)


class _Sines(nn.Module):
    """A picture as a function of its places, in sines (SIREN)."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), *(nn.Linear(width, width) for _ in range(3))])
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(30 * layer(x))
        out: Tensor = self.head(x)
        return out


@case("adam", "fp32", 65536)
def picture_as_function() -> Spec:
    return Spec(_Sines(), to_numbers(2, outputs=(3,)), squared)


@case("adamw", "fp32", 8000)
def heat() -> Spec:
    """A plate that cools: second derivatives in both directions, held to its edge and its beginning."""
    model = perceptron(3, *[64] * 5, 1, act=nn.SiLU)

    def loss(model: nn.Module, points: Tensor) -> Tensor:
        points = points.clone().requires_grad_(True)
        told = model(points)
        (slope,) = torch.autograd.grad(told.sum(), points, create_graph=True)
        bends = [
            torch.autograd.grad(slope[:, axis].sum(), points, create_graph=True)[0][:, axis]
            for axis in (0, 1)
        ]
        inside = (slope[:, 2] - 0.1 * (bends[0] + bends[1])).pow(2).mean()
        first = points.detach() * torch.tensor([1.0, 1.0, 0.0], device=points.device)
        return inside + (model(first) - torch.sin(first[:, :1] * 3.14)).pow(2).mean()

    return Spec(model, alone(3), loss)


class _Motion(nn.Module):
    """A state that moves as a network says, in forty small steps (Runge and Kutta's)."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = nn.Sequential(
            nn.Linear(16, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        path, step = [], 0.05
        for _ in range(40):
            a = self.speed(x)
            b = self.speed(x + step / 2 * a)
            c = self.speed(x + step / 2 * b)
            d = self.speed(x + step * c)
            x = x + step / 6 * (a + 2 * b + 2 * c + d)
            path.append(x)
        return torch.stack(path, 1)


@case("adam", "fp32", 512)
def moving_state() -> Spec:
    return Spec(_Motion(), to_numbers(16, outputs=(40, 16)), squared)
