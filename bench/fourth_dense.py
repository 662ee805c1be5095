"""An answer for every place of a picture or a volume: segmentation, boxes, points, depth. Cases stand above the model they
train.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, brought_up, joined, normed, passed, stages
from bench.model_parts import (
    Spec,
    bits,
    classified,
    freeze,
    kinds,
    made,
    masks,
    numbers,
    overlap,
    shares,
    squared,
    to_numbers,
    torchvision,
    zoo,
)

FOURTH_DENSE = CaseSet()
case = FOURTH_DENSE.case


class _ResidualLevels(nn.Module):
    """A U-Net of residual blocks that halve by strides."""

    def __init__(self, inputs: int, classes: int, widths: tuple[int, ...]) -> None:
        super().__init__()

        def block(first: int, last: int, stride: int) -> Residual:
            return Residual(
                *normed(first, last, 3, stride), *normed(last, last)[:-1], short=nn.Conv2d(first, last, 1, stride), act=nn.ReLU()
            )  # fmt: skip

        self.down = nn.ModuleList(
            block(a, b, 2 if level else 1)
            for level, (a, b) in enumerate(itertools.pairwise((inputs, *widths)))
        )
        turned = widths[::-1]
        self.up = nn.ModuleList(block(a + b, b, 1) for a, b in itertools.pairwise(turned))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = passed(self.down, x)
        y = kept.pop()
        for layer in self.up:
            y = layer(torch.cat([F.interpolate(y, scale_factor=2, mode="bilinear"), kept.pop()], 1))
        out: Tensor = self.head(y)
        return out


@case("adam", "fp32", 8, evaluate=True)
def vessels_in_eyes() -> Spec:
    model = _ResidualLevels(3, 1, (32, 64, 128, 256))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        return F.binary_cross_entropy_with_logits(
            told, y, pos_weight=torch.tensor(5.0, device=x.device)
        ) + overlap(told, y)

    return Spec(model, made(numbers(3, 288, 288), bits(1, 288, 288)), loss)


@case("adamw", "amp_fp16", 24, channels_last=True)
def crops_from_above() -> Spec:
    """Ten bands of a satellite's pictures, thirteen crops."""
    return Spec(_ResidualLevels(10, 13, (48, 96, 192)), masks(10, 128, 128, 13), classified)


@case("radam", "fp32", 20)
def teeth() -> Spec:
    """A U-Net of five levels, narrow, with transposed convolutions and dropout."""

    class Narrow(nn.Module):
        def __init__(self, widths: tuple[int, ...] = (12, 24, 48, 96, 192)) -> None:
            super().__init__()

            def twice(inputs: int, outputs: int) -> list[nn.Module]:
                return [
                    *normed(inputs, outputs, act=nn.ELU),
                    nn.Dropout(0.1),
                    *normed(outputs, outputs, act=nn.ELU),
                ]

            self.down = nn.ModuleList(
                joined([nn.MaxPool2d(2)] if level else [], twice(a, b))
                for level, (a, b) in enumerate(itertools.pairwise((1, *widths)))
            )
            turned = list(itertools.pairwise(widths[::-1]))
            self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in turned)
            self.up = nn.ModuleList(joined(twice(2 * b, b)) for _, b in turned)
            self.head = nn.Conv2d(widths[0], 5, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(brought_up(passed(self.down, x), self.grow, self.up))
            return out

    return Spec(Narrow(), masks(1, 208, 304, 5), classified)


class _AllAround(nn.Module):
    """Means over four sizes of neighbourhood, joined to what a dilated ResNet-50 sees (PSPNet)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        body = torchvision().models.resnet50(weights=None, replace_stride_with_dilation=[False, True, True])
        self.body = nn.Sequential(*list(body.children())[:-2])
        self.around = nn.ModuleList(
            joined(nn.AdaptiveAvgPool2d(size), normed(2048, 512, 1)) for size in (1, 2, 3, 6)
        )
        self.head = joined(normed(4096, 512), nn.Dropout2d(0.1), nn.Conv2d(512, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        seen = [F.interpolate(part(y), size=y.shape[2:], mode="bilinear") for part in self.around]
        return F.interpolate(self.head(torch.cat([y, *seen], 1)), size=x.shape[2:], mode="bilinear")


@case("sgdm", "amp_bf16", 4)
def rooms_all_around() -> Spec:
    return Spec(_AllAround(37), masks(3, 264, 264, 37), classified)


@case("adam_loop", "fp32", 16)
def scenes_on_a_phone() -> Spec:
    """torchvision's light head over MobileNetV3; roads and not roads."""
    model = torchvision().models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=2
    )
    return Spec(model, masks(3, 320, 416, 2), lambda m, x, y: F.cross_entropy(m(x)["out"], y))


