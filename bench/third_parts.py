"""Layers that several files of the third set share."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def joined(*layers: nn.Module | list[nn.Module]) -> nn.Sequential:
    """One network of layers and lists of layers."""
    flat: list[nn.Module] = []
    for layer in layers:
        flat += layer if isinstance(layer, list) else [layer]
    return nn.Sequential(*flat)


def normed(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    act: type[nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """A convolution that keeps the size but for its stride, a batch norm, and what bends."""
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        act(),
    ]  # fmt: skip


def pooled(widths: tuple[int, ...], kernel: int = 3, *, drop: float = 0.0) -> list[nn.Module]:
    """Plain convolutions that keep the size, each followed by a pool."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
        if drop:
            layers.append(nn.Dropout(drop))
    return layers


class Residual(nn.Module):
    """What comes in, plus what layers make of it."""

    def __init__(
        self, *layers: nn.Module, short: nn.Module | None = None, act: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.layers, self.short = nn.Sequential(*layers), short or nn.Identity()
        self.act = act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.layers(x) + self.short(x))
        return out


def basic(inputs: int, outputs: int, stride: int = 1) -> Residual:
    """A residual block of two convolutions."""
    short = None
    if inputs != outputs or stride != 1:
        short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    layers = normed(inputs, outputs, 3, stride) + normed(outputs, outputs)[:-1]
    return Residual(*layers, short=short, act=nn.ReLU())


class Recurrent(nn.Module):
    """A recurrent layer of torch's, of which only the outputs go on."""

    def __init__(self, kind: type[Any], *sizes: int, **options: Any) -> None:
        super().__init__()
        self.read = kind(*sizes, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.read(x)[0]
        return out


def made(*makers: Callable[[int], Tensor]) -> Callable[[int, str], list[Tensor]]:
    """A batch of several tensors, each made on the host for so many examples."""
    return lambda count, device: [maker(count).to(device) for maker in makers]


def numbers(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def shares(*shape: int) -> Callable[[int], Tensor]:
    """Numbers between 0 and 1."""
    return lambda count: torch.rand(count, *shape)


def kinds(classes: int, *shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(0, classes, (count, *shape))


def bits(*shape: int) -> Callable[[int], Tensor]:
    """Yes or no as 1.0 or 0.0."""
    return lambda count: torch.randint(0, 2, (count, *shape)).float()
