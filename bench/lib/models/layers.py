"""Layers that the models of the cases share, and changes to complete networks, such as new heads and LoRA."""

import itertools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bench.lib.models.parts import freeze, torchvision_model


def sequential(*layers: nn.Module | list[nn.Module]) -> nn.Sequential:
    """Build one network from layers and lists of layers."""
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
    """Return a convolution that changes the size only by its stride, a batch norm, and an activation."""
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        act(),
    ]  # fmt: skip


def conv_pool(widths: tuple[int, ...], kernel: int = 3, *, drop: float = 0.0) -> list[nn.Module]:
    """Return plain convolutions that keep the size, each followed by a pooling layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
        if drop:
            layers.append(nn.Dropout(drop))
    return layers


def linear_norm(*widths: int, drop: float) -> list[nn.Module]:
    """Return linear layers, each with batch norm, ReLU and dropout."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(drop)]
    return layers


def outputs_of(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    """Return the outputs of all layers. Each layer is applied to the output of the previous layer."""
    return list(itertools.accumulate(layers, lambda y, layer: layer(y), initial=x))[1:]


class Residual(nn.Module):
    """Adds the output of the layers to their input."""

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
    """Return a residual block of two convolutions."""
    short = None
    if inputs != outputs or stride != 1:
        short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    layers = conv_norm(inputs, outputs, 3, stride) + conv_norm(outputs, outputs)[:-1]
    return Residual(*layers, short=short, act=nn.ReLU())


class Recurrent(nn.Module):
    """A recurrent layer that returns only its outputs."""

    def __init__(self, kind: type[Any], *sizes: int, **options: Any) -> None:
        super().__init__()
        self.read = kind(*sizes, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.read(x)[0]
        return out


def with_new_head(name: str, classes: int, *, frozen: bool = False, drop: float = 0.0) -> Any:
    """Return a torchvision network with a new last layer. With `frozen`, only that layer is trained."""
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
    """Return the stages of a torchvision ResNet, split at the layers that halve the image size."""
    body = torchvision_model(name)
    first = nn.Sequential(body.conv1, body.bn1, body.relu)
    return nn.ModuleList(
        [first, nn.Sequential(body.maxpool, body.layer1), body.layer2, body.layer3, body.layer4]
    )


class LoRA(nn.Module):
    """A frozen linear layer with a trainable low-rank update."""

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
    """Freeze the model, and add a low-rank update (or another `path`) to the linear layers with these names."""
    freeze(model)
    for module in list(model.modules()):
        for name in names:
            line = getattr(module, name, None)
            if isinstance(line, nn.Linear):
                setattr(module, name, path(line, rank))
    return model