class _Fast(nn.Module):
    """A few layers at large, many at small, added up (Fast-SCNN)."""

    def __init__(self, classes: int) -> None:
        super().__init__()

        def thin(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            return normed(inputs, inputs, 3, stride, groups=inputs)[:-1] + normed(inputs, outputs, 1)

        def wide(inputs: int, outputs: int, stride: int) -> nn.Module:
            inner = 6 * inputs
            layers = [
                *normed(inputs, inner, 1),
                *normed(inner, inner, 3, stride, groups=inner),
                *normed(inner, outputs, 1)[:-1],
            ]
            return Residual(*layers) if inputs == outputs and stride == 1 else nn.Sequential(*layers)

        self.first = joined(normed(3, 32, 3, 2), thin(32, 48, 2), thin(48, 64, 2))
        self.rest = joined(
            wide(64, 64, 2), wide(64, 64, 1), wide(64, 96, 2), wide(96, 96, 1), wide(96, 128, 1)
        )
        self.low, self.high = nn.Conv2d(128, 128, 1), nn.Conv2d(64, 128, 1)
        self.head = joined(thin(128, 128, 1), thin(128, 128, 1), nn.Dropout(0.1), nn.Conv2d(128, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        rest = F.interpolate(
            self.low(self.rest(first)), size=first.shape[2:], mode="bilinear", align_corners=True
        )
        told = self.head(F.relu(self.high(first) + rest))
        return F.interpolate(told, size=x.shape[2:], mode="bilinear", align_corners=True)


@case("sgdm", "fp32", 12)
def fast_streets() -> Spec:
    return Spec(_Fast(19), masks(3, 384, 768, 19), lambda m, x, y: F.cross_entropy(m(x), y, ignore_index=18))


class _ThreeGrids(nn.Module):
    """Boxes and kinds on three grids, large things from the coarsest (as YOLO's later forms have it)."""

    class Cell(nn.Module):
        """Halves that pass by, in two short branches (C2f)."""

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            half = outputs // 2
            self.enter = joined(normed(inputs, outputs, 1, act=nn.SiLU))
            self.blocks = nn.ModuleList(
                Residual(*normed(half, half, act=nn.SiLU), *normed(half, half, act=nn.SiLU)) for _ in range(2)
            )
            self.leave = joined(normed(2 * outputs, outputs, 1, act=nn.SiLU))

        def forward(self, x: Tensor) -> Tensor:
            parts = list(self.enter(x).chunk(2, 1))
            for block in self.blocks:
                parts.append(block(parts[-1]))
            out: Tensor = self.leave(torch.cat(parts, 1))
            return out

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.enter = joined(normed(3, 16, 3, 2, act=nn.SiLU))
        self.down = nn.ModuleList(
            joined(normed(a, b, 3, 2, act=nn.SiLU), self.Cell(b, b))
            for a, b in itertools.pairwise((16, *widths))
        )
        self.middle, self.fine = self.Cell(384, 128), self.Cell(192, 64)
        self.heads = nn.ModuleList(
            joined(normed(width, 64, act=nn.SiLU), nn.Conv2d(64, 4 + classes, 1)) for width in (64, 128, 256)
        )

    def forward(self, x: Tensor) -> Tensor:
        _, fine, middle, coarse = passed(self.down, self.enter(x))
        middle = self.middle(torch.cat([F.interpolate(coarse, scale_factor=2), middle], 1))
        fine = self.fine(torch.cat([F.interpolate(middle, scale_factor=2), fine], 1))
        told = [
            head(level).flatten(2) for head, level in zip(self.heads, (fine, middle, coarse), strict=True)
        ]
        return torch.cat(told, 2)


@case("sgdm", "amp_fp16", 16, ema=True)
def boxes_on_three_grids() -> Spec:
    places = 52 * 52 + 26 * 26 + 13 * 13

    def loss(model: nn.Module, x: Tensor, box: Tensor, kind: Tensor, there: Tensor) -> Tensor:
        told = model(x).float()
        near = F.smooth_l1_loss(told[:, :4].sigmoid(), box, reduction="none").sum(1)
        right = F.binary_cross_entropy_with_logits(told[:, 4:], kind, reduction="none").sum(1)
        return (near * there).sum() / there.sum().clamp(min=1) + right.mean()

    return Spec(
        _ThreeGrids(20), made(numbers(3, 416, 416), shares(4, places), bits(20, places), bits(places)), loss
    )


class _Anchored(nn.Module):
    """VGG-16's features and smaller ones after them, each asked for boxes of six shapes (SSD)."""

    def __init__(self, classes: int, shapes: int = 6) -> None:
        super().__init__()
        features = zoo("vgg16").features
        freeze(features[:10])
        self.levels = nn.ModuleList([
            features[:23], joined(features[23:30], nn.Conv2d(512, 512, 3, padding=6, dilation=6), nn.ReLU(True)),
            joined(nn.Conv2d(512, 256, 1), nn.ReLU(True), nn.Conv2d(256, 512, 3, 2, 1), nn.ReLU(True)),
            joined(nn.Conv2d(512, 128, 1), nn.ReLU(True), nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(True)),
        ])  # fmt: skip
        self.heads = nn.ModuleList(
            nn.Conv2d(width, shapes * (4 + classes), 3, padding=1) for width in (512, 512, 512, 256)
        )
        self.each = 4 + classes

    def forward(self, x: Tensor) -> Tensor:
        told = [head(y).permute(0, 2, 3, 1).reshape(len(x), -1, self.each) for head, y in zip(self.heads, passed(self.levels, x), strict=True)]  # fmt: skip
        return torch.cat(told, 1)


@case("sgdm", "fp32", 12, clip=True)
def ships() -> Spec:
    boxes = 6 * (37**2 + 18**2 + 9**2 + 5**2)

    def loss(model: nn.Module, x: Tensor, box: Tensor, kind: Tensor) -> Tensor:
        told = model(x)
        there = (kind > 0).float()
        wrong = F.cross_entropy(told[..., 4:].flatten(0, 1), kind.flatten(), reduction="none").view_as(there)
        hardest = (wrong * (1 - there)).topk(300, 1).values
        near = (F.smooth_l1_loss(told[..., :4], box, reduction="none").sum(2) * there).sum()
        return (near + (wrong * there).sum() + hardest.sum()) / len(x)

    return Spec(_Anchored(3), made(numbers(3, 300, 300), numbers(boxes, 4), kinds(3, boxes)), loss)


class _Volume(nn.Module):
    """A V-Net: residual blocks in three dimensions, halved and doubled by strides of two."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()

        def block(width: int) -> nn.Module:
            return Residual(nn.Conv3d(width, width, 5, padding=2), nn.BatchNorm3d(width), nn.PReLU(width))

        first = joined(nn.Conv3d(1, widths[0], 5, padding=2), block(widths[0]))
        rest = [joined(nn.Conv3d(a, b, 2, 2), nn.PReLU(b), block(b)) for a, b in itertools.pairwise(widths)]
        self.down = nn.ModuleList([first, *rest])
        turned = list(itertools.pairwise(widths[::-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, 2) for a, b in turned)
        self.up = nn.ModuleList(joined(nn.Conv3d(2 * b, b, 1), block(b)) for _, b in turned)
        self.head = nn.Conv3d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(brought_up(passed(self.down, x), self.grow, self.up))
        return out


@case("adam", "amp_fp16", 2)
def prostates() -> Spec:
    return Spec(
        _Volume(), made(numbers(1, 48, 112, 112), bits(1, 48, 112, 112)), lambda m, x, y: overlap(m(x), y)
    )


@case("adam", "amp_bf16", 32, channels_last=True)
def hands_as_points() -> Spec:
    """A ResNet-50 and three transposed convolutions: a map for each of twenty-one joints."""
    layers: list[nn.Module] = []
    for inputs in (2048, 256, 256):
        layers += [nn.ConvTranspose2d(inputs, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True)]
    model = joined(*stages("resnet50"), layers, nn.Conv2d(256, 21, 1))
    return Spec(model, to_numbers(3, 256, 192, outputs=(21, 64, 48)), squared)
