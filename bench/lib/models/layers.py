"""Layers and ways to change a finished network that the later sets of cases share."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.lib.models.parts import freeze, torchvision_model


def sequential(*layers: nn.Module | list[nn.Module]) -> nn.Sequential:
    """One network of layers and lists of layers."""
    flat: list[nn.Module] = []
    for layer in layers:
        flat += layer if isinstance(layer, list) else [layer]
    return nn.Sequential(*flat)


def conv_norm(
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


def conv_pool(widths: tuple[int, ...], kernel: int = 3, *, drop: float = 0.0) -> list[nn.Module]:
    """Plain convolutions that keep the size, each followed by a pool."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
        if drop:
            layers.append(nn.Dropout(drop))
    return layers


def linear_norm(*widths: int, drop: float) -> list[nn.Module]:
    """Lines, each with a batch norm, a rectifier and a dropout."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(drop)]
    return layers


def outputs_of(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    """What each of some layers makes of what the one before made."""
    return list(itertools.accumulate(layers, lambda y, layer: layer(y), initial=x))[1:]


def brought_up(kept: list[Tensor], grow: nn.ModuleList, layers: nn.ModuleList) -> Tensor:
    """The way up of a U-Net: what is lowest grows, and a layer joins it to what was kept on the way down."""
    y = kept.pop()
    for larger, layer in zip(grow, layers, strict=True):
        y = layer(torch.cat([larger(y), kept.pop()], 1))
    return y


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


def basic_block(inputs: int, outputs: int, stride: int = 1) -> Residual:
    """A residual block of two convolutions."""
    short = None
    if inputs != outputs or stride != 1:
        short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    layers = conv_norm(inputs, outputs, 3, stride) + conv_norm(outputs, outputs)[:-1]
    return Residual(*layers, short=short, act=nn.ReLU())


class Recurrent(nn.Module):
    """A recurrent layer of torch's, of which only the outputs go on."""

    def __init__(self, kind: type[Any], *sizes: int, **options: Any) -> None:
        super().__init__()
        self.read = kind(*sizes, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.read(x)[0]
        return out


def with_new_head(name: str, classes: int, *, frozen: bool = False, drop: float = 0.0) -> Any:
    """A network of torchvision's whose last line is exchanged; all before it frozen where asked for."""
    model = torchvision_model(name)
    if frozen:
        freeze(model)
    owner, last = model, next(name for name in ("fc", "head", "heads", "classifier") if hasattr(model, name))
    old = getattr(owner, last)
    if isinstance(old, nn.Sequential):
        owner, last, old = old, list(old._modules)[-1], old[-1]
    line = nn.Linear(old.in_features, classes)
    setattr(owner, last, nn.Sequential(nn.Dropout(drop), line) if drop else line)
    return model


def resnet_stages(name: str) -> nn.ModuleList:
    """A ResNet of torchvision's, cut where it halves its picture."""
    body = torchvision_model(name)
    first = nn.Sequential(body.conv1, body.bn1, body.relu)
    return nn.ModuleList(
        [first, nn.Sequential(body.maxpool, body.layer1), body.layer2, body.layer3, body.layer4]
    )


class LoRA(nn.Module):
    """A frozen line with a low path beside it."""

    def __init__(self, line: nn.Linear, rank: int) -> None:
        super().__init__()
        self.line = line
        self.down, self.up = (
            nn.Linear(line.in_features, rank, bias=False),
            nn.Linear(rank, line.out_features, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.line(x) + self.up(self.down(x)) * 2
        return out


def add_lora(
    model: nn.Module,
    names: tuple[str, ...],
    rank: int,
    path: Callable[[nn.Linear, int], nn.Module] = LoRA,
) -> nn.Module:
    """All is frozen but low paths (of another kind where asked for) beside lines of these names."""
    freeze(model)
    for module in list(model.modules()):
        for name in names:
            line = getattr(module, name, None)
            if isinstance(line, nn.Linear):
                setattr(module, name, path(line, rank))
    return model
