"""An answer for every place: masks, volumes, boxes, points, distances. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import model_parts as parts
from bench.block_parts import Levels
from bench.case import CaseSet
from bench.layer_parts import basic, joined, normed, passed, stages
from bench.model_parts import Spec, bits, classified, kinds, made, masks, numbers, overlap, shares, squared

FIFTH_DENSE = CaseSet()
case = FIFTH_DENSE.case


def _rare(told: Tensor, wanted: Tensor) -> Tensor:
    """A loss that forgets what is easy (focal)."""
    wrong = F.binary_cross_entropy_with_logits(told, wanted, reduction="none")
    return ((1 - (-wrong).exp()).pow(2) * wrong).mean()


@case("adamw", "amp_bf16", 16, channels_last=True)
def solar_panels() -> Spec:
    """Roofs of 256: the way down is an EfficientNet."""
    body = parts.zoo("efficientnet_b0").features
    widths = (16, 24, 40, 112, 320)
    up = [joined(normed(a + b, b), normed(b, b)) for a, b in itertools.pairwise(widths[::-1])]
    model = Levels([body[:2], body[2], body[3], body[4:6], body[6:8]], up, nn.Conv2d(16, 1, 1))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        return F.binary_cross_entropy_with_logits(told, y) + overlap(told, y)

    return Spec(model, made(numbers(3, 256, 256), bits(1, 128, 128)), loss)


def _steady(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()]


@case("adamw", "fp32", 6)
def wounds() -> Spec:
    """Four levels with group norms, pictures of 320."""
    widths = (24, 48, 96, 192, 384)
    down = [
        joined([nn.AvgPool2d(2)] if a > 3 else [], _steady(a, b), _steady(b, b))
        for a, b in itertools.pairwise((3, *widths))
    ]
    up = [joined(_steady(a + b, b), _steady(b, b)) for a, b in itertools.pairwise(widths[::-1])]
    return Spec(Levels(down, up, nn.Conv2d(24, 4, 1)), masks(3, 320, 320, 4), classified)


@case("adam", "fp32", 10, evaluate=True)
def cracks_in_walls() -> Spec:
    """Grey walls of 400; halved by strides, sums in place of joins."""
    widths = (32, 64, 128, 256)
    down = [
        joined(normed(a, b, 3, 2 if a > 1 else 1), normed(b, b)) for a, b in itertools.pairwise((1, *widths))
    ]
    down[-1] = joined(down[-1], nn.Conv2d(256, 128, 3, padding=4, dilation=4), nn.ReLU())
    up = [joined(normed(b, b), normed(b, max(b // 2, 32), 1)) for b in (128, 64, 32)]
    model = Levels(down, up, nn.Conv2d(32, 1, 1), added=True)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        return _rare(told, y) + overlap(told, y)

    return Spec(model, made(numbers(1, 400, 400), bits(1, 400, 400)), loss)


@case("sgdm", "amp_fp16", 2, clip=True)
def livers() -> Spec:
    """A U-Net in three dimensions with instance norms, four kinds of tissue."""

    def solid(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        look = nn.Conv3d(inputs, outputs, 3, stride, 1)
        return [look, nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01)]

    widths = (24, 48, 96, 192)
    down = [joined(solid(a, b, 2 if a > 1 else 1), solid(b, b)) for a, b in itertools.pairwise((1, *widths))]
    up = [joined(solid(a + b, b), solid(b, b)) for a, b in itertools.pairwise(widths[::-1])]
    return Spec(
        Levels(down, up, nn.Conv3d(24, 4, 1)),
        made(numbers(1, 56, 104, 104), kinds(4, 56, 104, 104)),
        classified,
    )


class _Shared(nn.Module):
    """A pyramid over a ResNet-34; the same heads look at every level (RetinaNet)."""

    def __init__(self, classes: int, width: int = 128, shapes: int = 9) -> None:
        super().__init__()
        self.body = stages("resnet34")
        self.side = nn.ModuleList(nn.Conv2d(inputs, width, 1) for inputs in (128, 256, 512))

        def head(outputs: int) -> nn.Sequential:
            layers = [part for _ in range(3) for part in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
            return joined(
                layers, nn.Conv2d(width, shapes * outputs, 3, padding=1), nn.Unflatten(1, (shapes, outputs))
            )

        self.kind, self.box = head(classes), head(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _, _, fine, middle, coarse = passed(self.body, x)
        levels = [self.side[2](coarse)]
        for side, level in ((self.side[1], middle), (self.side[0], fine)):
            levels.append(side(level) + F.interpolate(levels[-1], size=level.shape[2:]))
        kind, box = (
            torch.cat([head(level).flatten(3).transpose(2, 3).flatten(1, 2) for level in levels], 1)
            for head in (self.kind, self.box)
        )
        return kind, box


@case("sgdm", "amp_fp16", 6, clip=True)
def tools_on_a_bench() -> Spec:
    boxes = 9 * (60**2 + 30**2 + 15**2)

    def loss(model: nn.Module, x: Tensor, kind: Tensor, box: Tensor) -> Tensor:
        told, place = model(x)
        return _rare(told.float(), kind) * 100 + F.smooth_l1_loss(place.float(), box)

    return Spec(_Shared(12), made(numbers(3, 480, 480), bits(boxes, 12), numbers(boxes, 4)), loss)


@case("adam", "fp32", 16)
def one_coarse_grid() -> Spec:
    """Ten by ten cells over pictures of 320; each tells one box, whether it is there, and its kind."""
    model = joined(*stages("resnet18"), normed(512, 256, act=nn.LeakyReLU), nn.Conv2d(256, 5 + 15, 1))

    def loss(model: nn.Module, x: Tensor, there: Tensor, box: Tensor, kind: Tensor) -> Tensor:
        told = model(x)
        near = (F.mse_loss(told[:, 1:5].sigmoid(), box, reduction="none").sum(1) * there).sum()
        right = (F.cross_entropy(told[:, 5:], kind, reduction="none") * there).sum()
        return F.binary_cross_entropy_with_logits(told[:, 0], there) + (5 * near + right) / len(x)

    return Spec(model, made(numbers(3, 320, 320), bits(10, 10), shares(4, 10, 10), kinds(15, 10, 10)), loss)


class _TwoSizes(nn.Module):
    """A large and a small picture go on side by side and tell each other what they see (HRNet)."""

    def __init__(self, points: int, width: int = 32) -> None:
        super().__init__()
        self.enter = joined(normed(3, 64, 3, 2), normed(64, width, 3, 2), basic(width, width))
        self.smaller = joined(normed(width, 2 * width, 3, 2))
        self.large = nn.ModuleList(joined(basic(width, width), basic(width, width)) for _ in range(4))
        self.small = nn.ModuleList(
            joined(basic(2 * width, 2 * width), basic(2 * width, 2 * width)) for _ in range(4)
        )
        self.down = nn.ModuleList(joined(normed(width, 2 * width, 3, 2)[:-1]) for _ in range(4))
        self.up = nn.ModuleList(joined(normed(2 * width, width, 1)[:-1]) for _ in range(4))
        self.head = nn.Conv2d(width, points, 1)

    def forward(self, x: Tensor) -> Tensor:
        large = self.enter(x)
        small = self.smaller(large)
        for on_large, on_small, down, up in zip(self.large, self.small, self.down, self.up, strict=True):
            a, b = on_large(large), on_small(small)
            large, small = F.relu(a + F.interpolate(up(b), size=a.shape[2:])), F.relu(b + down(a))
        out: Tensor = self.head(large)
        return out


@case("adam", "fp32", 24)
def bodies_at_two_sizes() -> Spec:
    return Spec(_TwoSizes(17), parts.to_numbers(3, 256, 192, outputs=(17, 64, 48)), squared)


class _Shifted(nn.Module):
    """How far things are: a left picture compared with the right one, shifted further and further."""

    def __init__(self, shifts: int = 24) -> None:
        super().__init__()
        self.shifts = shifts
        self.see = joined(normed(3, 32, 3, 2), basic(32, 32), basic(32, 48, 2))
        self.judge = joined(normed(shifts + 48, 96), basic(96, 96), basic(96, 96), nn.Conv2d(96, shifts, 1))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.see(left), self.see(right)
        alike = [(a * F.pad(b, (shift, 0))[..., : b.size(3)]).mean(1) for shift in range(self.shifts)]
        weight = self.judge(torch.cat([torch.stack(alike, 1), a], 1)).softmax(1)
        far = (weight * torch.arange(self.shifts, device=a.device).view(1, -1, 1, 1)).sum(1, keepdim=True)
        return F.interpolate(far, size=left.shape[2:], mode="bilinear").squeeze(1)


@case("adam", "fp32", 6)
def two_eyes() -> Spec:
    picture = numbers(3, 256, 448)
    return Spec(
        _Shifted(),
        made(picture, picture, shares(256, 448)),
        lambda m, a, b, y: F.smooth_l1_loss(m(a, b), y),
    )
