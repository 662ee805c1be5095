"""Convolutional networks that people write for their own pictures. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, basic, joined, normed, pooled
from bench.model_parts import Spec, bits, classified, kinds, labelled, made, numbers, squared, to_numbers

FOURTH_CLASSIFIERS = CaseSet()
case = FOURTH_CLASSIFIERS.case


@case("adam", "fp32", 200, evaluate=True)
def sketched_letters() -> Spec:
    """Letters of 28 through three wide convolutions, flattened early."""
    model = joined(
        normed(1, 64, 5), nn.MaxPool2d(2), normed(64, 96), nn.MaxPool2d(2), normed(96, 144), nn.Flatten(), nn.Linear(144 * 49, 300),
        nn.ReLU(), nn.Dropout(0.4), nn.Linear(300, 26),
    )  # fmt: skip
    return Spec(model, labelled(1, 28, 28, classes=26), classified)


@case("sgd_fused", "amp_bf16", 256)
def pairs_and_pools() -> Spec:
    """VGG's way over pictures of 32: pairs with norms, one line at the end."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 64, 128, 256, 512, 512)):
        layers += [*normed(inputs, outputs), *normed(outputs, outputs), nn.MaxPool2d(2)]
    return Spec(joined(layers, nn.Flatten(), nn.Linear(512, 20)), labelled(3, 32, 32, classes=20), classified)


@case("adamax", "fp32", 32, evaluate=True)
def weather() -> Spec:
    """Five plain convolutions with leaky rectifiers, pictures of 250."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 24, 48, 72, 96, 120)):
        layers += [nn.Conv2d(inputs, outputs, 3), nn.LeakyReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(120 * 25, 128), nn.LeakyReLU(), nn.Dropout(0.5), nn.Linear(128, 11)]
    return Spec(joined(layers, *head), labelled(3, 250, 250, classes=11), classified)


@case("adam_fused", "fp32", 16)
def slices_of_brains() -> Spec:
    """Grey slices of 240: a kernel of seven, then pairs, pooled to one place."""
    layers: list[nn.Module] = [*normed(1, 32, 7), nn.MaxPool2d(2)]
    for inputs, outputs in itertools.pairwise((32, 64, 128, 256)):
        layers += [*normed(inputs, outputs), *normed(outputs, outputs), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(256, 4)]
    return Spec(joined(layers, *head), labelled(1, 240, 240, classes=4), classified)


@case("adadelta", "fp32", 128)
def number_plates() -> Spec:
    """Seven signs on a plate of 48 by 144, a head for each."""

    class Plates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see = joined(
                pooled((3, 48, 64, 128), 5, drop=0.2), nn.Flatten(), nn.Linear(128 * 6 * 18, 1024), nn.ReLU()
            )
            self.signs = nn.ModuleList(nn.Linear(1024, 37) for _ in range(7))

        def forward(self, x: Tensor) -> Tensor:
            y = self.see(x)
            return torch.stack([sign(y) for sign in self.signs], 2)

    return Spec(Plates(), made(numbers(3, 48, 144), kinds(37, 7)), classified)


def _bent_first(inputs: int, outputs: int, stride: int = 1) -> Residual:
    """A residual block whose norms and rectifiers come before its convolutions."""
    layers: list[nn.Module] = []
    for first, step in ((inputs, stride), (outputs, 1)):
        layers += [nn.BatchNorm2d(first), nn.ReLU(), nn.Conv2d(first, outputs, 3, step, 1, bias=False)]
    short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
    return Residual(*layers, short=short)


@case("nesterov", "amp_fp16", 128)
def norms_come_first() -> Spec:
    """ResNet-18 in its second form, over pictures of 32."""
    blocks: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False)]
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        blocks += [_bent_first(inputs, outputs, stride), _bent_first(outputs, outputs)]
    head = [nn.BatchNorm2d(512), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)]
    return Spec(joined(blocks, *head), labelled(3, 32, 32, classes=100), classified)


@case("nesterov", "fp32", 125)
def forty_and_twice() -> Spec:
    """A wide residual network, forty layers deep and twice as wide, with dropout in its blocks."""

    def block(inputs: int, outputs: int, stride: int) -> Residual:
        made_here = _bent_first(inputs, outputs, stride)
        made_here.layers.insert(3, nn.Dropout(0.3))
        return made_here

    blocks: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    for inputs, outputs, stride in ((16, 32, 1), (32, 64, 2), (64, 128, 2)):
        blocks += [block(inputs, outputs, stride), *(block(outputs, outputs, 1) for _ in range(5))]
    head = [nn.BatchNorm2d(128), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(128, 10)]
    return Spec(joined(blocks, *head), labelled(3, 32, 32, classes=10), classified)


class _Dropped(nn.Module):
    """Whole examples of a branch are left out at random."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.empty(len(x), 1, 1, 1, device=x.device, dtype=x.dtype).bernoulli_(1 - self.share)
        return x * kept / (1 - self.share)


