"""Networks for pictures as people write them for themselves: small convolutional ones, torchvision's with a new head,
segmentation and detection. Cases stand above the model they train.
"""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import Spec, classified, freeze, labelled, squared, to_numbers, torchvision, zoo

ORDINARY_PICTURES = CaseSet()
case = ORDINARY_PICTURES.case


# People's own classifiers.


@case("sgd", "fp32", 64)
def tanh_digits() -> Spec:
    """LeNet-5, as taught."""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
    )  # fmt: skip
    return Spec(model, labelled(1, 28, 28, classes=10), classified)


class _DropDigits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, kernel_size=5), nn.Conv2d(10, 20, kernel_size=5)
        self.drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2))
        x = F.dropout(F.relu(self.fc1(x.view(-1, 320))), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


@case("sgdm", "fp32", 1000, evaluate=True)
def dropped_digits() -> Spec:
    return Spec(_DropDigits(), labelled(1, 28, 28, classes=10), lambda m, x, y: F.nll_loss(m(x), y))


@case("adam", "fp32", 256)
def clothes() -> Spec:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 32, 64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]  # fmt: skip
    layers += [nn.Flatten(), nn.Linear(1152, 600), nn.Dropout(0.25), nn.ReLU(), nn.Linear(600, 10)]
    return Spec(nn.Sequential(*layers), labelled(1, 28, 28, classes=10), classified)


@case("sgdm", "amp_fp16", 128)
def deep_small_pictures() -> Spec:
    """Two convolutions, a pool, and so on, over CIFAR's pictures."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 64, 128, 256, 512)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.ReLU(inplace=True), nn.MaxPool2d(2, 2), nn.Dropout2d(0.1),
        ]  # fmt: skip
    layers += [nn.Flatten(), nn.Linear(2048, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 100)]
    return Spec(nn.Sequential(*layers), labelled(3, 32, 32, classes=100), classified)


class _PaddedBlock(nn.Module):
    """Of CIFAR's ResNet-20: the short cut is padded with zeros instead of convolved."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride, self.more = outputs // inputs, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        short = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more // 2))
        return F.relu(y + short)


@case("nesterov", "fp32", 128)
def twenty_layers() -> Spec:
    widths = [16] * 4 + [32] * 3 + [64] * 3
    blocks = [_PaddedBlock(a, b) for a, b in itertools.pairwise(widths)]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    return Spec(model, labelled(3, 32, 32, classes=10), classified)


def _yes_or_no(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(x).squeeze(1).float(), y.float())


@case("rmsprop", "fp32", 20, evaluate=True)
def cats_and_dogs() -> Spec:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 32, 64, 128, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Dropout(0.5), nn.Linear(6272, 512), nn.ReLU(), nn.Linear(512, 1)]
    return Spec(nn.Sequential(*layers), labelled(3, 150, 150, classes=2), _yes_or_no)


@case("adam", "fp32", 64)
def leaves() -> Spec:
    """A wide first kernel and channels in twenties."""
    layers: list[nn.Module] = [nn.Conv2d(3, 20, 7, 2, 3), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for inputs, outputs in itertools.pairwise((20, 40, 80, 160)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(2560, 99)]
    return Spec(nn.Sequential(*layers), labelled(3, 128, 128, classes=99), classified)


@case("adam", "fp32", 32)
def galaxies() -> Spec:
    """No padding anywhere, and sizes that come out odd."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(50, 100, 3), nn.ReLU(), nn.Conv2d(100, 100, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(100 * 21 * 21, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 37), nn.Sigmoid(),
    )  # fmt: skip
    return Spec(model, to_numbers(3, 200, 200, outputs=(37,)), squared)


@case("adamw", "amp_bf16", 24, channels_last=True)
def dishes() -> Spec:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 16, 32, 64, 128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1), nn.MaxPool2d(2)]  # fmt: skip
    layers += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(256, 101)]
    return Spec(nn.Sequential(*layers), labelled(3, 300, 300, classes=101), classified)


@case("adamw", "fp32", 100)
def separable() -> Spec:
    """Depthwise and pointwise convolutions, written by hand."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU6()]
    for inputs, outputs, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        layers += [
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU6(),
            nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU6(),
        ]  # fmt: skip
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)]
    return Spec(nn.Sequential(*layers), labelled(3, 96, 96, classes=10), classified)


