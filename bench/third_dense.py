"""An answer for every place of a picture or a volume: segmentation, points, depth, motion, boxes on a grid. Cases stand above
the model they train.
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

THIRD_DENSE = CaseSet()
case = THIRD_DENSE.case


@case("sgdm", "fp32", 8)
def kitchens() -> Spec:
    model = torchvision().models.segmentation.fcn_resnet50(
        weights=None, weights_backbone=None, num_classes=14
    )
    return Spec(model, masks(3, 240, 320, 14), lambda m, x, y: F.cross_entropy(m(x)["out"], y))


@case("adamw", "amp_fp16", 4)
def streets_at_512() -> Spec:
    """DeepLab with its side output; a place in ten has no label."""
    model = torchvision().models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=19, aux_loss=True
    )

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        main = F.cross_entropy(told["out"], y, ignore_index=18)
        return main + 0.4 * F.cross_entropy(told["aux"], y, ignore_index=18)

    return Spec(model, masks(3, 512, 512, 19), loss)


class _Encoded(nn.Module):
    """A U-Net whose way down is a ResNet-34."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.down = stages("resnet34")
        sizes = ((512 + 256, 256), (256 + 128, 128), (128 + 64, 64), (64 + 64, 32), (32, 16))
        self.up = nn.ModuleList(
            joined(normed(inputs, outputs), normed(outputs, outputs)) for inputs, outputs in sizes
        )
        self.head = nn.Conv2d(16, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        kept = passed(self.down, x)
        y = kept.pop()
        for layer in self.up:
            y = F.interpolate(y, scale_factor=2, mode="nearest")
            y = layer(torch.cat([y, kept.pop()], 1) if kept else y)
        out: Tensor = self.head(y)
        return out


@case("adam", "fp32", 16, evaluate=True)
def salt_under_ground() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        return F.binary_cross_entropy_with_logits(told, y) + overlap(told, y)

    return Spec(_Encoded(1), made(numbers(3, 128, 128), bits(1, 128, 128)), loss)


class _Nested(nn.Module):
    """Three levels down; everything on one level is joined (UNet++)."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.levels = len(widths)
        self.cells = nn.ModuleDict()
        for level, place in itertools.product(range(self.levels), repeat=2):
            if level + place >= self.levels:
                continue
            before = (
                (widths[level - 1] if level else 3)
                if place == 0
                else widths[level] * place + widths[level + 1]
            )
            self.cells[f"{level}{place}"] = joined(
                normed(before, widths[level]), normed(widths[level], widths[level])
            )
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: dict[tuple[int, int], Tensor] = {}
        for level in range(self.levels):
            x = found[level, 0] = self.cells[f"{level}0"](F.max_pool2d(x, 2) if level else x)
        for place in range(1, self.levels):
            for level in range(self.levels - place):
                below = F.interpolate(
                    found[level + 1, place - 1], scale_factor=2, mode="bilinear", align_corners=True
                )
                beside = [found[level, earlier] for earlier in range(place)]
                found[level, place] = self.cells[f"{level}{place}"](torch.cat([*beside, below], 1))
        out: Tensor = self.head(found[0, self.levels - 1])
        return out


@case("sgdm", "amp_bf16", 8)
def polyps() -> Spec:
    return Spec(_Nested(), made(numbers(3, 224, 224), bits(1, 224, 224)), lambda m, x, y: overlap(m(x), y))


class _Linked(nn.Module):
    """A ResNet-18 down; narrow blocks up whose results are added, not joined (LinkNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = stages("resnet18")
        self.up = nn.ModuleList(
            joined(
                normed(inputs, inputs // 4, 1), nn.ConvTranspose2d(inputs // 4, inputs // 4, 4, 2, 1), nn.BatchNorm2d(inputs // 4),
                nn.ReLU(), normed(inputs // 4, outputs, 1),
            )
            for inputs, outputs in ((512, 256), (256, 128), (128, 64), (64, 64))
        )  # fmt: skip
        self.head = nn.ConvTranspose2d(64, 8, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = passed(self.down, x)
        y = kept.pop()
        for layer in self.up:
            y = layer(y) + kept.pop()
        out: Tensor = self.head(y)
        return out


@case("adam", "fp32", 12, clip=True)
def tools_in_surgery() -> Spec:
    return Spec(_Linked(), masks(3, 256, 320, 8), classified)


class _Volumes(nn.Module):
    """A U-Net in three dimensions with instance norms."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()

        def twice(inputs: int, outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for first in (inputs, outputs):
                layers += [
                    nn.Conv3d(first, outputs, 3, padding=1),
                    nn.InstanceNorm3d(outputs),
                    nn.LeakyReLU(inplace=True),
                ]
            return nn.Sequential(*layers)

        self.down = nn.ModuleList(twice(a, b) for a, b in itertools.pairwise((4, *widths)))
        turned = widths[::-1]
        self.grow = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, 2) for a, b in itertools.pairwise(turned))
        self.up = nn.ModuleList(twice(2 * b, b) for b in turned[1:])
        self.head = nn.Conv3d(widths[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for index, layer in enumerate(self.down):
            x = layer(F.max_pool3d(x, 2) if index else x)
            kept.append(x)
        out: Tensor = self.head(brought_up(kept, self.grow, self.up))
        return out


@case("adamw", "amp_fp16", 2)
def tumours() -> Spec:
    return Spec(
        _Volumes(), made(numbers(4, 80, 80, 80), bits(3, 80, 80, 80)), lambda m, x, y: overlap(m(x), y)
    )


class _Pyramid(nn.Module):
    """A ResNet-50's stages, each brought to one width and added from above; classes at a quarter of the size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, *rest = stages("resnet50")
        self.rest = nn.ModuleList(rest)
        self.side = nn.ModuleList(nn.Conv2d(width, 128, 1) for width in (256, 512, 1024, 2048))
        self.smooth = nn.ModuleList(
            joined(nn.Conv2d(128, 64, 3, padding=1), nn.GroupNorm(16, 64), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Conv2d(64, 21, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        seen = []
        for stage, side in zip(self.rest, self.side, strict=True):
            y = stage(y)
            seen.append(side(y))
        for level in (2, 1, 0):
            seen[level] = seen[level] + F.interpolate(
                seen[level + 1], size=seen[level].shape[2:], mode="nearest"
            )
        size = seen[0].shape[2:]
        parts = [
            F.interpolate(smooth(level), size=size, mode="bilinear")
            for smooth, level in zip(self.smooth, seen, strict=True)
        ]
        return F.interpolate(self.head(sum(parts)), scale_factor=4, mode="bilinear")


@case("nesterov", "fp32", 6)
def objects_at_all_sizes() -> Spec:
    return Spec(_Pyramid(), masks(3, 288, 288, 21), classified)


class _Hourglass(nn.Module):
    """Down and up again, with a way across on every level."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.across, self.down, self.up = (
            Residual(*normed(width, width // 2, 1), *normed(width // 2, width // 2), *normed(width // 2, width, 1)) for _ in range(3)
        )  # fmt: skip
        self.inner = _Hourglass(depth - 1, width) if depth > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.inner(self.down(F.max_pool2d(x, 2))))
        out: Tensor = self.across(x) + F.interpolate(y, scale_factor=2)
        return out


class _TwoHourglasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = joined(normed(3, 64, 7, 2), normed(64, 128), nn.MaxPool2d(2))
        self.glasses = nn.ModuleList(_Hourglass(4, 128) for _ in range(2))
        self.heads = nn.ModuleList(nn.Conv2d(128, 16, 1) for _ in range(2))
        self.back = nn.Conv2d(16, 128, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        first = self.heads[0](y := self.glasses[0](x))
        return torch.stack([first, self.heads[1](self.glasses[1](x + y + self.back(first)))], 1)


@case("rmsprop", "fp32", 16)
def people_in_poses() -> Spec:
    return Spec(_TwoHourglasses(), to_numbers(3, 256, 256, outputs=(2, 16, 64, 64)), squared)


@case("sgdm", "amp_fp16", 16)
def tiny_grid_of_boxes() -> Spec:
    """Thirteen by thirteen cells, three boxes each, twenty classes."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 16, 32, 64, 128, 256)):
        layers += [*normed(inputs, outputs, act=nn.LeakyReLU), nn.MaxPool2d(2)]
    model = joined(
        layers, normed(256, 512, act=nn.LeakyReLU), normed(512, 1024, act=nn.LeakyReLU), normed(1024, 256, 1, act=nn.LeakyReLU),
        normed(256, 512, act=nn.LeakyReLU), nn.Conv2d(512, 75, 1), nn.Unflatten(1, (3, 25)),
    )  # fmt: skip

    def loss(model: nn.Module, x: Tensor, boxes: Tensor, there: Tensor, kind: Tensor) -> Tensor:
        told = model(x).float()
        places = told[:, :, :2].sigmoid() - boxes[:, :, :2]
        sizes = told[:, :, 2:4] - boxes[:, :, 2:]
        right = F.binary_cross_entropy_with_logits(told[:, :, 4], there, reduction="none")
        of_kind = F.binary_cross_entropy_with_logits(
            told[:, :, 5:], F.one_hot(kind, 20).permute(0, 1, 4, 2, 3).float(), reduction="none"
        )
        return (
            (there.unsqueeze(2) * (places**2 + sizes**2)).mean()
            + right.mean()
            + (there.unsqueeze(2) * of_kind).mean()
        )

    return Spec(
        model, made(numbers(3, 416, 416), shares(3, 4, 13, 13), bits(3, 13, 13), kinds(20, 3, 13, 13)), loss
    )


class _Centres(nn.Module):
    """A ResNet-18, three transposed convolutions, and heads for centres, sizes and shifts."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((512, 256), (256, 128), (128, 64)):
            layers += [
                nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        self.body = nn.Sequential(*stages("resnet18"), *layers)
        self.heads = nn.ModuleList(
            joined(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, outputs, 1))
            for outputs in (20, 2, 2)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.body(x)
        return [head(y) for head in self.heads]


@case("adam", "fp32", 8)
def objects_as_points() -> Spec:
    def loss(model: nn.Module, x: Tensor, heat: Tensor, size: Tensor, shift: Tensor, there: Tensor) -> Tensor:
        told, told_size, told_shift = model(x)
        told = told.sigmoid().clamp(1e-4, 1 - 1e-4)
        right = heat.eq(1).float()
        near = torch.log(told) * (1 - told) ** 2 * right
        far = torch.log(1 - told) * told**2 * (1 - heat) ** 4 * (1 - right)
        rest = (there * (told_size - size).abs()).mean() + (there * (told_shift - shift).abs()).mean()
        return -(near + far).sum() / 100 + 0.1 * rest

    quarter = (96, 96)
    return Spec(
        _Centres(),
        made(
            numbers(3, 384, 384),
            shares(20, *quarter),
            shares(2, *quarter),
            shares(2, *quarter),
            bits(1, *quarter),
        ),
        loss,
    )


class _Changed(nn.Module):
    """Two pictures of one place through the same way down; the way up sees how they differ."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            joined(normed(a, b), normed(b, b), nn.Dropout2d(0.2)) for a, b in itertools.pairwise((6, *widths))
        )
        turned = widths[::-1]
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 3, 2, 1, 1) for a, b in itertools.pairwise(turned))
        self.up = nn.ModuleList(joined(normed(2 * b, b), normed(b, b)) for b in turned[1:])
        self.head = nn.Conv2d(widths[0], 2, 1)

    def see(self, x: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        for layer in self.down:
            seen.append(layer(F.max_pool2d(seen[-1], 2) if seen else x))
        return seen

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        differs = [(a - b).abs() for a, b in zip(self.see(before), self.see(after), strict=True)]
        y = differs.pop()
        for grow, layer in zip(self.grow, self.up, strict=True):
            y = layer(torch.cat([grow(y), differs.pop()], 1))
        out: Tensor = self.head(y)
        return out


@case("adamw", "fp32", 10)
def what_was_built() -> Spec:
    weights = torch.tensor([0.2, 0.8])
    return Spec(
        _Changed(),
        made(numbers(6, 192, 192), numbers(6, 192, 192), kinds(2, 192, 192)),
        lambda m, a, b, y: F.cross_entropy(m(a, b), y, weight=weights.to(y.device)),
    )


class _Moving(nn.Module):
    """How places move between two pictures, told at several sizes (FlowNet)."""

    def __init__(self) -> None:
        super().__init__()

        def bent(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.LeakyReLU(0.1)]

        self.down = nn.ModuleList([
            joined(bent(6, 64, 7, 2)), joined(bent(64, 128, 5, 2)), joined(bent(128, 256, 5, 2), bent(256, 256, 3, 1)),
            joined(bent(256, 512, 3, 2), bent(512, 512, 3, 1)),
        ])  # fmt: skip
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in ((512, 256), (514, 128), (258, 64))
        )
        self.tell = nn.ModuleList(nn.Conv2d(width, 2, 3, padding=1) for width in (512, 514, 258, 130))

    def forward(self, x: Tensor) -> list[Tensor]:
        kept = passed(self.down, x)
        y = kept.pop()
        told = [self.tell[0](y)]
        for layer, tell in zip(self.up, list(self.tell)[1:], strict=True):
            y = torch.cat(
                [
                    kept.pop(),
                    F.leaky_relu(layer(y), 0.1),
                    F.interpolate(told[-1], scale_factor=2, mode="bilinear"),
                ],
                1,
            )
            told.append(tell(y))
        return told


@case("adam", "fp32", 8)
def chairs_that_move() -> Spec:
    def loss(model: nn.Module, x: Tensor, flow: Tensor) -> Tensor:
        parts = [
            torch.norm(told - F.adaptive_avg_pool2d(flow, told.shape[2:]), dim=1).mean() for told in model(x)
        ]
        return torch.stack(parts).sum()

    return Spec(_Moving(), made(numbers(6, 256, 384), numbers(2, 256, 384)), loss)


class _Edges(nn.Module):
    """VGG-16's stages, each asked for edges at the full size (HED)."""

    def __init__(self) -> None:
        super().__init__()
        features = zoo("vgg16").features
        self.stages = nn.ModuleList(features[a:b] for a, b in itertools.pairwise((0, 4, 9, 16, 23, 30)))
        self.side = nn.ModuleList(nn.Conv2d(width, 1, 1) for width in (64, 128, 256, 512, 512))
        self.fuse = nn.Conv2d(5, 1, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        size, told = x.shape[2:], []
        for stage, side in zip(self.stages, self.side, strict=True):
            x = stage(x)
            told.append(F.interpolate(side(x), size=size, mode="bilinear", align_corners=False))
        return [*told, self.fuse(torch.cat(told, 1))]


@case("sgd", "fp32", 4, accumulate=3)
def edges() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([F.binary_cross_entropy_with_logits(told, y) for told in model(x)]).sum()

    return Spec(_Edges(), made(numbers(3, 321, 321), bits(1, 321, 321)), loss)


@case("adam", "fp32", 12)
def plain_levels() -> Spec:
    """The U-Net of everybody's first tutorial: no padding, cropped on the way."""

    class Cropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()

            def twice(inputs: int, outputs: int) -> nn.Sequential:
                return nn.Sequential(
                    nn.Conv2d(inputs, outputs, 3), nn.ReLU(), nn.Conv2d(outputs, outputs, 3), nn.ReLU()
                )

            self.down = nn.ModuleList(twice(a, b) for a, b in itertools.pairwise((1, 32, 64, 128)))
            self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in ((128, 64), (64, 32)))
            self.up = nn.ModuleList(twice(2 * b, b) for b in (64, 32))
            self.head = nn.Conv2d(32, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            kept: list[Tensor] = []
            for layer in self.down:
                x = layer(F.max_pool2d(x, 2) if kept else x)
                kept.append(x)
            x = kept.pop()
            for grow, layer in zip(self.grow, self.up, strict=True):
                x, across = grow(x), kept.pop()
                edge = (across.size(2) - x.size(2)) // 2
                x = layer(torch.cat([across[:, :, edge : edge + x.size(2), edge : edge + x.size(3)], x], 1))
            out: Tensor = self.head(x)
            return out

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        return F.cross_entropy(told, y[:, : told.size(2), : told.size(3)])

    return Spec(Cropped(), made(numbers(1, 252, 252), kinds(2, 252, 252)), loss)