class _Mixing(nn.Module):
    """A depthwise kernel of seven, then two lines for each place, as ConvNeXt has them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.size, self.drop = nn.Parameter(torch.full((width,), 1e-6)), _Dropped(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.think(self.norm(self.deep(x).permute(0, 2, 3, 1))) * self.size
        out: Tensor = x + self.drop(y.permute(0, 3, 1, 2))
        return out


@case("adamw", "amp_bf16", 96, ema=True)
def modern_and_small() -> Spec:
    """A narrow ConvNeXt over pictures of 128."""
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 4, 4)]
    for level, (width, depth) in enumerate(((48, 2), (96, 2), (192, 4), (384, 2))):
        if level:
            layers += [nn.GroupNorm(1, width // 2), nn.Conv2d(width // 2, width, 2, 2)]
        layers += [_Mixing(width) for _ in range(depth)]
    model = joined(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(384), nn.Linear(384, 50))
    return Spec(model, labelled(3, 128, 128, classes=50), classified)


@case("sgdm", "fp32", 64, keep_grads=True)
def first_of_the_phones() -> Spec:
    """MobileNet's first form at three quarters of its width, by hand."""
    layers = normed(3, 24, 3, 2, act=nn.ReLU6)
    for inputs, outputs, stride in ((24, 48, 1), (48, 96, 2), (96, 96, 1), (96, 192, 2), (192, 192, 1), (192, 384, 2), (384, 384, 1), (384, 768, 2)):  # fmt: skip
        layers += normed(inputs, inputs, 3, stride, groups=inputs, act=nn.ReLU6) + normed(
            inputs, outputs, 1, act=nn.ReLU6
        )
    model = joined(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(768, 37))
    return Spec(model, labelled(3, 192, 192, classes=37), classified)


class _Attended(nn.Module):
    """Channels, then places, weighed by their means and their largest values (CBAM)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.channels = nn.Sequential(nn.Linear(width, width // 8), nn.ReLU(), nn.Linear(width // 8, width))
        self.places = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.channels(x.mean((2, 3))) + self.channels(x.amax((2, 3)))
        x = x * weight.sigmoid()[:, :, None, None]
        where = self.places(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1))
        return x * where.sigmoid()


@case("adam", "fp32", 40, clip=True)
def wool_and_silk() -> Spec:
    """Cloth at 160, channels and places weighed in every block, one number each for eight qualities."""
    blocks: list[nn.Module] = [*normed(3, 32, 5, 2)]
    for inputs, outputs in itertools.pairwise((32, 64, 128, 256)):
        layers = [*normed(inputs, outputs, 3, 2), *normed(outputs, outputs)[:-1], _Attended(outputs)]
        blocks.append(Residual(*layers, short=nn.Conv2d(inputs, outputs, 1, 2), act=nn.ReLU()))
    model = joined(blocks, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(256, 8))
    return Spec(
        model,
        made(numbers(3, 160, 160), bits(8)),
        lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y),
    )


class _Split(nn.Module):
    """One half goes on as it is, the other through residual blocks (a stage of CSPDarknet)."""

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__()
        half = outputs // 2
        self.smaller = joined(normed(inputs, outputs, 3, 2, act=nn.Mish))
        self.past, self.enter = (joined(normed(outputs, half, 1, act=nn.Mish)) for _ in range(2))
        self.blocks = nn.Sequential(*(Residual(*normed(half, half, 1, act=nn.Mish), *normed(half, half, act=nn.Mish)) for _ in range(depth)))  # fmt: skip
        self.leave = joined(normed(outputs, outputs, 1, act=nn.Mish))

    def forward(self, x: Tensor) -> Tensor:
        x = self.smaller(x)
        out: Tensor = self.leave(torch.cat([self.blocks(self.enter(x)), self.past(x)], 1))
        return out


@case("sgdm", "amp_fp16", 24, channels_last=True)
def half_goes_past() -> Spec:
    stages = [
        _Split(inputs, outputs, depth)
        for inputs, outputs, depth in ((32, 64, 1), (64, 128, 2), (128, 256, 4), (256, 512, 2))
    ]
    model = joined(
        normed(3, 32, act=nn.Mish), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 80)
    )
    return Spec(model, labelled(3, 256, 256, classes=80), classified)


@case("adamw", "tf32", 64)
def faces_and_years() -> Spec:
    """An age and a sex from one face of 120, two losses."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see = joined(
                normed(3, 40), nn.MaxPool2d(2), basic(40, 80, 2), basic(80, 160, 2), basic(160, 320, 2)
            )
            self.years, self.sex = nn.Linear(320, 1), nn.Linear(320, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.see(x).mean((2, 3))
            return self.years(y).squeeze(1), self.sex(y)

    def loss(model: nn.Module, x: Tensor, years: Tensor, sex: Tensor) -> Tensor:
        told, kind = model(x)
        return F.smooth_l1_loss(told, years) + F.cross_entropy(kind, sex)

    return Spec(Two(), made(numbers(3, 120, 120), numbers(), kinds(2)), loss)


@case("adam_amsgrad", "fp32", 20, accumulate=2)
def two_views_of_a_chest() -> Spec:
    """A view from the front and one from the side through the same layers, joined at the end."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see = joined(
                normed(1, 24, 7, 2), nn.MaxPool2d(2), basic(24, 48, 2), basic(48, 96, 2), basic(96, 192, 2)
            )
            self.head = nn.Sequential(nn.Linear(384, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 14))

        def forward(self, front: Tensor, side: Tensor) -> Tensor:
            out: Tensor = self.head(torch.cat([self.see(front).mean((2, 3)), self.see(side).amax((2, 3))], 1))
            return out

    return Spec(
        Views(),
        made(numbers(1, 320, 320), numbers(1, 320, 320), bits(14)),
        lambda m, a, b, y: F.binary_cross_entropy_with_logits(m(a, b), y),
    )


@case("rmsprop", "fp32", 80)
def depth_of_snow() -> Spec:
    """One number from pictures of 144 by 96, plain layers, average pools and tanh."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 18, 36, 54)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)]
    model = joined(layers, nn.Flatten(), nn.Linear(54 * 18 * 12, 90), nn.Tanh(), nn.Linear(90, 1))
    return Spec(model, to_numbers(3, 144, 96, outputs=(1,)), squared)