@case("adam_amsgrad", "fp32", 32)
def lungs() -> Spec:
    """Grey pictures of 224, ELU, two classes."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 16, 32, 48, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding="same"), nn.ELU(), nn.Conv2d(outputs, outputs, 3, padding="same"), nn.ELU(), nn.MaxPool2d(2), nn.Dropout(0.2)]  # fmt: skip
    layers += [nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ELU(), nn.Linear(128, 1)]
    return Spec(nn.Sequential(*layers), labelled(1, 224, 224, classes=2), _yes_or_no)


class _Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ask = nn.Sequential(nn.Linear(width, width // 8), nn.ReLU(), nn.Linear(width // 8, width), nn.Sigmoid())  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.ask(x.mean((2, 3)))[:, :, None, None]
        return out


class _SqueezedBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), _Squeeze(outputs),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.layers(x) + self.short(x))


@case("sgdm", "amp_fp16", 256, clip=True)
def two_hundred_things() -> Spec:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), *(_SqueezedBlock(a, b, s) for a, b, s in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 200),
    )  # fmt: skip
    return Spec(
        model,
        labelled(3, 64, 64, classes=200),
        lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    )


class _Branches(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, width, 1)
        self.three = nn.Sequential(
            nn.Conv2d(inputs, width, 1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.five = nn.Sequential(nn.Conv2d(inputs, width // 2, 1), nn.ReLU(), nn.Conv2d(width // 2, width, 5, padding=2))  # fmt: skip
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(inputs, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1))


@case("adam", "fp32", 50)
def branching() -> Spec:
    model = nn.Sequential(
        nn.Conv2d(3, 24, 5, 2), nn.ReLU(), _Branches(24, 12), _Branches(48, 20), nn.MaxPool2d(2), _Branches(80, 30),
        nn.MaxPool2d(2), _Branches(120, 50), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(200, 12),
    )  # fmt: skip
    return Spec(model, labelled(3, 144, 144, classes=12), classified)


@case("adam", "fp32", 128)
def steering() -> Spec:
    """The road ahead in, one angle out."""
    model = nn.Sequential(
        nn.Conv2d(3, 24, 5, 2), nn.ELU(), nn.Conv2d(24, 36, 5, 2), nn.ELU(), nn.Conv2d(36, 48, 5, 2), nn.ELU(),
        nn.Conv2d(48, 64, 3), nn.ELU(), nn.Conv2d(64, 64, 3), nn.ELU(), nn.Flatten(), nn.Linear(1152, 100), nn.ELU(),
        nn.Linear(100, 50), nn.ELU(), nn.Linear(50, 10), nn.Linear(10, 1),
    )  # fmt: skip
    return Spec(model, to_numbers(3, 66, 200, outputs=(1,)), squared)


@case("adam", "fp32", 128)
def face_points() -> Spec:
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise((1, 32, 64, 128, 256))):
        layers += [nn.Conv2d(inputs, outputs, 4 - index), nn.ELU(), nn.MaxPool2d(2), nn.Dropout(0.1 * (index + 1))]  # fmt: skip
    layers += [nn.Flatten(), nn.Linear(6400, 1000), nn.ELU(), nn.Linear(1000, 1000), nn.Linear(1000, 30)]
    return Spec(nn.Sequential(*layers), to_numbers(1, 96, 96, outputs=(30,)), squared)


# torchvision's, with a new head.


@case("sgdm", "fp32", 4, evaluate=True)
def ants_and_bees() -> Spec:
    model = zoo("resnet18")
    model.fc = nn.Linear(model.fc.in_features, 2)
    return Spec(model, labelled(3, 224, 224, classes=2), classified)


@case("adam", "fp32", 64)
def frozen_fifty() -> Spec:
    model = zoo("resnet50")
    freeze(model)
    model.fc = nn.Sequential(
        nn.Linear(2048, 256), nn.ReLU(), nn.Dropout(0.4), nn.Linear(256, 10), nn.LogSoftmax(1)
    )
    return Spec(model, labelled(3, 224, 224, classes=10), lambda m, x, y: F.nll_loss(m(x), y))


@case("adam", "amp_fp16", 12)
def eyes() -> Spec:
    model = zoo("efficientnet_b4")
    model.classifier[1] = nn.Linear(model.classifier[1].in_features, 5)
    return Spec(model, labelled(3, 380, 380, classes=5), classified)


@case("adamw", "fp32", 32)
def dense_features() -> Spec:
    model = zoo("densenet201")
    freeze(model.features)
    model.classifier = nn.Linear(1920, 120)
    return Spec(model, labelled(3, 224, 224, classes=120), classified)


@case("sgdm", "amp_bf16", 256)
def phone_pictures() -> Spec:
    model = zoo("mobilenet_v2")
    model.classifier[1] = nn.Linear(1280, 100)
    return Spec(model, labelled(3, 96, 96, classes=100), classified)


@case("adamw", "amp_fp16", 128)
def probed_transformer() -> Spec:
    """Only a line on top of a vision transformer learns."""
    model = zoo("vit_b_16")
    freeze(model)
    model.heads = nn.Linear(768, 37)
    return Spec(model, labelled(3, 224, 224, classes=37), classified)


@case("adamw", "amp_bf16", 10, accumulate=2)
def large_pictures() -> Spec:
    model = zoo("convnext_tiny")
    model.classifier[2] = nn.Linear(768, 6)
    return Spec(model, labelled(3, 384, 384, classes=6), classified)


class _SteadyNorms(nn.Module):
    """A ResNet-50 whose batch norms stay as they were trained, and whose first layers do not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.body = zoo("resnet50")
        self.body.fc = nn.Linear(2048, 20)
        for module in (self.body.conv1, self.body.bn1, self.body.layer1):
            freeze(module)

    def train(self, mode: bool = True) -> "_SteadyNorms":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


