"""Networks of convolutions that tell what is in pictures, small and large. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.block_parts import Beside, bottleneck, told, yes_or_no
from bench.case import CaseSet
from bench.layer_parts import Residual, basic, joined, normed, pooled
from bench.model_parts import Spec, bits, classified, labelled, made, numbers, perceptron, squared, to_numbers

FIFTH_CLASSIFIERS = CaseSet()
case = FIFTH_CLASSIFIERS.case


@case("adam", "fp32", 500, evaluate=True)
def stamps() -> Spec:
    """Pictures of 40 in large batches, four plain convolutions."""
    model = joined(pooled((3, 32, 64, 96), drop=0.1), nn.Flatten(), perceptron(96 * 25, 256, 60))
    return Spec(model, labelled(3, 40, 40, classes=60), classified)


@case("adam", "fp32", 30, evaluate=True)
def mushrooms() -> Spec:
    """Five convolutions and five pools over pictures of 220, a wide line after them."""
    model = joined(
        pooled((3, 32, 64, 128, 128, 128)), nn.Flatten(), nn.Dropout(0.5), perceptron(128 * 36, 512, 9)
    )
    return Spec(model, labelled(3, 220, 220, classes=9), classified)


@case("sgdm", "amp_fp16", 16, channels_last=True)
def postcards() -> Spec:
    """Residual blocks over whole pictures of 512 by 384."""
    layers = [*normed(3, 48, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for inputs, outputs in itertools.pairwise((48, 48, 96, 192, 384)):
        layers += [basic(inputs, outputs, 1 if inputs == outputs else 2), basic(outputs, outputs)]
    return Spec(joined(layers, told(384, 26)), labelled(3, 384, 512, classes=26), classified)


@case("adamw", "tf32", 18)
def knots_in_wood() -> Spec:
    """Grey boards of 400, three sizes of kernel, no pool but the last."""
    layers: list[nn.Module] = []
    for (inputs, outputs), kernel in zip(
        itertools.pairwise((1, 28, 56, 112, 224)), (9, 7, 5, 3), strict=True
    ):
        layers += [*normed(inputs, outputs, kernel, 2, act=nn.SiLU), *normed(outputs, outputs, act=nn.SiLU)]
    return Spec(joined(layers, told(224, 6, drop=0.3)), labelled(1, 400, 400, classes=6), classified)


@case("nesterov", "amp_bf16", 96)
def narrow_middles() -> Spec:
    """Eighty-three layers of bottlenecks over pictures of 32."""
    blocks: list[nn.Module] = [*normed(3, 16)]
    for inputs, inner, stride in ((16, 16, 1), (64, 32, 2), (128, 64, 2)):
        blocks.append(bottleneck(inputs, inner, 4 * inner, stride))
        blocks += [bottleneck(4 * inner, inner, 4 * inner) for _ in range(8)]
    return Spec(joined(blocks, told(256, 100)), labelled(3, 32, 32, classes=100), classified)


@case("sgd_loop", "amp_fp16", 64, channels_last=True)
def in_thirty_two_groups() -> Spec:
    blocks: list[nn.Module] = [*normed(3, 64)]
    for inputs, inner, stride in ((64, 128, 1), (256, 256, 2), (512, 512, 2)):
        blocks.append(bottleneck(inputs, inner, 2 * inner, stride, groups=32))
        blocks += [bottleneck(2 * inner, inner, 2 * inner, groups=32) for _ in range(2)]
    return Spec(joined(blocks, told(1024, 200)), labelled(3, 64, 64, classes=200), classified)


class _Sum(nn.Module):
    """A kernel of three, one of one and nothing at all, each normed, added up and bent (RepVGG)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.ways = nn.ModuleList(joined(normed(inputs, outputs, size, stride)[:-1]) for size in (3, 1))
        if inputs == outputs and stride == 1:
            self.ways.append(nn.BatchNorm2d(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(torch.stack([way(x) for way in self.ways]).sum(0))


@case("nesterov", "fp32", 40)
def three_ways_added() -> Spec:
    widths = (3, 48, 48, 48, 96, 96, 96, 192, 192, 384)
    layers = [_Sum(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    return Spec(joined(*layers, told(384, 67)), labelled(3, 168, 168, classes=67), classified)


@case("adam_loop", "fp32", 48)
def squeezed_and_spread() -> Spec:
    """Fire modules by hand, pictures of 190."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(True), nn.MaxPool2d(3, 2)]
    for inputs, narrow, outputs in ((64, 16, 128), (128, 32, 256), (256, 48, 384), (384, 64, 512)):
        spread = Beside(nn.Conv2d(narrow, outputs // 2, 1), nn.Conv2d(narrow, outputs // 2, 3, padding=1))
        layers += [nn.Conv2d(inputs, narrow, 1), nn.ReLU(True), spread, nn.ReLU(True), nn.MaxPool2d(2)]
    return Spec(joined(layers, told(512, 16, drop=0.5)), labelled(3, 190, 190, classes=16), classified)


class _Standard(nn.Conv2d):
    """A kernel whose weights are brought to one size before every use."""

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (spread + 1e-5).sqrt()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


@case("sgdm", "fp32", 6, accumulate=4)
def steady_in_small_batches() -> Spec:
    """Group norms and standard weights, six pictures of 288 at a time."""
    layers: list[nn.Module] = [_Standard(3, 64, 7, 2, 3)]
    for inputs, outputs in itertools.pairwise((64, 64, 128, 256, 512)):
        bent = [nn.GroupNorm(16, inputs), nn.ReLU(), _Standard(inputs, outputs, 3, 2, 1)]
        more = [nn.GroupNorm(16, outputs), nn.ReLU(), _Standard(outputs, outputs, 3, padding=1)]
        layers.append(Residual(*bent, *more, short=_Standard(inputs, outputs, 1, 2)))
    return Spec(joined(layers, told(512, 38)), labelled(3, 288, 288, classes=38), classified)


@case("adamw", "amp_fp16", 256, ema=True)
def plankton() -> Spec:
    """Grey pictures of 72, a hundred and one kinds, smoothed labels."""
    layers = [*normed(1, 48), *normed(48, 48), nn.MaxPool2d(2), basic(48, 96, 2), basic(96, 192, 2)]
    return Spec(
        joined(layers, told(192, 101, drop=0.2)),
        labelled(1, 72, 72, classes=101),
        lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    )


class _Gaze(nn.Module):
    """Two eyes through the same layers, and how the head is turned."""

    def __init__(self) -> None:
        super().__init__()
        self.see = joined(pooled((1, 40, 80), 5), normed(80, 120), nn.Flatten(), nn.Linear(120 * 135, 200))
        self.head = perceptron(402, 128, 2)

    def forward(self, left: Tensor, right: Tensor, turned: Tensor) -> Tensor:
        out: Tensor = self.head(F.relu(torch.cat([self.see(left), self.see(right), turned], 1)))
        return out


@case("adam", "fp32", 256)
def where_eyes_look() -> Spec:
    eye = numbers(1, 36, 60)
    return Spec(
        _Gaze(), made(eye, eye, numbers(2), numbers(2)), lambda m, a, b, c, y: F.mse_loss(m(a, b, c), y)
    )


class _Bag(nn.Module):
    """Patches of one slide, weighed by a small network; one answer for all."""

    def __init__(self) -> None:
        super().__init__()
        self.see = joined(normed(3, 32, 5, 2), basic(32, 64, 2), basic(64, 128, 2), told(128, 128))
        self.weigh, self.head = (
            nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 1)),
            nn.Linear(128, 1),
        )

    def forward(self, bags: Tensor) -> Tensor:
        seen = self.see(bags.flatten(0, 1)).unflatten(0, bags.shape[:2])
        out: Tensor = self.head((self.weigh(seen).softmax(1) * seen).sum(1)).squeeze(1)
        return out


@case("adam", "fp32", 4, accumulate=2)
def bags_of_patches() -> Spec:
    return Spec(
        _Bag(),
        made(numbers(32, 3, 112, 112), bits()),
        yes_or_no,
    )


@case("adam", "fp32", 200)
def bands_of_a_field() -> Spec:
    """Thirty bands around a place: kernels through the bands first, then over places (HybridSN)."""
    through: list[nn.Module] = []
    for inputs, outputs, depth in ((1, 8, 7), (8, 16, 5), (16, 32, 3)):
        through += [nn.Conv3d(inputs, outputs, (depth, 3, 3)), nn.ReLU()]
    over = [nn.Flatten(1, 2), nn.Conv2d(32 * 18, 64, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.4)]
    model = joined(through, *over, perceptron(64 * 17 * 17, 256, 16))
    return Spec(model, labelled(1, 30, 25, 25, classes=16), classified)


@case("sgdm", "amp_bf16", 8)
def gestures_in_films() -> Spec:
    """Sixteen frames of 112: each kernel first over places, then in time."""

    def both(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        places = nn.Conv3d(inputs, outputs, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        time = nn.Conv3d(outputs, outputs, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False)
        return [places, nn.BatchNorm3d(outputs), nn.ReLU(), time, nn.BatchNorm3d(outputs), nn.ReLU()]

    layers = [part for a, b in itertools.pairwise((3, 48, 96, 192)) for part in both(a, b, 2)]
    model = joined(layers, both(192, 192, 1), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(192, 27))
    return Spec(model, labelled(3, 16, 112, 112, classes=27), classified)


@case("adamax", "fp32", 60)
def weight_of_fish() -> Spec:
    """Three numbers from pictures of 96 by 256, kernels wider than high."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 20, 40, 60, 80)):
        layers += [nn.Conv2d(inputs, outputs, (3, 7), padding=(1, 3)), nn.ELU(), nn.MaxPool2d(2)]
    model = joined(layers, nn.Flatten(), perceptron(80 * 6 * 16, 100, 3))
    return Spec(model, to_numbers(3, 96, 256, outputs=(3,)), squared)
