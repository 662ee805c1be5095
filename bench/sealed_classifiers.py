"""Small convolutional networks as people write them for their own pictures. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import Spec, classified, labelled, squared, to_numbers

SEALED_CLASSIFIERS = CaseSet()
case = SEALED_CLASSIFIERS.case


def _stacked(*layers: nn.Module | list[nn.Module]) -> nn.Sequential:
    """One network of layers and lists of layers."""
    flat: list[nn.Module] = []
    for layer in layers:
        flat += layer if isinstance(layer, list) else [layer]
    return nn.Sequential(*flat)


@case("adam", "fp32", 100)
def first_digits() -> Spec:
    """Two convolutions of five that keep the size, each pooled."""

    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 5, 1, 2), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2, 2)]

    model = _stacked(layer(1, 16), layer(16, 32), nn.Flatten(), nn.Linear(7 * 7 * 32, 10))
    return Spec(model, labelled(1, 28, 28, classes=10), classified)


@case("sgdm", "fp32", 4)
def tutorial_pictures() -> Spec:
    """The tutorial's network for CIFAR, batches of four."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    return Spec(model, labelled(3, 32, 32, classes=10), classified)


class _Handwriting(nn.Module):
    """Letters and digits of 47 kinds; functional dropout and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3), nn.Conv2d(64, 100, 3)
        self.fc1, self.fc2 = nn.Linear(100 * 10 * 10, 300), nn.Linear(300, 47)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(F.relu(self.conv3(x)), 0.25, self.training)
        out: Tensor = self.fc2(F.dropout(F.relu(self.fc1(x.flatten(1))), 0.5, self.training))
        return out


@case("adamw", "fp32", 512)
def handwriting() -> Spec:
    return Spec(_Handwriting(), labelled(1, 28, 28, classes=47), classified)


@case("sgdm", "fp32", 64, evaluate=True)
def house_numbers() -> Spec:
    """Kernels of five and seven over numbers on houses."""
    model = nn.Sequential(
        nn.Conv2d(3, 48, 5, padding=2), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2, 2, 1), nn.Dropout(0.2),
        nn.Conv2d(48, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2, 1, 1), nn.Dropout(0.2),
        nn.Conv2d(64, 128, 5, padding=2), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2, 2, 1), nn.Dropout(0.2),
        nn.Conv2d(128, 160, 7, padding=3), nn.BatchNorm2d(160), nn.ReLU(), nn.MaxPool2d(2, 1, 1), nn.Flatten(),
        nn.LazyLinear(1024), nn.ReLU(), nn.Linear(1024, 10),
    )  # fmt: skip
    model(torch.zeros(2, 3, 54, 54))
    return Spec(model, labelled(3, 54, 54, classes=10), classified)


@case("adam", "fp32", 32)
def flowers() -> Spec:
    """Rescaled to 180, three convolutions, one wide layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 16, 32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = _stacked(
        layers, nn.Dropout(0.2), nn.Flatten(), nn.Linear(64 * 22 * 22, 128), nn.ReLU(), nn.Linear(128, 5)
    )
    return Spec(model, labelled(3, 180, 180, classes=5), classified)


@case("adam", "fp32", 64)
def small_birds() -> Spec:
    """Everything halves by strides, nothing is pooled."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 30, 60, 120, 240)):
        layers += [nn.Conv2d(inputs, outputs, 5, 2, 2), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]
    model = _stacked(layers, nn.Flatten(), nn.Linear(240 * 8 * 8, 200))
    return Spec(model, labelled(3, 128, 128, classes=200), classified)


@case("rmsprop", "amp_fp16", 32)
def road_signs() -> Spec:
    """Four pairs of convolutions at 200, dropout after each."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 20, 40, 80, 100)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2)]  # fmt: skip
    model = _stacked(
        layers, nn.AdaptiveAvgPool2d((3, 3)), nn.Flatten(), nn.Linear(900, 512), nn.ReLU(), nn.Linear(512, 43)
    )
    return Spec(model, labelled(3, 200, 200, classes=43), classified)


