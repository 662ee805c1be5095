"""Networks that say something of every place of a picture or volume: segmentation, detection, depth, counting, key points.
Cases stand above the model they train.
"""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import Spec, classified, freeze, labelled, squared, to_numbers, torchvision, zoo

SEALED_DENSE = CaseSet()
case = SEALED_DENSE.case


def _masks(channels: int, height: int, width: int, classes: int) -> Any:
    """Pictures and a class for each place."""

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.rand(count, channels, height, width).to(device),
            torch.randint(0, classes, (count, height, width)).to(device),
        ]

    return batch


def _with_second_output(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    told = model(x)
    return F.cross_entropy(told["out"], y) + 0.5 * F.cross_entropy(told["aux"], y)


@case("adam", "fp32", 8)
def phone_scenes() -> Spec:
    model = torchvision().models.segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=2, aux_loss=True
    )
    return Spec(model, _masks(3, 224, 224, 2), _with_second_output)


@case("sgdm", "amp_fp16", 6)
def everywhere_a_class() -> Spec:
    model = torchvision().models.segmentation.fcn_resnet101(
        weights=None, weights_backbone=None, num_classes=12, aux_loss=True
    )
    return Spec(model, _masks(3, 240, 320, 12), _with_second_output)


def _convolved(inputs: int, outputs: int, *, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in ((inputs, outputs), (outputs, outputs)):
        layers += [nn.Conv2d(a, b, 3, padding=1), *([nn.BatchNorm2d(b)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers)


class _PlainUNet(nn.Module):
    """No norms, dropout in the middle, as the first tutorials have it."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_convolved(3, 32), _convolved(32, 64), _convolved(64, 128)])
        self.middle = nn.Sequential(_convolved(128, 256), nn.Dropout(0.5))
        self.grow = nn.ModuleList([nn.Conv2d(256, 128, 2, padding="same"), nn.Conv2d(128, 64, 2, padding="same"), nn.Conv2d(64, 32, 2, padding="same")])  # fmt: skip
        self.up = nn.ModuleList([_convolved(256, 128), _convolved(128, 64), _convolved(64, 32)])
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([kept.pop(), F.relu(grow(F.interpolate(x, scale_factor=2)))], 1))
        return torch.sigmoid(self.head(x))


@case("adam", "fp32", 16)
def nuclei() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told, wanted = model(x), y.round()
        both = (told * wanted).sum((1, 2, 3))
        return 1 - (both / (told.sum((1, 2, 3)) + wanted.sum((1, 2, 3)) - both + 1e-6)).mean()

    return Spec(_PlainUNet(), to_numbers(3, 192, 192, outputs=(1, 192, 192)), loss)


class _AttentiveUNet(nn.Module):
    """What is carried across is weighed by what comes up."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.down = nn.ModuleList(_convolved(a, b, norm=True) for a, b in itertools.pairwise((1, *widths)))
        steps = list(itertools.pairwise(widths[::-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in steps)
        self.gate = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * b, b // 2, 1), nn.BatchNorm2d(b // 2), nn.ReLU(), nn.Conv2d(b // 2, 1, 1), nn.Sigmoid())
            for _, b in steps
        )  # fmt: skip
        self.up = nn.ModuleList(_convolved(2 * b, b, norm=True) for _, b in steps)
        self.head = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = kept.pop()
        for grow, gate, block in zip(self.grow, self.gate, self.up, strict=True):
            x, side = grow(x), kept.pop()
            x = block(torch.cat([side * gate(torch.cat([side, x], 1)), x], 1))
        out: Tensor = self.head(x)
        return out


@case("adamw", "amp_bf16", 12)
def heart_scans() -> Spec:
    return Spec(_AttentiveUNet(), _masks(1, 256, 256, 4), classified)


class _OnPhone(nn.Module):
    """A U-Net whose way down is MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        layers = zoo("mobilenet_v2").features
        self.levels = nn.ModuleList([layers[:2], layers[2:4], layers[4:7], layers[7:14], layers[14:18]])
        widths = (16, 24, 32, 96, 320)
        self.up = nn.ModuleList(_convolved(a + b, b, norm=True) for a, b in itertools.pairwise(widths[::-1]))
        self.head = nn.ConvTranspose2d(16, 3, 3, 2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level in self.levels:
            x = level(x)
            kept.append(x)
        x = kept.pop()
        for block in self.up:
            side = kept.pop()
            x = block(torch.cat([F.interpolate(x, size=side.shape[2:], mode="bilinear"), side], 1))
        out: Tensor = self.head(x)
        return out


@case("adam", "fp32", 32, evaluate=True)
def pets() -> Spec:
    return Spec(_OnPhone(), _masks(3, 128, 128, 3), classified)


class _Linked(nn.Module):
    """LinkNet: what comes up is added to what went down."""

    def __init__(self) -> None:
        super().__init__()
        body = zoo("resnet18")
        self.stem = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool)
        self.down = nn.ModuleList([body.layer1, body.layer2, body.layer3, body.layer4])
        self.up = nn.ModuleList(self.decoder(a, b) for a, b in ((512, 256), (256, 128), (128, 64)))
        self.head = nn.Sequential(self.decoder(64, 32), nn.ConvTranspose2d(32, 1, 2, 2))

    @staticmethod
    def decoder(inputs: int, outputs: int) -> nn.Sequential:
        thin = inputs // 4
        return nn.Sequential(
            nn.Conv2d(inputs, thin, 1), nn.BatchNorm2d(thin), nn.ReLU(True), nn.ConvTranspose2d(thin, thin, 4, 2, 1),
            nn.BatchNorm2d(thin), nn.ReLU(True), nn.Conv2d(thin, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU(True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
        x = kept.pop()
        for block in self.up:
            x = block(x) + kept.pop()
        out: Tensor = self.head(x)
        return out


@case("adam", "amp_fp16", 8, channels_last=True)
def roads_from_above() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x).float(), y.round())

    return Spec(_Linked(), to_numbers(3, 384, 384, outputs=(1, 384, 384)), loss)


@case("adam", "fp32", 8)
def nodules() -> Spec:
    """A small classifier of grey volumes."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 16, 32, 64)):
        layers += [
            nn.Conv3d(inputs, outputs, 3, padding=1),
            nn.BatchNorm3d(outputs),
            nn.ReLU(),
            nn.MaxPool3d(2),
        ]
    model = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(64 * 6**3, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, 2)
    )
    return Spec(model, labelled(1, 48, 48, 48, classes=2), classified)


def _boxes(size: int, classes: int, each: int) -> Any:
    """Pictures, boxes on each of them, and what the boxes hold."""

    def batch(count: int, device: str) -> list[Tensor]:
        corners = torch.rand(count, each, 2) * size / 2
        boxes = torch.cat([corners, corners + 16 + torch.rand(count, each, 2) * size / 3], 2)
        kinds = torch.randint(1, classes, (count, each))
        return [torch.rand(count, 3, size, size).to(device), boxes.to(device), kinds.to(device)]

    return batch


def _detection_loss(model: nn.Module, x: Tensor, boxes: Tensor, kinds: Tensor) -> Tensor:
    targets = [{"boxes": box, "labels": kind} for box, kind in zip(boxes, kinds, strict=True)]
    return torch.stack(list(model(list(x), targets).values())).sum()


@case("sgdm", "fp32", 8)
def boxes_on_phones() -> Spec:
    model = torchvision().models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )
    return Spec(model, _boxes(320, 4, 3), _detection_loss)


@case("adamw", "amp_bf16", 4)
def boxes_without_anchors() -> Spec:
    model = torchvision().models.detection.fcos_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=3,
        min_size=416,
        max_size=416,
        trainable_backbone_layers=5,
    )
    return Spec(model, _boxes(416, 3, 5), _detection_loss)


@case("adam", "amp_fp16", 16)
def seen_once() -> Spec:
    """A small one-shot detector: a grid of cells, each with two boxes and twenty classes."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 16, 32, 64, 128, 256, 512)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1, inplace=True), nn.MaxPool2d(2)]  # fmt: skip
    model = nn.Sequential(
        *layers, nn.Conv2d(512, 1024, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(1024, 30, 1)
    )

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x).permute(0, 2, 3, 1).float()
        here = (y[..., 4:5] > 0.9).float()
        place = (here * (told[..., :4] - y[..., :4]) ** 2).sum()
        sure = F.binary_cross_entropy_with_logits(told[..., 4:5], here, reduction="sum")
        kinds = (here * (told[..., 10:].sigmoid() - y[..., 10:]) ** 2).sum()
        return (5 * place + sure + kinds) / len(x)

    return Spec(model, to_numbers(3, 448, 448, outputs=(7, 7, 30)), loss)


class _Hourglass(nn.Module):
    """Down and up again, with a side way at each size."""

    def __init__(self, depth: int, width: int = 128) -> None:
        super().__init__()
        self.side, self.low1, self.low3 = (_convolved(width, width, norm=True) for _ in range(3))
        self.low2 = _Hourglass(depth - 1, width) if depth > 1 else _convolved(width, width, norm=True)

    def forward(self, x: Tensor) -> Tensor:
        low = self.low3(self.low2(self.low1(F.max_pool2d(x, 2))))
        out: Tensor = self.side(x) + F.interpolate(low, scale_factor=2)
        return out


@case("rmsprop", "fp32", 12)
def joints() -> Spec:
    model = nn.Sequential(
        nn.Conv2d(3, 128, 7, 2, 3), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2), _Hourglass(3), nn.Conv2d(128, 14, 1)
    )  # fmt: skip
    return Spec(model, to_numbers(3, 192, 192, outputs=(14, 48, 48)), squared)


class _Depth(nn.Module):
    """How far each place is: DenseNet-121 down, bilinear up."""

    def __init__(self) -> None:
        super().__init__()
        layers = zoo("densenet121").features
        self.down = nn.ModuleList([layers[:3], layers[3:5], layers[5:7], layers[7:9], layers[9:]])
        self.up = nn.ModuleList(
            _convolved(a, b)
            for a, b in ((1024 + 1024, 512), (512 + 512, 256), (256 + 256, 128), (128 + 64, 64))
        )
        self.head = nn.Conv2d(64, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
        x = kept.pop()
        for block in self.up:
            side = kept.pop()
            x = block(
                torch.cat(
                    [F.interpolate(x, size=side.shape[2:], mode="bilinear", align_corners=True), side], 1
                )
            )
        out: Tensor = self.head(x)
        return out


@case("adam", "fp32", 6)
def how_far() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        across = (told[..., 1:] - told[..., :-1]) - (y[..., 1:] - y[..., :-1])
        along = (told[..., 1:, :] - told[..., :-1, :]) - (y[..., 1:, :] - y[..., :-1, :])
        return 0.1 * F.l1_loss(told, y) + across.abs().mean() + along.abs().mean()

    return Spec(_Depth(), to_numbers(3, 192, 256, outputs=(1, 96, 128)), loss)


@case("sgdm", "fp32", 8)
def how_many() -> Spec:
    """Heads in a crowd: the first layers of VGG-16, then dilated convolutions."""
    front = zoo("vgg16").features[:23]
    freeze(front[:10])
    back: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((512, 512, 256, 128, 64)):
        back += [nn.Conv2d(inputs, outputs, 3, padding=2, dilation=2), nn.ReLU(inplace=True)]
    model = nn.Sequential(front, *back, nn.Conv2d(64, 1, 1))
    return Spec(model, to_numbers(3, 256, 256, outputs=(1, 32, 32)), squared)


class _Colours(nn.Module):
    """Grey in, two colours of each place out, by strides and dilation."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        shapes = ((1, 64, 2, 1), (64, 128, 1, 1), (128, 128, 2, 1), (128, 256, 1, 1), (256, 256, 2, 1), (256, 512, 1, 1), (512, 512, 1, 2), (512, 256, 1, 1))  # fmt: skip
        for inputs, outputs, stride, dilation in shapes:
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation),
                nn.ReLU(),
                nn.BatchNorm2d(outputs),
            ]
        self.body = nn.Sequential(
            *layers, nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.ReLU(), nn.Conv2d(128, 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.body(x), scale_factor=4, mode="bilinear")


@case("adam", "amp_bf16", 32)
def colours() -> Spec:
    return Spec(_Colours(), to_numbers(1, 176, 176, outputs=(2, 176, 176)), squared)