@case("adam", "amp_fp16", 48, channels_last=True)
def steady_norms() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), y.round())

    return Spec(_SteadyNorms(), to_numbers(3, 256, 256, outputs=(20,)), loss)


@case("sgdm", "amp_bf16", 64)
def satellites() -> Spec:
    model = zoo("regnet_y_3_2gf")
    model.fc = nn.Linear(model.fc.in_features, 45)
    return Spec(model, labelled(3, 224, 224, classes=45), classified)


@case("adam", "fp32", 32)
def frozen_sixteen() -> Spec:
    model = zoo("vgg16")
    freeze(model.features)
    model.classifier[6] = nn.Linear(4096, 17)
    return Spec(model, labelled(3, 224, 224, classes=17), classified)


# Segmentation and detection.


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


class _SmallUNet(nn.Module):
    def __init__(self, channels: int, widths: tuple[int, ...], outputs: int, *, transposed: bool) -> None:
        super().__init__()
        self.down = nn.ModuleList(_pair(a, b) for a, b in itertools.pairwise((channels, *widths)))
        backwards = widths[::-1]
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 2, 2) if transposed else nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(a, b, 1))
            for a, b in itertools.pairwise(backwards)
        )  # fmt: skip
        self.up = nn.ModuleList(_pair(2 * width, width) for width in backwards[1:])
        self.head = nn.Conv2d(widths[0], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for grow, block, other in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([other, grow(x)], dim=1))
        out: Tensor = self.head(x)
        return out


def _cells_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    told = model(x).float()
    wanted = y.round()
    share = told.sigmoid()
    overlap = (2 * (share * wanted).sum((2, 3)) + 1) / (share.sum((2, 3)) + wanted.sum((2, 3)) + 1)
    return F.binary_cross_entropy_with_logits(told, wanted) + 1 - overlap.mean()


@case("adam", "fp32", 16)
def cells() -> Spec:
    model = _SmallUNet(1, (16, 32, 64, 128, 256), 1, transposed=True)
    return Spec(model, to_numbers(1, 128, 128, outputs=(1, 128, 128)), _cells_loss)


@case("rmsprop_momentum", "amp_fp16", 8, clip=True)
def cars() -> Spec:
    model = _SmallUNet(3, (64, 128, 256, 512), 2, transposed=False)

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 3, 320, 480).to(device), torch.randint(0, 2, (count, 320, 480)).to(device)]

    return Spec(model, batch, classified)


class _Unpooled(nn.Module):
    """SegNet: where the maximum was is where it goes back to."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 64, 128, 256)
        self.down = nn.ModuleList(_pair(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(
            _pair(b, a if a > 3 else 64) for a, b in reversed(list(itertools.pairwise(widths)))
        )
        self.head = nn.Conv2d(64, 11, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        places = []
        for block in self.down:
            x, where = F.max_pool2d(block(x), 2, return_indices=True)
            places.append(where)
        for block in self.up:
            x = block(F.max_unpool2d(x, places.pop(), 2))
        out: Tensor = self.head(x)
        return out


@case("sgdm", "fp32", 6)
def unpooled_streets() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 3, 240, 320).to(device), torch.randint(0, 11, (count, 240, 320)).to(device)]

    return Spec(_Unpooled(), batch, classified)


@case("adamw", "amp_bf16", 6)
def frozen_scenes() -> Spec:
    """Only the head of DeepLab learns."""
    model = torchvision().models.segmentation.deeplabv3_resnet101(
        weights=None, weights_backbone=None, num_classes=8
    )
    freeze(model.backbone)

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 3, 321, 321).to(device), torch.randint(0, 8, (count, 321, 321)).to(device)]

    return Spec(model, batch, lambda m, x, y: F.cross_entropy(m(x)["out"], y))


def _boxes(size: int, classes: int, count: int, device: str) -> list[Any]:
    """Pictures, and two boxes on each."""
    corners = torch.rand(count, 2, 2) * size / 2
    boxes = torch.cat([corners, corners + 20 + torch.rand(count, 2, 2) * size / 3], 2).to(device)
    return [
        torch.rand(count, 3, size, size).to(device),
        boxes,
        torch.randint(1, classes, (count, 2)).to(device),
    ]


def _detection_loss(model: nn.Module, x: Tensor, boxes: Tensor, kinds: Tensor) -> Tensor:
    targets = [{"boxes": box, "labels": kind} for box, kind in zip(boxes, kinds, strict=True)]
    losses = model(list(x), targets)
    return torch.stack(list(losses.values())).sum()


@case("sgdm", "fp32", 4)
def boxes_at_all_sizes() -> Spec:
    model = torchvision().models.detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=320, max_size=320
    )
    return Spec(model, lambda count, device: _boxes(320, 5, count, device), _detection_loss)