@case("adam", "fp32", 16)
def skin() -> Spec:
    """Pictures of 300 through kernels of seven, five and three."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 7, padding=3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(5), nn.Flatten(), nn.Linear(3200, 64), nn.ReLU(), nn.Linear(64, 7),
    )  # fmt: skip
    weights = torch.tensor([1.0, 2, 1, 3, 1, 0.3, 4])
    return Spec(
        model,
        labelled(3, 300, 300, classes=7),
        lambda m, x, y: F.cross_entropy(m(x), y, weight=weights.to(x.device)),
    )


class _Residual(nn.Module):
    """Two convolutions and what came in, whatever the norm is."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, groups: int = 0) -> None:
        super().__init__()

        def norm() -> nn.Module:
            return nn.GroupNorm(groups, outputs) if groups else nn.BatchNorm2d(outputs)

        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1), norm(), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1), norm(),
        )  # fmt: skip
        self.short = (
            nn.Identity() if inputs == outputs and stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.short(x))


@case("sgdm", "amp_fp16", 512)
def fast_nine() -> Spec:
    """ResNet-9 for fast runs over CIFAR."""

    def block(inputs: int, outputs: int, pool: bool = True) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True), *([nn.MaxPool2d(2)] if pool else [])]  # fmt: skip

    model = _stacked(
        block(3, 64, False), block(64, 128), _Residual(128, 128), block(128, 256), block(256, 512), _Residual(512, 512),
        nn.MaxPool2d(4), nn.Flatten(), nn.Linear(512, 10, bias=False),
    )  # fmt: skip
    return Spec(model, labelled(3, 32, 32, classes=10), classified)


@case("adam", "amp_bf16", 64, ema=True)
def grouped_norms() -> Spec:
    blocks: list[nn.Module] = [
        _Residual(a, b, s, 8)
        for a, b, s in ((32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 256, 2))
    ]
    model = _stacked(
        nn.Conv2d(3, 32, 3, 1, 1), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)
    )
    return Spec(model, labelled(3, 96, 96, classes=10), classified)


class _Dense(nn.Module):
    """Every layer sees all before it."""

    def __init__(self, inputs: int, layers: int, growth: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(inputs + i * growth), nn.ReLU(), nn.Conv2d(inputs + i * growth, growth, 3, padding=1, bias=False))
            for i in range(layers)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


@case("nesterov", "fp32", 64)
def dense_forty() -> Spec:
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, padding=1, bias=False)]
    width = 24
    for level in range(3):
        layers.append(_Dense(width, 8))
        width += 96
        if level < 2:
            layers += [
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 1, bias=False),
                nn.AvgPool2d(2),
            ]
    model = _stacked(
        layers, nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)
    )
    return Spec(model, labelled(3, 32, 32, classes=100), classified)


class _Upside(nn.Module):
    """Wider inside than outside, and thin between (MobileNetV2's block)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 6 * inputs
        self.same = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
            nn.Conv2d(wide, wide, 5, stride, 2, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.same else y


@case("adamw", "amp_fp16", 64, channels_last=True)
def upside_down() -> Spec:
    blocks: list[nn.Module] = [
        _Upside(a, b, s) for a, b, s in ((16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2))
    ]
    model = _stacked(
        nn.Conv2d(3, 16, 3, 2, 1), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, 30)
    )
    return Spec(model, labelled(3, 224, 224, classes=30), classified)


@case("adam", "fp32", 256)
def ten_channels() -> Spec:
    """TinyVGG: ten channels everywhere."""

    def block(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, 10, 3), nn.ReLU(), nn.Conv2d(10, 10, 3), nn.ReLU(), nn.MaxPool2d(2)]

    model = _stacked(block(3), block(10), nn.Flatten(), nn.Linear(10 * 13 * 13, 3))
    return Spec(model, labelled(3, 64, 64, classes=3), classified)


@case("adagrad", "fp32", 32)
def two_sizes() -> Spec:
    """A picture seen whole and in its middle, by two towers."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole, self.middle = self.tower(), self.tower()
            self.head = nn.Linear(2 * 96, 15)

        @staticmethod
        def tower() -> nn.Sequential:
            layers: list[nn.Module] = []
            for inputs, outputs in itertools.pairwise((3, 24, 48, 96)):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.PReLU(), nn.AvgPool2d(2)]
            return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten())

        def forward(self, x: Tensor) -> Tensor:
            small = F.interpolate(x, size=(80, 80), mode="bilinear", align_corners=False)
            out: Tensor = self.head(torch.cat([self.whole(small), self.middle(x[:, :, 40:120, 40:120])], 1))
            return out

    return Spec(Towers(), labelled(3, 160, 160, classes=15), classified)


