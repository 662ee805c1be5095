"""Makers and judges with an optimizer each, and players that learn from screens. Cases stand above the model they train."""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

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
    shares,
    to_numbers,
    zoo,
)

FOURTH_ADVERSARIES = CaseSet()
case = FOURTH_ADVERSARIES.case


class _TimesTwo(nn.Module):
    """A residual block that doubles the size of its picture."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x) + self.short(x)
        return out


def _taking_turns(codes: int, *, turns: int = 1) -> Callable[[Workshop], Callable[[], Tensor]]:
    """Hinges: the judge learns `turns` times, each from another batch, then the maker once."""

    def training(shop: Workshop) -> Callable[[], Tensor]:
        make, judge = shop.model["make"], shop.model["judge"]
        of_judge, of_make = shop.optimizer(judge.parameters()), shop.optimizer(make.parameters())

        def step() -> Tensor:
            for _ in range(turns):
                (real,) = shop.batch()
                with shop.precision():
                    with torch.no_grad():
                        fake = make(torch.randn(len(real), codes, device=real.device))
                    loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake)).mean()
                of_judge.zero_grad()
                loss.backward()
                of_judge.step()
            with shop.precision():
                fooled = -judge(make(torch.randn(len(real), codes, device=real.device))).mean()
            of_make.zero_grad()
            fooled.backward()
            of_make.step()
            return fooled.detach()

        return step

    return training


@case("adam", "fp32", 64)
def residual_adversaries() -> Spec:
    """Pictures of 48; the judge's weights are normed and it learns twice a step."""
    make = joined(
        nn.Linear(128, 256 * 36), nn.Unflatten(1, (256, 6, 6)), *(_TimesTwo(a, b) for a, b in ((256, 256), (256, 128), (128, 64))),
        nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 3, 3, padding=1), nn.Tanh(),
    )  # fmt: skip

    def less(inputs: int, outputs: int) -> nn.Module:
        layers = [nn.ReLU(), spectral_norm(nn.Conv2d(inputs, outputs, 3, padding=1)), nn.ReLU(), spectral_norm(nn.Conv2d(outputs, outputs, 3, padding=1)), nn.AvgPool2d(2)]  # fmt: skip
        return Residual(
            *layers, short=nn.Sequential(nn.AvgPool2d(2), spectral_norm(nn.Conv2d(inputs, outputs, 1)))
        )

    judge = joined(*(less(a, b) for a, b in itertools.pairwise((3, 64, 128, 256))), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), spectral_norm(nn.Linear(256, 1)))  # fmt: skip
    model = nn.ModuleDict({"make": make, "judge": judge})
    return Spec(model, alone(3, 48, 48), no_loss, _taking_turns(128, turns=2))


@case("adam", "amp_bf16", 32)
def album_covers() -> Spec:
    """Pictures of 128, grown and judged by strides."""
    widths = (512, 256, 128, 64, 32)
    up: list[nn.Module] = [
        nn.Unflatten(1, (160, 1, 1)),
        nn.ConvTranspose2d(160, 512, 4, bias=False),
        nn.BatchNorm2d(512),
        nn.ReLU(True),
    ]
    down: list[nn.Module] = [nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2)]
    for inputs, outputs in itertools.pairwise(widths):
        up += [
            nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(True),
        ]
    for outputs, inputs in itertools.pairwise(widths[::-1]):
        down += [nn.Conv2d(outputs, inputs, 4, 2, 1, bias=False), nn.BatchNorm2d(inputs), nn.LeakyReLU(0.2)]
    make = joined(up, nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())
    model = nn.ModuleDict({"make": make, "judge": joined(down, nn.Conv2d(512, 1, 4), nn.Flatten(0))})
    return Spec(model, alone(3, 128, 128), no_loss, _taking_turns(160))


