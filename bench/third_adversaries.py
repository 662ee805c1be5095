"""Makers of pictures and those who judge them, each with an optimizer of its own. Cases stand above the model they train."""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual
from bench.model_parts import (
    Spec,
    Workshop,
    alone,
    made,
    no_loss,
    numbers,
)

THIRD_ADVERSARIES = CaseSet()
case = THIRD_ADVERSARIES.case


def _grown(codes: int, widths: tuple[int, ...], channels: int) -> nn.Sequential:
    """From a code to a picture, by transposed convolutions."""
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(codes, widths[0], 4, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(True),
    ]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [
            nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], channels, 4, 2, 1, bias=False), nn.Tanh())


def _judged(channels: int, widths: tuple[int, ...], norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """From a picture to one number."""
    layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 4, 2, 1), norm(outputs), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4), nn.Flatten())


def _classic(shop: Workshop) -> Callable[[], Tensor]:
    """The judge learns from real and made pictures one after the other, then the maker from the judge."""
    make, judge = shop.model["make"], shop.model["judge"]
    of_judge, of_make = shop.optimizer(judge.parameters()), shop.optimizer(make.parameters())
    tell = nn.BCEWithLogitsLoss()

    def step() -> Tensor:
        (real,) = shop.batch()
        label = torch.full((len(real), 1), 1.0, device=real.device)
        judge.zero_grad()
        with shop.precision():
            seen = tell(judge(real), label)
        seen.backward()
        with shop.precision():
            fake = make(torch.randn(len(real), 100, 1, 1, device=real.device))
            caught = tell(judge(fake.detach()), label.fill_(0.0))
        caught.backward()
        of_judge.step()
        make.zero_grad()
        with shop.precision():
            fooled = tell(judge(fake), label.fill_(1.0))
        fooled.backward()
        of_make.step()
        return fooled.detach()

    return step


@case("adam", "fp32", 128)
def famous_faces() -> Spec:
    """The tutorial's adversaries at 64."""
    model = {
        "make": _grown(100, (512, 256, 128, 64), 3),
        "judge": _judged(3, (64, 128, 256, 512), nn.BatchNorm2d),
    }
    return Spec(nn.ModuleDict(model), alone(3, 64, 64), no_loss, _classic)


def _clipped(shop: Workshop) -> Callable[[], Tensor]:
    """A critic whose weights are clipped learns three times for each step of the maker."""
    make, judge = shop.model["make"], shop.model["judge"]
    of_judge, of_make = shop.optimizer(judge.parameters()), shop.optimizer(make.parameters())

    def step() -> Tensor:
        for _ in range(3):
            (real,) = shop.batch()
            of_judge.zero_grad()
            with torch.no_grad():
                fake = make(torch.randn(len(real), 64, 1, 1, device=real.device))
            loss = judge(fake).mean() - judge(real).mean()
            loss.backward()
            of_judge.step()
            with torch.no_grad():
                for parameter in judge.parameters():
                    parameter.clamp_(-0.01, 0.01)
        of_make.zero_grad()
        fooled = -judge(make(torch.randn(len(real), 64, 1, 1, device=real.device))).mean()
        fooled.backward()
        of_make.step()
        return fooled.detach()

    return step


@case("rmsprop", "fp32", 64)
def clipped_critic() -> Spec:
    model = {"make": _grown(64, (256, 128, 64), 1), "judge": _judged(1, (64, 128, 256), nn.BatchNorm2d)}
    return Spec(nn.ModuleDict(model), alone(1, 32, 32), no_loss, _clipped)