@case("adam", "fp32", 32, accumulate=4)
def ages_of_hands() -> Spec:
    """Grey pictures of 256 and one number, four small batches a step."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 24, 48, 96, 192)):
        layers += [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.InstanceNorm2d(outputs, affine=True), nn.ReLU(), nn.MaxPool2d(2)]  # fmt: skip
    model = _stacked(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 1))
    return Spec(model, to_numbers(1, 256, 256, outputs=(1,)), squared)


@case("sgd", "fp32", 128, clip=True)
def gated_pictures() -> Spec:
    """Channels that open and close others, and an attention over places."""

    class Gate(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.channels = nn.Sequential(
                nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width)
            )
            self.places = nn.Conv2d(2, 1, 7, padding=3)

        def forward(self, x: Tensor) -> Tensor:
            both = self.channels(x.mean((2, 3))) + self.channels(x.amax((2, 3)))
            x = x * both.sigmoid()[:, :, None, None]
            seen = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
            return x * self.places(seen).sigmoid()

    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 32, 64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), Gate(outputs), nn.MaxPool2d(2)]  # fmt: skip
    model = _stacked(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 20))
    return Spec(model, labelled(3, 72, 72, classes=20), classified)


@case("adam", "tf32", 128)
def patches_of_tissue() -> Spec:
    """Two classes, SELU, alpha dropout, binary loss."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 32, 64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3), nn.SELU(), nn.Conv2d(outputs, outputs, 3), nn.SELU(), nn.MaxPool2d(2), nn.AlphaDropout(0.1)]  # fmt: skip
    model = _stacked(layers, nn.Flatten(), nn.Linear(128 * 8 * 8, 256), nn.SELU(), nn.Linear(256, 1))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x).flatten(), y.float())

    return Spec(model, labelled(3, 96, 96, classes=2), loss)


@case("adamw", "bf16", 64)
def all_in_half() -> Spec:
    """A network of patches and depthwise convolutions (ConvMixer), all in bfloat16."""

    class Mixed(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.places = nn.Sequential(nn.Conv2d(width, width, 9, groups=width, padding="same"), nn.GELU(), nn.BatchNorm2d(width))  # fmt: skip
            self.channels = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.channels(x + self.places(x))
            return out

    model = _stacked(
        nn.Conv2d(3, 256, 8, 8), nn.GELU(), nn.BatchNorm2d(256), [Mixed(256) for _ in range(8)],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100),
    )  # fmt: skip
    return Spec(model, labelled(3, 224, 224, classes=100), classified)


@case("adam", "fp32", 48)
def many_labels() -> Spec:
    """Several labels at once, a loss that weighs the rare ones, and a tanh at the end of a wide net."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((4, 50, 100, 150)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(outputs),
            nn.MaxPool2d(3, 3),
        ]
    model = _stacked(layers, nn.Flatten(), nn.Linear(150 * 7 * 7, 300), nn.Tanh(), nn.Linear(300, 28))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told, wanted = model(x), (y > 0.8).float()
        each = F.binary_cross_entropy_with_logits(told, wanted, reduction="none")
        return (torch.exp(-each).sub(1).pow(2) * each).mean()

    return Spec(model, to_numbers(4, 200, 200, outputs=(28,)), loss)


@case("adam", "fp32", 64)
def turned_pictures() -> Spec:
    """A network that first turns its picture upright (spatial transformer)."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.find = nn.Sequential(
                nn.Conv2d(1, 8, 7), nn.MaxPool2d(2), nn.ReLU(True), nn.Conv2d(8, 10, 5), nn.MaxPool2d(2), nn.ReLU(True),
                nn.Flatten(), nn.Linear(10 * 11 * 11, 32), nn.ReLU(True), nn.Linear(32, 6),
            )  # fmt: skip
            self.look = nn.Sequential(
                nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
                nn.Linear(50 * 12 * 12, 100), nn.ReLU(), nn.Linear(100, 10),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            grid = F.affine_grid(self.find(x).view(-1, 2, 3), list(x.size()), align_corners=False)
            out: Tensor = self.look(F.grid_sample(x, grid, align_corners=False))
            return out

    return Spec(Turned(), labelled(1, 60, 60, classes=10), classified)
