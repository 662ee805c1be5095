"""Sounds, shakes and currents by convolutions, and players that learn from screens. Cases stand above the model they train."""

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import model_parts as parts
from bench.block_parts import Beside, Levels, against, in_time, told, yes_or_no
from bench.case import CaseSet
from bench.layer_parts import Residual, joined, normed
from bench.model_parts import Spec, bits, classified, freeze, kinds, made, numbers, perceptron, shares

FIFTH_SIGNALS = CaseSet()
case = FIFTH_SIGNALS.case


@case("adam", "amp_bf16", 24)
def sounds_of_a_city() -> Spec:
    """Ten seconds as 64 pitches over 1,000 moments, pairs of convolutions, many labels (PANNs)."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 64, 128, 256, 512)):
        layers += [*normed(inputs, outputs), *normed(outputs, outputs), nn.AvgPool2d(2), nn.Dropout(0.2)]
    return Spec(
        joined(layers, told(512, 527)),
        made(numbers(1, 1000, 64), bits(527)),
        yes_or_no,
    )


@case("adam", "fp32", 64)
def first_shakes() -> Spec:
    """A minute of three directions; which moment is which wave of an earthquake (PhaseNet)."""
    widths = (16, 32, 64, 96, 128)
    down = [
        joined(in_time(a, b, 7, 4 if a > 3 else 1), in_time(b, b, 7))
        for a, b in itertools.pairwise((3, *widths))
    ]
    up = [joined(in_time(a + b, b, 7)) for a, b in itertools.pairwise(widths[::-1])]
    return Spec(Levels(down, up, nn.Conv1d(16, 3, 1)), made(numbers(3, 6000), kinds(3, 6000)), classified)


@case("nesterov", "amp_fp16", 32, clip=True)
def letters_in_speech() -> Spec:
    """Depthwise kernels in time, longer and longer, a letter for every second moment (QuartzNet)."""

    def deep(kernel: int) -> list[nn.Module]:
        return [*in_time(256, 256, kernel, groups=256)[:1], *in_time(256, 256, 1)]

    layers = in_time(80, 256, 33, 2)
    for kernel in (33, 39, 51, 63):
        layers.append(Residual(*deep(kernel), nn.Dropout(0.1), *deep(kernel)[:-1], act=nn.ReLU()))
    model = joined(layers, in_time(256, 512, 1), nn.Conv1d(512, 29, 1))
    return Spec(model, made(numbers(80, 1200), kinds(29, 600)), classified)


class _Voice(nn.Module):
    """Frames of speech with kernels that reach further and further; mean and spread over time, then a code (x-vectors)."""

    def __init__(self, speakers: int) -> None:
        super().__init__()
        frames: list[nn.Module] = []
        for inputs, outputs, size, apart in (
            (24, 512, 5, 1),
            (512, 512, 3, 2),
            (512, 512, 3, 3),
            (512, 1500, 1, 1),
        ):
            frames += [nn.Conv1d(inputs, outputs, size, dilation=apart), nn.ReLU(), nn.BatchNorm1d(outputs)]
        self.frames, self.head = nn.Sequential(*frames), perceptron(3000, 512, 512, speakers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.frames(x)
        out: Tensor = self.head(torch.cat([y.mean(2), y.std(2)], 1))
        return out


@case("sgdm", "fp32", 96, evaluate=True)
def known_voices() -> Spec:
    return Spec(_Voice(1200), parts.labelled(24, 320, classes=1200), classified)


@case("adam_fused", "fp32", 1024)
def which_device_runs() -> Spec:
    """A window of a house's current, what one device takes in its middle."""
    layers: list[nn.Module] = []
    for inputs, outputs, size in ((1, 30, 10), (30, 30, 8), (30, 40, 6), (40, 50, 5), (50, 50, 5)):
        layers += [nn.Conv1d(inputs, outputs, size), nn.ReLU()]
    model = joined(layers, nn.Flatten(), perceptron(50 * 271, 1024, 1))
    return Spec(model, parts.to_numbers(1, 300, outputs=(1,)), parts.squared)