class _ByKind(nn.Module):
    """A maker or a judge of digits that is told the digit."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(10, 50)
        layers: list[nn.Module] = [nn.Linear(inputs + 50, 512), nn.LeakyReLU(0.2)]
        for _ in range(3):
            layers += [nn.Linear(512, 512), nn.Dropout(0.4), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Linear(512, outputs))

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        out: Tensor = self.layers(torch.cat([x, self.kinds(kind)], 1))
        return out


def _told_the_kind(shop: Workshop) -> Callable[[], Tensor]:
    make, judge = shop.model["make"], shop.model["judge"]
    of_make, of_judge = shop.optimizer(make.parameters()), shop.optimizer(judge.parameters())

    def step() -> Tensor:
        real, kind = shop.batch()
        yes, no = torch.ones(len(real), 1, device=real.device), torch.zeros(len(real), 1, device=real.device)
        wanted = torch.randint(0, 10, (len(real),), device=real.device)
        of_make.zero_grad()
        fake = torch.tanh(make(torch.randn(len(real), 100, device=real.device), wanted))
        fooled = F.mse_loss(judge(fake, wanted), yes)
        fooled.backward()
        of_make.step()
        of_judge.zero_grad()
        loss = (
            F.mse_loss(judge(real.flatten(1), kind), yes) + F.mse_loss(judge(fake.detach(), wanted), no)
        ) / 2
        loss.backward()
        of_judge.step()
        return loss.detach()

    return step


@case("adam", "fp32", 64)
def digits_on_demand() -> Spec:
    model = nn.ModuleDict({"make": _ByKind(100, 1024), "judge": _ByKind(1024, 1)})
    return Spec(model, labelled(1, 32, 32, classes=10), no_loss, _told_the_kind)


def _sharper(shop: Workshop) -> Callable[[], Tensor]:
    """Pixels, what a frozen VGG sees, and a judge of patches (SRGAN)."""
    make, judge, see = shop.model["make"], shop.model["judge"], shop.model["see"]
    of_make, of_judge = shop.optimizer(make.parameters()), shop.optimizer(judge.parameters())
    tell = F.binary_cross_entropy_with_logits

    def step() -> Tensor:
        small, large = shop.batch()
        fake = make(small)
        real_told, fake_told = judge(large), judge(fake.detach())
        of_judge.zero_grad()
        (
            tell(real_told, torch.ones_like(real_told)) + tell(fake_told, torch.zeros_like(fake_told))
        ).backward()
        of_judge.step()
        of_make.zero_grad()
        told = judge(fake)
        loss = (
            F.mse_loss(fake, large)
            + 0.006 * F.mse_loss(see(fake), see(large))
            + 1e-3 * tell(told, torch.ones_like(told))
        )
        loss.backward()
        of_make.step()
        return loss.detach()

    return step


@case("adam", "fp32", 12)
def sharper_and_judged() -> Spec:
    blocks = [Residual(*normed(64, 64, act=nn.PReLU), *normed(64, 64)[:-1]) for _ in range(8)]
    larger: list[nn.Module] = []
    for _ in range(2):
        larger += [nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.PReLU()]
    make = joined(nn.Conv2d(3, 64, 9, padding=4), nn.PReLU(), Residual(*blocks, *normed(64, 64)[:-1]), larger, nn.Conv2d(64, 3, 9, padding=4))  # fmt: skip
    judge: list[nn.Module] = []
    for inputs, outputs, stride in (
        (3, 64, 1),
        (64, 64, 2),
        (64, 128, 1),
        (128, 128, 2),
        (128, 256, 1),
        (256, 256, 2),
    ):
        judge += normed(inputs, outputs, 3, stride, act=nn.LeakyReLU)
    see = zoo("vgg19").features[:18]
    freeze(see)
    model = nn.ModuleDict({"make": make, "judge": joined(judge, nn.Conv2d(256, 1, 3, padding=1)), "see": see})
    return Spec(model, to_numbers(3, 28, 28, outputs=(3, 112, 112)), no_loss, _sharper)


# Players.


class _Seeing(nn.Module):
    """Three stages of residual blocks over a screen (IMPALA), then a line."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((channels, 32, 64, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [Residual(nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1)) for _ in range(2)]  # fmt: skip
        self.see = joined(layers, nn.ReLU(), nn.Flatten(), nn.Linear(64 * 64, width), nn.ReLU())
        self.act, self.judge = nn.Linear(width, 15), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.see(x.float() / 255)
        return self.act(y), self.judge(y).squeeze(1)


@case("adam", "fp32", 512, clip=True)
def runs_and_jumps() -> Spec:
    """One update of a proximal policy from stored screens of 64."""

    def loss(
        model: nn.Module, screen: Tensor, move: Tensor, before: Tensor, gain: Tensor, wanted: Tensor
    ) -> Tensor:
        told, value = model(screen)
        chance = told.log_softmax(1)
        ratio = (chance.gather(1, move.unsqueeze(1)).squeeze(1) - before).exp()
        kept = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return 0.5 * F.mse_loss(value, wanted) - kept + 0.01 * (chance.exp() * chance).sum(1).mean()

    def screen(count: int) -> Tensor:
        return torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8)

    return Spec(_Seeing(3, 256), made(screen, kinds(15), numbers(), numbers(), numbers()), loss)


class _Chances(nn.Module):
    """How likely each of fifty-one values is, for every move (C51), told by a network and its older copy."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.older = (
            joined(
                nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
                nn.Linear(64 * 8 * 8, 512), nn.ReLU(), nn.Linear(512, 6 * 51), nn.Unflatten(1, (6, 51)),
            )
            for _ in range(2)
        )  # fmt: skip
        freeze(self.older)
        self.register_buffer("values", torch.linspace(-10, 10, 51))

    def forward(self, screen: Tensor, move: Tensor, reward: Tensor, after: Tensor, done: Tensor) -> Tensor:
        rows = torch.arange(len(move), device=move.device)
        with torch.no_grad():
            later = self.older(after / 255).softmax(2)
            best = later[rows, (later * self.values).sum(2).argmax(1)]
            target = (reward[:, None] + 0.99 * (1 - done[:, None]) * self.values).clamp(-10, 10)
            place = ((target + 10) / 0.4).clamp(0, 50)
            low = place.floor().long()
            part = place - low
            wanted = (
                torch.zeros_like(best)
                .scatter_add_(1, low, best * (1 - part))
                .scatter_add_(1, (low + 1).clamp(max=50), best * part)
            )
        told = self.now(screen / 255)[rows, move].log_softmax(1)
        return -(wanted * told).sum(1).mean()


@case("adam", "fp32", 256)
def chances_of_scores() -> Spec:
    screen = shares(4, 96, 96)
    return Spec(_Chances(), made(screen, kinds(6), numbers(), screen, bits()), lambda m, *rows: m(*rows))