def _translator(width: int) -> nn.Sequential:
    """From one kind of picture to another (CycleGAN's maker with six blocks)."""

    def block(channels: int) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [
                nn.ReflectionPad2d(1),
                nn.Conv2d(channels, channels, 3),
                nn.InstanceNorm2d(channels),
                nn.ReLU(True),
            ]
        return Residual(*layers[:-1])

    layers: list[nn.Module] = [
        nn.ReflectionPad2d(3),
        nn.Conv2d(3, width, 7),
        nn.InstanceNorm2d(width),
        nn.ReLU(True),
    ]
    for inputs in (width, 2 * width):
        layers += [nn.Conv2d(inputs, 2 * inputs, 3, 2, 1), nn.InstanceNorm2d(2 * inputs), nn.ReLU(True)]
    layers += [block(4 * width) for _ in range(6)]
    for inputs in (4 * width, 2 * width):
        layers += [
            nn.ConvTranspose2d(inputs, inputs // 2, 3, 2, 1, 1),
            nn.InstanceNorm2d(inputs // 2),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


def _there_and_back(shop: Workshop) -> Callable[[], Tensor]:
    parts = shop.model
    makers = [*parts["to_b"].parameters(), *parts["to_a"].parameters()]
    judges = [*parts["is_a"].parameters(), *parts["is_b"].parameters()]
    of_makers, of_judges = shop.optimizer(makers), shop.optimizer(judges)

    def like(told: Tensor, answer: float) -> Tensor:
        return F.mse_loss(told, torch.full_like(told, answer))

    def step() -> Tensor:
        a, b = shop.batch()
        of_makers.zero_grad()
        with shop.precision():
            fake_b, fake_a = parts["to_b"](a), parts["to_a"](b)
            loss = like(parts["is_b"](fake_b), 1) + like(parts["is_a"](fake_a), 1)
            loss = loss + 10 * (F.l1_loss(parts["to_a"](fake_b), a) + F.l1_loss(parts["to_b"](fake_a), b))
            loss = loss + 5 * (F.l1_loss(parts["to_b"](b), b) + F.l1_loss(parts["to_a"](a), a))
        loss.backward()
        of_makers.step()
        of_judges.zero_grad()
        for judge, real, fake in (("is_a", a, fake_a), ("is_b", b, fake_b)):
            with shop.precision():
                judged = (like(parts[judge](real), 1) + like(parts[judge](fake.detach()), 0)) / 2
            judged.backward()
        of_judges.step()
        return loss.detach()

    return step


@case("adam", "fp32", 1)
def horses_and_zebras() -> Spec:
    model = nn.ModuleDict({"to_b": _translator(64), "to_a": _translator(64), "is_a": _judged(3, (64, 128, 256), nn.InstanceNorm2d), "is_b": _judged(3, (64, 128, 256), nn.InstanceNorm2d)})  # fmt: skip
    return Spec(model, made(numbers(3, 200, 200), numbers(3, 200, 200)), no_loss, _there_and_back)


def _hinged(shop: Workshop) -> Callable[[], Tensor]:
    """A hinge loss and a judge whose weights are normed by their largest value."""
    make, judge = shop.model["make"], shop.model["judge"]
    of_judge, of_make = shop.optimizer(judge.parameters()), shop.optimizer(make.parameters())

    def step() -> Tensor:
        (real,) = shop.batch()
        with shop.precision():
            fake = make(torch.randn(len(real), 128, 1, 1, device=real.device))
            loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake.detach())).mean()
        of_judge.zero_grad(set_to_none=True)
        loss.backward()
        of_judge.step()
        with shop.precision():
            fooled = -judge(fake).mean()
        of_make.zero_grad(set_to_none=True)
        fooled.backward()
        of_make.step()
        return loss.detach()

    return step


@case("adam", "amp_bf16", 64)
def steadied_judge() -> Spec:
    judge = _judged(3, (64, 128, 256, 512), lambda _: nn.Identity())
    for index, layer in enumerate(judge):
        if isinstance(layer, nn.Conv2d):
            judge[index] = torch.nn.utils.parametrizations.spectral_norm(layer)
    model = {"make": _grown(128, (512, 256, 128, 64), 3), "judge": judge}
    return Spec(nn.ModuleDict(model), alone(3, 64, 64), no_loss, _hinged)
