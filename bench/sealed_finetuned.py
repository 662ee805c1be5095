"""torchvision's classifiers with another head, another first layer, or another share of them frozen, as people adapt them.
Cases stand above the model they train.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import Spec, classified, freeze, labelled, squared, to_numbers, torchvision, zoo

SEALED_FINETUNED = CaseSet()
case = SEALED_FINETUNED.case


@case("sgdm", "fp32", 128, evaluate=True)
def fixed_extractor() -> Spec:
    """A frozen ResNet-18 and one line."""
    model = zoo("resnet18")
    freeze(model)
    model.fc = nn.Linear(512, 3)
    return Spec(model, labelled(3, 224, 224, classes=3), classified)


@case("adam", "amp_fp16", 64)
def last_stage_only() -> Spec:
    model = zoo("resnet34")
    freeze(model)
    for parameter in model.layer4.parameters():
        parameter.requires_grad_(True)
    model.fc = nn.Linear(512, 50)
    return Spec(model, labelled(3, 160, 160, classes=50), classified)


@case("adam", "fp32", 24, evaluate=True)
def bins_for_waste() -> Spec:
    model = zoo("resnet50")
    model.fc = nn.Sequential(nn.Dropout(0.5), nn.Linear(2048, 6))
    return Spec(model, labelled(3, 256, 256, classes=6), classified)


@case("adamw", "amp_bf16", 32)
def normed_sixteen() -> Spec:
    model = zoo("vgg16_bn")
    model.avgpool = nn.AdaptiveAvgPool2d(1)
    model.classifier = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 25))
    return Spec(model, labelled(3, 128, 128, classes=25), classified)


@case("adam", "fp32", 64)
def frozen_thirteen() -> Spec:
    features = zoo("vgg13").features
    freeze(features)
    model = nn.Sequential(
        features, nn.Flatten(), nn.Linear(512 * 6 * 6, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 8)
    )
    return Spec(model, labelled(3, 200, 200, classes=8), classified)


@case("sgdm", "amp_fp16", 16)
def dense_and_wide() -> Spec:
    model = zoo("densenet161")
    model.classifier = nn.Linear(2208, 14)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), y.round())

    return Spec(model, to_numbers(3, 224, 224, outputs=(14,)), loss)


@case("adamw", "amp_bf16", 16, ema=True)
def newer_efficient() -> Spec:
    model = zoo("efficientnet_v2_m")
    model.classifier[1] = nn.Linear(1280, 219)
    return Spec(
        model,
        labelled(3, 256, 256, classes=219),
        lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    )


@case("adam", "fp32", 64)
def frozen_efficient() -> Spec:
    model = zoo("efficientnet_b0")
    freeze(model.features)
    model.classifier = nn.Sequential(
        nn.Linear(1280, 512), nn.ReLU(), nn.BatchNorm1d(512), nn.Dropout(0.3), nn.Linear(512, 11)
    )
    return Spec(model, labelled(3, 200, 200, classes=11), classified)


@case("sgdm", "fp32", 100)
def shuffled() -> Spec:
    model = zoo("shufflenet_v2_x1_5")
    model.fc = nn.Linear(1024, 20)
    return Spec(model, labelled(3, 128, 128, classes=20), classified)


@case("adam", "fp32", 64)
def squeezed_head() -> Spec:
    model = zoo("squeezenet1_0")
    model.classifier[1] = nn.Conv2d(512, 9, 1)
    return Spec(model, labelled(3, 224, 224, classes=9), classified)


@case("adamw", "fp32", 64)
def last_blocks_of_transformer() -> Spec:
    model = zoo("vit_b_32")
    freeze(model)
    for layer in model.encoder.layers[-2:]:
        for parameter in layer.parameters():
            parameter.requires_grad_(True)
    model.heads = nn.Linear(768, 60)
    return Spec(model, labelled(3, 224, 224, classes=60), classified)


@case("adamw_fused", "amp_bf16", 16, clip=True)
def shifted_windows() -> Spec:
    model = zoo("swin_b")
    model.head = nn.Linear(1024, 196)
    return Spec(model, labelled(3, 224, 224, classes=196), classified)


@case("adamw", "amp_fp16", 32)
def last_stage_of_convnext() -> Spec:
    model = zoo("convnext_small")
    freeze(model.features[:6])
    model.classifier[2] = nn.Linear(768, 12)
    return Spec(model, labelled(3, 224, 224, classes=12), classified)


@case("rmsprop", "fp32", 64, evaluate=True)
def masks_on_faces() -> Spec:
    model = zoo("mobilenet_v3_small")
    model.classifier[3] = nn.Linear(1024, 2)
    return Spec(model, labelled(3, 224, 224, classes=2), classified)


@case("nesterov", "amp_fp16", 32, channels_last=True)
def regular_design() -> Spec:
    model = zoo("regnet_x_3_2gf")
    model.fc = nn.Linear(1008, 80)
    return Spec(model, labelled(3, 224, 224, classes=80), classified)


@case("adamw", "amp_bf16", 8, accumulate=4)
def hundred_and_one() -> Spec:
    model = zoo("resnext101_32x8d")
    model.fc = nn.Linear(2048, 31)
    return Spec(model, labelled(3, 224, 224, classes=31), classified)


@case("sgdm", "fp32", 16)
def two_outputs() -> Spec:
    """Inception with its second output, as the tutorial adds the losses."""
    model = torchvision().models.inception_v3(weights=None, aux_logits=True, init_weights=False)
    model.AuxLogits.fc, model.fc = nn.Linear(768, 4), nn.Linear(2048, 4)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told, beside = model(x)
        return F.cross_entropy(told, y) + 0.4 * F.cross_entropy(beside, y)

    return Spec(model, labelled(3, 299, 299, classes=4), loss)


@case("nesterov", "fp32", 128)
def eighteen_for_small_pictures() -> Spec:
    """Its first convolution is of three, and nothing is pooled after it."""
    model = zoo("resnet18")
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    model.fc = nn.Linear(512, 100)
    return Spec(model, labelled(3, 32, 32, classes=100), classified)


@case("adamw", "amp_bf16", 64)
def thirteen_bands() -> Spec:
    """Satellite pictures of thirteen bands."""
    model = zoo("resnet50")
    model.conv1 = nn.Conv2d(13, 64, 7, 2, 3, bias=False)
    model.fc = nn.Linear(2048, 19)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(model(x).float(), y.round())

    return Spec(model, to_numbers(13, 120, 120, outputs=(19,)), loss)


class _TwoHeads(nn.Module):
    """One body, an age and a class out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body: Any = zoo("mobilenet_v2").features
        self.age = nn.Sequential(nn.Linear(1280, 128), nn.ReLU(), nn.Linear(128, 1))
        self.kind = nn.Linear(1280, 7)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.body(x).mean((2, 3))
        return self.age(seen).squeeze(1), self.kind(seen)


