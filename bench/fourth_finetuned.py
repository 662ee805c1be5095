"""Classifiers of torchvision's that go on learning for pictures of one's own. Cases stand above the model they train."""

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
    torchvision,
    zoo,
)

FOURTH_FINETUNED = CaseSet()
case = FOURTH_FINETUNED.case


@case("adam", "amp_fp16", 128, channels_last=True)
def eighteen_at_128() -> Spec:
    return Spec(headed("resnet18", 64, drop=0.2), labelled(3, 128, 128, classes=64), classified)


@case("sgdm", "fp32", 24, evaluate=True)
def fifty_with_steady_norms() -> Spec:
    """The first layers stay as they were, and every norm with them."""
    model = headed("resnet50", 43)
    for part in (model.conv1, model.bn1, model.layer1):
        freeze(part)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            freeze(layer)
    return Spec(model, labelled(3, 256, 256, classes=43), classified)


@case("adam", "fp32", 48)
def eleven_with_a_small_head() -> Spec:
    model = zoo("vgg11")
    freeze(model.features[:11])
    model.classifier = nn.Sequential(nn.Linear(25088, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 7))
    return Spec(model, labelled(3, 224, 224, classes=7), classified)


@case("adam", "fp32", 100, evaluate=True)
def phone_features() -> Spec:
    """MobileNetV2 frozen; a perceptron learns on top of it."""
    model = zoo("mobilenet_v2")
    freeze(model.features)
    model.classifier = nn.Sequential(nn.Dropout(0.3), perceptron(1280, 256, 64, 5))
    return Spec(model, labelled(3, 160, 160, classes=5), classified)


@case("adamw", "amp_fp16", 20, clip=True)
def efficient_at_260() -> Spec:
    return Spec(headed("efficientnet_b2", 99), labelled(3, 260, 260, classes=99), classified)


@case("adamw", "amp_bf16", 24)
def deep_and_dense() -> Spec:
    return Spec(headed("densenet201", 8), labelled(3, 192, 192, classes=8), classified)


@case("adamw", "fp32", 24)
def late_stages_learn() -> Spec:
    """ConvNeXt's smallest: its first two stages are frozen."""
    model = headed("convnext_tiny", 33)
    freeze(model.features[:4])
    return Spec(model, labelled(3, 236, 236, classes=33), classified)


@case("nesterov", "amp_bf16", 64, channels_last=True)
def regular_and_weighed() -> Spec:
    return Spec(headed("regnet_y_1_6gf", 200), labelled(3, 224, 224, classes=200), classified)


@case("rmsprop_momentum", "fp32", 24)
def both_of_inceptions_outputs() -> Spec:
    model = torchvision().models.inception_v3(weights=None, num_classes=29, init_weights=False)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(x)
        return F.cross_entropy(told.logits, y) + 0.4 * F.cross_entropy(told.aux_logits, y)

    return Spec(model, labelled(3, 299, 299, classes=29), loss)


@case("adam", "amp_bf16", 96)
def shuffled_twice_as_wide() -> Spec:
    return Spec(headed("shufflenet_v2_x2_0", 40), labelled(3, 224, 224, classes=40), classified)


class _FourPictures(nn.Module):
    """Four pictures of one thing; the largest answer for each feature goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.see = headed("resnet34", 512)
        self.head = nn.Linear(512, 40)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.see(x.flatten(0, 1)).view(len(x), 4, -1)
        out: Tensor = self.head(F.relu(seen.amax(1)))
        return out


@case("adam", "fp32", 12)
def shapes_from_four_sides() -> Spec:
    return Spec(_FourPictures(), labelled(4, 3, 180, 180, classes=40), classified)


class _Against(nn.Module):
    """Two looks at one picture shall be near each other, all others far (SimCLR)."""

    def __init__(self) -> None:
        super().__init__()
        self.see = zoo("resnet18")
        self.see.fc = nn.Identity()
        self.project = perceptron(512, 512, 128)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        code = F.normalize(self.project(self.see(torch.cat([first, second]))).float())
        near = code @ code.t() / 0.5
        near = near.masked_fill(torch.eye(len(code), dtype=torch.bool, device=code.device), float("-inf"))
        other = torch.arange(len(code), device=code.device).roll(len(first))
        return F.cross_entropy(near, other)


@case("adamw", "amp_bf16", 96, channels_last=True)
def near_itself() -> Spec:
    return Spec(_Against(), made(numbers(3, 96, 96), numbers(3, 96, 96)), lambda m, a, b: m(a, b))


@case("adamw", "fp32", 24, clip=True)
def only_late_blocks_attend() -> Spec:
    """A vision transformer whose last four blocks learn."""
    model = headed("vit_b_16", 55, frozen=True)
    for block in model.encoder.layers[-4:]:
        block.requires_grad_(True)
    model.encoder.ln.requires_grad_(True)
    return Spec(model, labelled(3, 224, 224, classes=55), classified)


@case("adamw", "amp_fp16", 16, accumulate=2, clip=True)
def windows_in_small_batches() -> Spec:
    return Spec(headed("swin_t", 150, drop=0.1), labelled(3, 224, 224, classes=150), classified)


@case("adamw", "amp_bf16", 12, ema=True)
def blocks_and_grids() -> Spec:
    """MaxViT: convolutions, windows and grids; several labels each."""
    model = zoo("maxvit_t")
    model.classifier[-1] = nn.Linear(512, 18, bias=False)
    return Spec(
        model,
        made(numbers(3, 224, 224), bits(18)),
        lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y),
    )
