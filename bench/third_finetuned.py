"""Classifiers of torchvision's with new heads, frozen in part or whole, at the sizes that people's pictures have. Cases stand
above the model they train.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import headed
from bench.model_parts import (
    Spec,
    bits,
    classified,
    freeze,
    labelled,
    made,
    numbers,
    perceptron,
    squared,
    to_numbers,
    torchvision,
    zoo,
)

THIRD_FINETUNED = CaseSet()
case = THIRD_FINETUNED.case


@case("adam", "fp32", 48, evaluate=True)
def deepest_frozen() -> Spec:
    """Only the last block and the head of a ResNet-152 learn."""
    model = headed("resnet152", 120, frozen=True)
    model.layer4[-1].requires_grad_(True)
    return Spec(model, labelled(3, 224, 224, classes=120), classified)


@case("sgdm", "amp_bf16", 16)
def birds_at_448() -> Spec:
    return Spec(headed("resnet50", 200), labelled(3, 448, 448, classes=200), classified)


@case("nesterov", "fp32", 40)
def stronger_dogs() -> Spec:
    """A ResNet-34 with a perceptron on top, at 192."""
    model = zoo("resnet34")
    model.fc = nn.Sequential(
        nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 37)
    )
    return Spec(model, labelled(3, 192, 192, classes=37), classified)


@case("adamw", "amp_fp16", 32, clip=True)
def grouped_fifty() -> Spec:
    return Spec(headed("resnext50_32x4d", 67, drop=0.3), labelled(3, 256, 256, classes=67), classified)


@case("adam", "amp_fp16", 16)
def fourteen_findings() -> Spec:
    """Chest pictures of 320 and fourteen answers each."""
    return Spec(
        headed("densenet121", 14),
        made(numbers(3, 320, 320), bits(14)),
        lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y),
    )


@case("sgdm", "fp32", 64)
def frozen_dense() -> Spec:
    """A frozen DenseNet-169 under a perceptron, at 128."""
    model = zoo("densenet169")
    freeze(model)
    model.classifier = perceptron(1664, 512, 256, 8)
    return Spec(model, labelled(3, 128, 128, classes=8), classified)


@case("adam", "fp32", 32)
def nineteen_and_a_line() -> Spec:
    """VGG-19: features frozen, pooled to one place."""
    features = zoo("vgg19").features
    freeze(features)
    model = nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 4))  # fmt: skip
    return Spec(model, labelled(3, 150, 150, classes=4), classified)


@case("sgdm", "fp32", 200)
def old_but_fast() -> Spec:
    """AlexNet with frozen features."""
    model = headed("alexnet", 10)
    freeze(model.features)
    return Spec(model, labelled(3, 224, 224, classes=10), classified)


@case("adam", "fp32", 64, evaluate=True)
def kitchen_things() -> Spec:
    model = headed("mobilenet_v3_large", 15, frozen=True, drop=0.2)
    model.features[-3:].requires_grad_(True)
    return Spec(model, labelled(3, 192, 192, classes=15), classified)


@case("rmsprop_momentum", "amp_fp16", 32)
def efficient_at_240() -> Spec:
    return Spec(headed("efficientnet_b1", 26), labelled(3, 240, 240, classes=26), classified)


@case("adamw", "amp_bf16", 16, ema=True, clip=True)
def leaves_of_cassava() -> Spec:
    return Spec(headed("efficientnet_b3", 5), labelled(3, 384, 384, classes=5), classified)


@case("adam", "fp32", 24)
def second_efficient() -> Spec:
    """EfficientNetV2 whose norms stay as they were."""
    model = headed("efficientnet_v2_s", 18)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            freeze(layer)
    return Spec(model, labelled(3, 200, 200, classes=18), classified)


@case("adam", "fp32", 80)
def searched_design() -> Spec:
    return Spec(headed("mnasnet0_5", 12), labelled(3, 224, 224, classes=12), classified)


@case("sgdm", "amp_fp16", 256)
def smallest_shuffle() -> Spec:
    return Spec(headed("shufflenet_v2_x0_5", 21), labelled(3, 224, 224, classes=21), classified)


@case("adam", "fp32", 64, clip=True)
def squeezed_wholly() -> Spec:
    model = zoo("squeezenet1_1")
    model.classifier[1] = nn.Conv2d(512, 9, 1)
    return Spec(model, labelled(3, 227, 227, classes=9), classified)


@case("adagrad", "fp32", 32)
def three_outputs() -> Spec:
    """GoogLeNet with both of its side outputs, added as its paper says."""
    model = torchvision().models.googlenet(weights=None, num_classes=16, aux_logits=True, init_weights=False)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        main = F.cross_entropy(told.logits, y)
        return main + 0.3 * (F.cross_entropy(told.aux_logits1, y) + F.cross_entropy(told.aux_logits2, y))

    return Spec(model, labelled(3, 224, 224, classes=16), loss)


@case("adamw", "fp32", 16, clip=True)
def whole_transformer_learns() -> Spec:
    return Spec(headed("vit_b_16", 37), labelled(3, 224, 224, classes=37), classified)


@case("adamw", "amp_bf16", 12)
def second_windows() -> Spec:
    return Spec(headed("swin_v2_t", 28), labelled(3, 256, 256, classes=28), classified)


@case("sgdm", "amp_bf16", 24, channels_last=True)
def twice_as_wide() -> Spec:
    return Spec(headed("wide_resnet50_2", 101), labelled(3, 224, 224, classes=101), classified)


@case("adam", "fp32", 32)
def grades_of_beauty() -> Spec:
    """A number from 1 to 5, by a ResNet-18 that begins with the weights of a grey one."""
    model = zoo("resnet18")
    model.conv1, model.fc = nn.Conv2d(1, 64, 7, 2, 3, bias=False), nn.Linear(512, 1)
    return Spec(model, to_numbers(1, 350, 350, outputs=(1,)), squared)


class _WithFacts(nn.Module):
    """A picture and what is known of the patient, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.see = headed("efficientnet_b0", 256)
        self.know = nn.Sequential(
            nn.Linear(12, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Dropout(0.3), nn.Linear(64, 32)
        )
        self.head = nn.Linear(288, 1)

    def forward(self, x: Tensor, facts: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat((self.see(x), self.know(facts)), 1))
        return out


@case("adam", "amp_bf16", 32)
def pictures_with_facts() -> Spec:
    return Spec(
        _WithFacts(),
        made(numbers(3, 256, 256), numbers(12), bits(1)),
        lambda m, x, facts, y: F.binary_cross_entropy_with_logits(m(x, facts), y),
    )
