"""Reinforcement learning: value-based, actor-critic, offline, multi-agent, model-based."""

import copy
import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.layers import Recurrent, Residual, sequential
from bench.lib.models.parts import (
    Spec,
    StepParts,
    batch_of,
    ema_update,
    freeze,
    integers,
    mlp,
    no_loss,
    normal,
    uniform,
)

CASES = CaseSet()
case = CASES.case


class _NoisyLinear(nn.Module):
    """A linear layer with learned noise on its weights (NoisyNet)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.line, self.spread = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        nn.init.constant_(self.spread.weight, 0.5 / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        first, second = (torch.randn(size, device=x.device) for size in self.line.weight.shape)
        first, second = (noise.sign() * noise.abs().sqrt() for noise in (first, second))
        weight = self.line.weight + self.spread.weight * first.outer(second)
        return F.linear(x, weight, self.line.bias + self.spread.bias * first)


def _with_target_copy(model: nn.Module) -> nn.ModuleDict:
    """Return a network and a frozen target copy."""
    slow = copy.deepcopy(model)
    freeze(slow)
    return nn.ModuleDict({"now": model, "slow": slow})


@case("adam", "fp32", 192, clip=True)
def noise_on_the_weights() -> Spec:
    """Return a DQN with noisy layers on four stacked 80-pixel screens."""
    see = [
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
    ]
    model = sequential(*see, nn.Flatten(), _NoisyLinear(64 * 36, 512), nn.ReLU(), _NoisyLinear(512, 9))

    def loss(model: nn.Module, screen: Tensor, move: Tensor, reward: Tensor, after: Tensor) -> Tensor:
        with torch.no_grad():
            best = model["now"](after).argmax(1, keepdim=True)
            target = reward + 0.97 * model["slow"](after).gather(1, best)
        return F.smooth_l1_loss(model["now"](screen).gather(1, move), target)

    screen = uniform(4, 80, 80)
    return Spec(_with_target_copy(model), batch_of(screen, integers(9, 1), normal(1), screen), loss)


class _Impala(nn.Module):
    """A residual CNN and an LSTM over 24 screens, with policy and value heads (IMPALA)."""

    def __init__(self, widths: tuple[int, ...] = (3, 16, 32, 32), moves: int = 15) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Module:
            def residual() -> Residual:
                return Residual(
                    nn.ReLU(),
                    nn.Conv2d(outputs, outputs, 3, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(outputs, outputs, 3, padding=1),
                )

            return sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2, 1), residual(), residual()
            )

        blocks = [block(a, b) for a, b in itertools.pairwise(widths)]
        self.see = sequential(*blocks, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 81, 256), nn.ReLU())
        self.read, self.moves, self.value = (
            Recurrent(nn.LSTM, 256, 256),
            nn.Linear(256, moves),
            nn.Linear(256, 1),
        )

    def forward(self, screens: Tensor) -> tuple[Tensor, Tensor]:
        state = self.read(self.see(screens.flatten(0, 1)).unflatten(0, screens.shape[:2]))
        return self.moves(state).log_softmax(2), self.value(state).squeeze(2)


@case("rmsprop", "amp_fp16", 24, clip=True)
def long_games() -> Spec:
    def loss(model: nn.Module, screens: Tensor, move: Tensor, reward: Tensor, old: Tensor) -> Tensor:
        chances, value = model(screens)
        chance = chances.gather(2, move.unsqueeze(2)).squeeze(2)
        with torch.no_grad():
            trust = (chance - old).exp().clamp(max=1)
            step = trust * (reward + 0.99 * F.pad(value[:, 1:], (0, 1)) - value)
            later = torch.zeros_like(step[:, 0])
            gains = []
            for moment in reversed(range(step.size(1))):
                later = step[:, moment] + 0.99 * trust[:, moment] * later
                gains.append(later)
            gain = torch.stack(gains[::-1], 1)
        surprise = (chances.exp() * chances).sum(2).mean()
        return (
            -(trust * gain * chance).mean() + 0.5 * F.mse_loss(value, gain + value.detach()) + 0.01 * surprise
        )

    return Spec(_Impala(), batch_of(uniform(24, 3, 72, 72), integers(15, 24), normal(24), normal(24)), loss)


def _random_shift(screen: Tensor, far: int = 4) -> Tensor:
    """Return screens that are each shifted by a few pixels."""
    count, size = len(screen), screen.size(2)
    still = torch.eye(2, 3, device=screen.device).repeat(count, 1, 1)
    still[:, :, 2] = (torch.rand(count, 2, device=screen.device) * 2 - 1) * 2 * far / size
    grid = F.affine_grid(still, list(screen.shape), align_corners=False)
    return F.grid_sample(screen, grid, padding_mode="border", align_corners=False)


def _drq_step(parts: StepParts) -> Callable[[], Tensor]:
    """Return an actor-critic step from pixels (DrQ). The critic also trains the encoder, but the actor does not."""
    see, act, critic, slow = (parts.model[name] for name in ("see", "act", "critic", "slow"))
    of_judge = parts.optimizer([*see.parameters(), *critic.parameters()])
    of_act = parts.optimizer(act.parameters())

    def step() -> Tensor:
        screen, move, reward, after = parts.batch()
        with parts.precision():
            seen = see(_random_shift(screen))
            with torch.no_grad():
                later = see(_random_shift(after))
                ahead = torch.cat([later, act(later).tanh()], 1)
                target = reward + 0.99 * torch.min(slow[0](ahead), slow[1](ahead))
            worth = torch.cat([seen, move], 1)
            loss = sum(F.mse_loss(one(worth).float(), target.float()) for one in critic)
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        with parts.precision():
            seen = seen.detach()
            pleased = critic[0](torch.cat([seen, act(seen).tanh()], 1)).mean()
        of_act.zero_grad()
        (-pleased).backward()
        of_act.step()
        ema_update(slow.parameters(), critic.parameters(), 0.01)
        return loss.detach()

    return step


@case("adam", "amp_bf16", 160)
def arms_seen_by_a_camera() -> Spec:
    looks = [
        part
        for inputs, stride in ((9, 2), (32, 1), (32, 1), (32, 1))
        for part in (nn.Conv2d(inputs, 32, 3, stride), nn.ReLU())
    ]
    see = sequential(*looks, nn.Flatten(), nn.Linear(32 * 35 * 35, 64), nn.LayerNorm(64), nn.Tanh())
    both = _with_target_copy(nn.ModuleList(mlp(70, 1024, 1024, 1) for _ in range(2)))
    model = {"see": see, "act": mlp(64, 1024, 1024, 6), "critic": both["now"], "slow": both["slow"]}
    screen = uniform(9, 84, 84)
    return Spec(nn.ModuleDict(model), batch_of(screen, normal(6), normal(1), screen), no_loss, _drq_step)


@case("adam", "fp32", 1024)
def cautious_after_logs() -> Spec:
    """Build an offline Q-learning model with a penalty on thirty sampled actions per state (CQL)."""

    def loss(model: nn.Module, state: Tensor, move: Tensor, reward: Tensor, after: Tensor) -> Tensor:
        critic, slow = model["now"], model["slow"]
        others = torch.rand(len(state), 30, move.size(1), device=state.device) * 2 - 1
        here = torch.cat([state.unsqueeze(1).expand(-1, 30, -1), others], 2)
        with torch.no_grad():
            target = reward + 0.99 * slow(torch.cat([after, move], 1))
        known = critic(torch.cat([state, move], 1))
        return F.mse_loss(known, target) + 5 * (critic(here).logsumexp(1) - known).mean()

    return Spec(
        _with_target_copy(mlp(47, 384, 384, 384, 1)),
        batch_of(normal(39), normal(8), normal(1), normal(39)),
        loss,
    )


class _QMix(nn.Module):
    """Eight agents that share a recurrent network. A hypernetwork mixes their values (QMIX)."""

    def __init__(self, drones: int = 8, sees: int = 110, state: int = 240, moves: int = 14) -> None:
        super().__init__()
        self.enter, self.cell, self.leave = nn.Linear(sees, 128), nn.GRUCell(128, 128), nn.Linear(128, moves)
        self.first, self.bias = mlp(state, 128, drones * 64), nn.Linear(state, 64)
        self.second, self.last = mlp(state, 128, 64), mlp(state, 64, 1)

    def forward(self, seen: Tensor, state: Tensor, move: Tensor) -> Tensor:
        memory, worth = seen.new_zeros(seen[:, 0, :, 0].numel(), 128), []
        for now in seen.unbind(1):
            memory = self.cell(self.enter(now.flatten(0, 1)).relu(), memory)
            worth.append(self.leave(memory).unflatten(0, now.shape[:2]))
        chosen = torch.stack(worth, 1).gather(3, move.unsqueeze(3)).transpose(2, 3)
        mixed = F.elu(chosen @ self.first(state).abs().unflatten(2, (-1, 64)) + self.bias(state).unsqueeze(2))
        out: Tensor = (mixed.squeeze(2) * self.second(state).abs()).sum(2) + self.last(state).squeeze(2)
        return out


@case("rmsprop_centered", "tf32", 96, clip=True)
def team_of_drones() -> Spec:
    return Spec(
        _QMix(),
        batch_of(normal(40, 8, 110), normal(40, 240), integers(14, 40, 8), normal(40)),
        lambda m, seen, state, move, y: F.mse_loss(m(seen, state, move), y),
    )


class _EnsembleLinear(nn.Module):
    """One linear layer per ensemble member, computed together."""

    def __init__(self, models: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(models, inputs, outputs) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.zeros(models, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


@case("adamw", "fp32", 2048)
def seven_models_of_one_world() -> Spec:
    """Return a probabilistic ensemble of seven dynamics models."""
    widths = (32, 400, 400, 400, 400)
    layers = [part for a, b in itertools.pairwise(widths) for part in (_EnsembleLinear(7, a, b), nn.SiLU())]
    model = sequential(*layers, _EnsembleLinear(7, 400, 2 * 26))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        mean, spread = model(x.expand(7, -1, -1)).chunk(2, 2)
        spread = -F.softplus(-spread - 4)
        return ((mean - y).pow(2) * torch.exp(-spread) + spread).mean()

    return Spec(model, batch_of(normal(32), normal(26)), loss)