@case("adamw", "fp32", 16)
def wave_from_map() -> Spec:
    """Eighty pitches become sound, grown by strides of 8, 8 and 4; judges fold it by 2, 3 and 5 (HiFi-GAN)."""

    def around(width: int) -> list[nn.Module]:
        return [
            Residual(nn.LeakyReLU(0.1), nn.Conv1d(width, width, 3, padding=apart, dilation=apart))
            for apart in (1, 3, 5)
        ]

    grown: list[nn.Module] = [nn.Conv1d(80, 256, 7, padding=3)]
    for width, stride in ((128, 8), (64, 8), (32, 4)):
        grown += [
            nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(2 * width, width, 2 * stride, stride, stride // 2),
            *around(width),
        ]
    make = joined(grown, nn.LeakyReLU(), nn.Conv1d(32, 1, 7, padding=3), nn.Tanh())

    def folded(period: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Unflatten(2, (-1, period))]
        for a, b in itertools.pairwise((1, 32, 128, 256)):
            layers += [nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)), nn.LeakyReLU(0.1)]
        return joined(layers, nn.Conv2d(256, 1, (3, 1), padding=(1, 0)), nn.Flatten())

    judge = Beside(*(folded(period) for period in (2, 3, 5)))
    turns = against(
        lambda make, batch: make(batch[0]),
        lambda judge, batch, drawn: (judge(batch[1]) - 1).pow(2).mean() + judge(drawn).pow(2).mean(),
        lambda judge, batch, drawn: (judge(drawn) - 1).pow(2).mean() + 45 * F.l1_loss(drawn, batch[1]),
    )
    batch = made(numbers(80, 30), shares(1, 7680))
    return Spec(nn.ModuleDict({"make": make, "judge": judge}), batch, parts.no_loss, turns)


# Players.


def _screen(channels: int, outputs: int) -> nn.Sequential:
    see = [
        nn.Conv2d(channels, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
    ]
    return joined(*see, nn.Flatten(), perceptron(64 * 49, 512, outputs))


class _Quantiles(nn.Module):
    """Two hundred equally likely scores for every move, beside an older copy (QR-DQN)."""

    def __init__(self, moves: int = 18, count: int = 200) -> None:
        super().__init__()
        self.now = nn.Sequential(_screen(4, moves * count), nn.Unflatten(1, (moves, count)))
        self.older = copy.deepcopy(self.now)
        freeze(self.older)
        self.register_buffer("shares", (torch.arange(count) + 0.5) / count)

    def forward(self, screen: Tensor, move: Tensor, reward: Tensor, after: Tensor) -> Tensor:
        rows = torch.arange(len(move), device=move.device)
        with torch.no_grad():
            later = self.older(after)
            wanted = reward.unsqueeze(1) + 0.99 * later[rows, later.mean(2).argmax(1)]
        apart = wanted.unsqueeze(1) - self.now(screen)[rows, move].unsqueeze(2)
        weight = (self.shares.view(1, -1, 1) - (apart < 0).float()).abs()
        return (weight * F.huber_loss(apart, torch.zeros_like(apart), reduction="none")).sum(1).mean()


@case("adam", "fp32", 256, clip=True)
def quantiles_of_scores() -> Spec:
    screen = shares(4, 84, 84)
    return Spec(_Quantiles(), made(screen, kinds(18), numbers(), screen), lambda m, *rows: m(*rows))


class _Imagined(nn.Module):
    """A screen becomes a state; moves change it five times, and each state tells value, reward and move (MuZero)."""

    def __init__(self, width: int = 128, moves: int = 6) -> None:
        super().__init__()

        def block() -> nn.Module:
            return Residual(*normed(width, width), *normed(width, width)[:-1], act=nn.ReLU())

        self.see = joined(
            normed(12, 64, 3, 2), normed(64, width, 3, 2), block(), nn.AvgPool2d(2), block(), nn.AvgPool2d(2)
        )
        self.go = joined(normed(width + 1, width), block(), block())
        self.tell = joined(normed(width, 32, 1), nn.Flatten(), perceptron(32 * 36, 128, moves + 2))
        self.moves = moves

    def forward(self, screen: Tensor, moves: Tensor, wanted: Tensor) -> Tensor:
        state, losses = self.see(screen), []
        for turn in range(moves.size(1)):
            plane = (moves[:, turn] / self.moves).view(-1, 1, 1, 1).expand(-1, 1, *state.shape[2:])
            state = self.go(torch.cat([state, plane], 1))
            policy, numbers_told = self.tell(state).split((self.moves, 2), 1)
            losses.append(F.cross_entropy(policy, moves[:, turn]) + F.mse_loss(numbers_told, wanted[:, turn]))
        return torch.stack(losses).mean()


@case("sgdm", "fp32", 64)
def imagined_moves() -> Spec:
    return Spec(_Imagined(), made(shares(12, 96, 96), kinds(6, 5), numbers(5, 2)), lambda m, *rows: m(*rows))
