"""Convolutional networks that people write for their own pictures. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, basic, joined, normed, pooled
from bench.model_parts import Spec, bits, classified, kinds, labelled, made, numbers, squared, to_numbers

THIRD_CLASSIFIERS = CaseSet()
case = THIRD_CLASSIFIERS.case


@case("adam", "fp32", 128, evaluate=True)
def sign_language() -> Spec:
    """Hands of 28, three convolutions with norms."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 75, 50, 25)):
        layers += [*normed(inputs, outputs), nn.MaxPool2d(2, 2, 1 if outputs < 75 else 0), nn.Dropout(0.2)]
    model = joined(layers, nn.Flatten(), nn.LazyLinear(512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 24))
    model(torch.zeros(2, 1, 28, 28))
    return Spec(model, labelled(1, 28, 28, classes=24), classified)


@case("adam", "fp32", 64, evaluate=True)
def emotions() -> Spec:
    """Grey faces of 48; four wide blocks."""
    layers: list[nn.Module] = []
    for inputs, outputs, kernel in ((1, 64, 3), (64, 128, 5), (128, 512, 3), (512, 512, 3)):
        layers += [*normed(inputs, outputs, kernel), nn.MaxPool2d(2), nn.Dropout(0.25)]
    head = [nn.Linear(512 * 9, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.25), nn.Linear(256, 7)]
    return Spec(joined(layers, nn.Flatten(), *head), labelled(1, 48, 48, classes=7), classified)


@case("adam", "fp32", 16)
def mountains_and_streets() -> Spec:
    """Pictures of 150 and far more channels at the beginning than at the end."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise((3, 200, 180, 180, 140, 100, 50))):
        layers += [nn.Conv2d(inputs, outputs, 3), nn.ReLU()] + ([nn.MaxPool2d(5)] if index in (1, 5) else [])
    head = [nn.Linear(50 * 16, 180), nn.ReLU(), nn.Linear(180, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Dropout(0.5)]  # fmt: skip
    return Spec(
        joined(layers, nn.Flatten(), *head, nn.Linear(50, 6)), labelled(3, 150, 150, classes=6), classified
    )


@case("rmsprop", "fp32", 32)
def chest_pictures() -> Spec:
    """Two plain convolutions, then depthwise ones with norms and pools."""
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]  # fmt: skip
    for inputs, outputs in itertools.pairwise((16, 32, 64, 128, 256)):
        for first in (inputs, outputs):
            layers += [nn.Conv2d(first, first, 3, padding=1, groups=first), nn.Conv2d(first, outputs, 1), nn.ReLU()]  # fmt: skip
        layers += [nn.BatchNorm2d(outputs), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(256 * 25, 512), nn.ReLU(), nn.Dropout(0.7), nn.Linear(512, 1)]
    return Spec(
        joined(layers, *head),
        made(numbers(1, 180, 180), bits(1)),
        lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y),
    )


@case("adadelta", "fp32", 50)
def fruit() -> Spec:
    """Kernels of five over pictures of 100."""
    model = joined(
        pooled((3, 16, 32, 64, 128), 5), nn.Flatten(), nn.Linear(128 * 36, 1024), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(1024, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 131),
    )  # fmt: skip
    return Spec(model, labelled(3, 100, 100, classes=131), classified)


@case("adam", "fp32", 64)
def blood() -> Spec:
    """Pictures of 125: sizes that halve unevenly; a sigmoid and a binary loss."""
    model = joined(
        pooled((3, 32, 64, 128), drop=0.2), nn.Flatten(), nn.Linear(128 * 15 * 15, 512), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(512, 1), nn.Sigmoid(),
    )  # fmt: skip
    return Spec(model, made(numbers(3, 125, 125), bits(1)), lambda m, x, y: F.binary_cross_entropy(m(x), y))


@case("adam", "fp32", 16, clip=True)
def sick_plants() -> Spec:
    """A residual network of nine layers over pictures of 256, pooled by four."""

    def twice(width: int) -> nn.Module:
        return Residual(*normed(width, width), *normed(width, width))

    model = joined(
        normed(3, 64), normed(64, 128), nn.MaxPool2d(4), twice(128), normed(128, 256), nn.MaxPool2d(4), normed(256, 512),
        nn.MaxPool2d(4), twice(512), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(512, 38),
    )  # fmt: skip
    return Spec(model, labelled(3, 256, 256, classes=38), classified)


@case("nesterov", "fp32", 64)
def homework() -> Spec:
    """Three layers, as a course asks for them."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16384, 10)
    )  # fmt: skip
    return Spec(model, labelled(3, 32, 32, classes=10), classified)