@case("adam", "amp_fp16", 64, clip=True)
def two_heads() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        made = (torch.randn(count, 3, 192, 192), torch.rand(count) * 80, torch.randint(0, 7, (count,)))
        return [one.to(device) for one in made]

    def loss(model: nn.Module, x: Tensor, age: Tensor, kind: Tensor) -> Tensor:
        told_age, told_kind = model(x)
        return 0.01 * F.l1_loss(told_age.float(), age) + F.cross_entropy(told_kind, kind)

    return Spec(_TwoHeads(), batch, loss)


class _Frames(nn.Module):
    """Frames of a film through a frozen ResNet-18 one by one, then an LSTM over them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = zoo("resnet18")
        self.body.fc = nn.Identity()
        freeze(self.body)
        self.read, self.head = nn.LSTM(512, 256, 2, batch_first=True), nn.Linear(256, 25)

    def forward(self, film: Tensor) -> Tensor:
        with torch.no_grad():
            seen = self.body(film.flatten(0, 1)).view(*film.shape[:2], -1)
        out: Tensor = self.head(self.read(seen)[0][:, -1])
        return out


@case("adam", "fp32", 8)
def frames() -> Spec:
    return Spec(_Frames(), labelled(16, 3, 112, 112, classes=25), classified)


@case("adam", "fp32", 32)
def head_pose() -> Spec:
    """Three angles from a ResNet-101 whose first half is frozen."""
    model = zoo("resnet101")
    for module in (model.conv1, model.bn1, model.layer1, model.layer2):
        freeze(module)
    model.fc = nn.Linear(2048, 3)
    return Spec(model, to_numbers(3, 128, 128, outputs=(3,)), squared)