@case("sgdm", "fp32", 128)
def networks_within() -> Spec:
    """Kernels of one after each kernel of five or three; no linear layer at all."""
    layers: list[nn.Module] = []
    for inputs, kernel, widths in (
        (3, 5, (192, 160, 96)),
        (96, 5, (192, 192, 192)),
        (192, 3, (192, 192, 100)),
    ):
        for place, outputs in enumerate(widths):
            size = kernel if place == 0 else 1
            layers += [nn.Conv2d(inputs, outputs, size, padding=size // 2), nn.ReLU(inplace=True)]
            inputs = outputs
        layers += [nn.MaxPool2d(3, 2, 1), nn.Dropout(0.5)]
    model = joined(layers[:-2], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Spec(model, labelled(3, 32, 32, classes=100), classified)


@case("sgd", "amp_bf16", 256)
def only_convolutions() -> Spec:
    """Strides in place of pools."""
    layers: list[nn.Module] = [nn.Dropout(0.2)]
    for inputs, outputs, stride in (
        (3, 96, 1),
        (96, 96, 1),
        (96, 96, 2),
        (96, 192, 1),
        (192, 192, 1),
        (192, 192, 2),
    ):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]
    layers += [
        nn.Dropout(0.5),
        nn.Conv2d(192, 192, 3),
        nn.ReLU(),
        nn.Conv2d(192, 192, 1),
        nn.ReLU(),
        nn.Conv2d(192, 10, 1),
    ]
    model = joined(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Spec(model, labelled(3, 32, 32, classes=10), classified)


class _Padded(nn.Module):
    """A shortcut without weights: every second place, and channels of zeros."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more // 2, self.more // 2))


@case("nesterov", "fp32", 128)
def fifty_six_layers() -> Spec:
    blocks: list[nn.Module] = normed(3, 16)
    for inputs, outputs in ((16, 16), (16, 32), (32, 64)):
        if inputs != outputs:
            layers = normed(inputs, outputs, 3, 2) + normed(outputs, outputs)[:-1]
            blocks.append(Residual(*layers, short=_Padded(outputs - inputs), act=nn.ReLU()))
        blocks += [basic(outputs, outputs) for _ in range(9 if inputs == outputs else 8)]
    model = joined(blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return Spec(model, labelled(3, 32, 32, classes=10), classified)


@case("sgdm", "amp_fp16", 64)
def in_eight_groups() -> Spec:
    """Bottlenecks whose middle convolution is cut in groups."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        inner = outputs // 2
        layers = (
            normed(inputs, inner, 1)
            + normed(inner, inner, 3, stride, groups=8)
            + normed(inner, outputs, 1)[:-1]
        )
        short = nn.Sequential(*normed(inputs, outputs, 1, stride)[:-1]) if inputs != outputs else None
        return Residual(*layers, short=short, act=nn.ReLU())

    blocks: list[nn.Module] = normed(3, 64)
    for inputs, outputs, stride in ((64, 256, 1), (256, 512, 2), (512, 1024, 2)):
        blocks += [block(inputs, outputs, stride), block(outputs, outputs, 1), block(outputs, outputs, 1)]
    model = joined(blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 100))
    return Spec(model, labelled(3, 32, 32, classes=100), classified)


class _Weighed(nn.Module):
    """Channels weighed by what they hold on the whole."""

    def __init__(self, width: int, act: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1), act()
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.weigh(x)
        return out


@case("adamw", "fp32", 64, ema=True)
def weighed_channels() -> Spec:
    """Residual blocks with weighed channels over pictures of 96."""
    blocks: list[nn.Module] = normed(3, 32)
    for inputs, outputs in ((32, 64), (64, 128), (128, 256)):
        layers = [*normed(inputs, outputs, 3, 2), *normed(outputs, outputs)[:-1], _Weighed(outputs)]
        short = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1))
        blocks += [Residual(*layers, short=short, act=nn.ReLU()), basic(outputs, outputs)]
    model = joined(blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, 10))
    return Spec(model, labelled(3, 96, 96, classes=10), classified)


@case("adam", "amp_fp16", 96, channels_last=True)
def for_small_devices() -> Spec:
    """Wide in the middle, hard swishes, pictures of 160."""

    def block(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
        inner = 4 * inputs
        layers = [
            *normed(inputs, inner, 1, act=nn.Hardswish), *normed(inner, inner, kernel, stride, groups=inner, act=nn.Hardswish),
            _Weighed(inner, nn.Hardsigmoid), *normed(inner, outputs, 1)[:-1],
        ]  # fmt: skip
        return Residual(*layers) if inputs == outputs and stride == 1 else nn.Sequential(*layers)

    model = joined(
        normed(3, 16, 3, 2, act=nn.Hardswish), block(16, 24, 3, 2), block(24, 24, 3, 1), block(24, 40, 5, 2), block(40, 40, 5, 1),
        block(40, 80, 3, 2), block(80, 80, 3, 1), normed(80, 480, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(480, 23),
    )  # fmt: skip
    return Spec(model, labelled(3, 160, 160, classes=23), classified)


@case("sgd", "fp32", 128)
def grey_and_large() -> Spec:
    """The book's AlexNet: clothes blown up to 224."""
    model = nn.Sequential(
        nn.Conv2d(1, 96, 11, 4, 1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Linear(6400, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 10),
    )  # fmt: skip
    return Spec(model, labelled(1, 224, 224, classes=10), classified)


class _FourWays(nn.Module):
    def __init__(
        self, inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], last: int
    ) -> None:
        super().__init__()

        def bent(*sizes: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(*sizes, padding=sizes[2] // 2), nn.ReLU())

        self.one = bent(inputs, one, 1)
        self.three = nn.Sequential(bent(inputs, three[0], 1), bent(*three, 3))
        self.five = nn.Sequential(bent(inputs, five[0], 1), bent(*five, 5))
        self.last = nn.Sequential(nn.MaxPool2d(3, 1, 1), bent(inputs, last, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.one(x), self.three(x), self.five(x), self.last(x)), dim=1)


@case("sgd", "fp32", 128, evaluate=True)
def four_ways() -> Spec:
    """The book's GoogLeNet at 96."""
    model = nn.Sequential(
        nn.Conv2d(1, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(64, 64, 1), nn.ReLU(),
        nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        _FourWays(192, 64, (96, 128), (16, 32), 32), _FourWays(256, 128, (128, 192), (32, 96), 64), nn.MaxPool2d(3, 2, 1),
        _FourWays(480, 192, (96, 208), (16, 48), 64), _FourWays(512, 160, (112, 224), (24, 64), 64),
        _FourWays(512, 112, (144, 288), (32, 64), 64), _FourWays(528, 256, (160, 320), (32, 128), 128), nn.MaxPool2d(3, 2, 1),
        _FourWays(832, 384, (192, 384), (48, 128), 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip
    return Spec(model, labelled(1, 96, 96, classes=10), classified)


class _Thicker(nn.Module):
    """What came in stays, and more is laid beside it."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.layers(x)), 1)


@case("sgd", "fp32", 64)
def thicker_and_thicker() -> Spec:
    """The book's DenseNet."""
    layers: list[nn.Module] = [*normed(1, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for level in range(4):
        layers += [_Thicker(width + 32 * index, 32) for index in range(4)]
        width += 128
        if level < 3:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    model = joined(
        layers, nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )
    return Spec(model, labelled(1, 96, 96, classes=10), classified)


@case("rmsprop", "amp_fp16", 1024)
def quick_drawings() -> Spec:
    model = joined(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 700), nn.ReLU(), nn.Dropout(0.2), nn.Linear(700, 400), nn.ReLU(), nn.Linear(400, 345),
    )  # fmt: skip
    return Spec(model, labelled(1, 28, 28, classes=345), classified)


@case("adam", "fp32", 64)
def four_letters() -> Spec:
    """Pictures of 60 by 160 with four letters, a loss for each."""
    model = joined(
        pooled((3, 32, 64, 64), drop=0.5), nn.Flatten(), nn.Linear(64 * 7 * 20, 1024), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(1024, 4 * 36), nn.Unflatten(1, (36, 4)),
    )  # fmt: skip
    return Spec(model, made(numbers(3, 60, 160), kinds(36, 4)), classified)


@case("adamw", "fp32", 32)
def where_is_it() -> Spec:
    """One box in a picture of 200, and what is in it."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = joined(
                normed(3, 24, 5, 2),
                normed(24, 48),
                normed(48, 96, 3, 2),
                normed(96, 96),
                normed(96, 192, 3, 2),
            )
            self.box, self.kind = (
                nn.Sequential(nn.Linear(192 * 25, 128), nn.ReLU(), nn.Linear(128, 4), nn.Sigmoid()),
                nn.Linear(192 * 25, 12),
            )

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = F.adaptive_avg_pool2d(self.body(x), 5).flatten(1)
            return self.box(y), self.kind(y)

    def loss(model: nn.Module, x: Tensor, box: Tensor, kind: Tensor) -> Tensor:
        told, kinds_told = model(x)
        return F.smooth_l1_loss(told, box) + F.cross_entropy(kinds_told, kind)

    return Spec(Both(), made(numbers(3, 200, 200), lambda n: torch.rand(n, 4), kinds(12)), loss)


class _Identity(nn.Module):
    """Faces as vectors on a ball, told apart by angles with a margin."""

    def __init__(self, people: int = 8000) -> None:
        super().__init__()
        blocks: list[nn.Module] = normed(3, 64, act=nn.PReLU)
        for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
            layers = [
                nn.BatchNorm2d(inputs),
                *normed(inputs, outputs, act=nn.PReLU),
                *normed(outputs, outputs, 3, 2)[:-1],
            ]
            blocks.append(Residual(*layers, short=nn.Sequential(*normed(inputs, outputs, 1, 2)[:-1])))
        self.body = joined(
            blocks,
            nn.BatchNorm2d(512),
            nn.Dropout(0.4),
            nn.Flatten(),
            nn.Linear(512 * 49, 512),
            nn.BatchNorm1d(512),
        )
        self.people = nn.Parameter(torch.randn(people, 512) * 0.01)

    def forward(self, x: Tensor, who: Tensor) -> Tensor:
        near = F.linear(F.normalize(self.body(x)), F.normalize(self.people)).float()
        angle = torch.acos(near.clamp(-1 + 1e-7, 1 - 1e-7))
        right = F.one_hot(who, near.size(1)).float()
        return F.cross_entropy(64 * (right * torch.cos(angle + 0.5) + (1 - right) * near), who)


@case("sgdm", "amp_fp16", 64)
def faces_by_angle() -> Spec:
    return Spec(_Identity(), made(numbers(3, 112, 112), kinds(8000)), lambda m, x, who: m(x, who))


@case("nesterov", "amp_bf16", 128)
def mixed_pictures() -> Spec:
    """Two hundred classes at 64; every picture is mixed with another."""
    blocks: list[nn.Module] = normed(3, 64)
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        blocks += [basic(inputs, outputs, stride)]
    model = joined(blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 200))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        other = torch.randperm(len(x), device=x.device)
        told = model(0.7 * x + 0.3 * x[other])
        return 0.7 * F.cross_entropy(told, y, label_smoothing=0.1) + 0.3 * F.cross_entropy(
            told, y[other], label_smoothing=0.1
        )

    return Spec(model, labelled(3, 64, 64, classes=200), loss)


@case("adam", "tf32", 100)
def prices_of_houses() -> Spec:
    """Four rooms in one picture of 64 and one number, by odd channels."""
    model = joined(
        normed(3, 10, 5), nn.MaxPool2d(2), normed(10, 30), nn.MaxPool2d(2), normed(30, 70), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(70 * 64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 1),
    )  # fmt: skip
    return Spec(model, to_numbers(3, 64, 64, outputs=(1,)), squared)
