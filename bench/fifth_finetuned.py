"""Networks of torchvision's that go on learning. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import model_parts as parts
from bench.block_parts import yes_or_no
from bench.case import CaseSet
from bench.layer_parts import headed
from bench.model_parts import Spec, bits, classified, freeze, labelled, made, numbers, perceptron, torchvision

FIFTH_FINETUNED = CaseSet()
case = FIFTH_FINETUNED.case


@case("adamw", "amp_bf16", 100, channels_last=True, evaluate=True)
def fifty_at_160() -> Spec:
    return Spec(headed("resnet50", 257), labelled(3, 160, 160, classes=257), classified)


@case("sgdm", "fp32", 8)
def eighteen_at_full_size() -> Spec:
    """Pictures as a camera gives them: 640 by 480."""
    return Spec(headed("resnet18", 3), labelled(3, 480, 640, classes=3), classified)


@case("adam", "fp32", 40, evaluate=True)
def widest_frozen() -> Spec:
    """A wide ResNet-101 stays; a line learns."""
    return Spec(headed("wide_resnet101_2", 21, frozen=True), labelled(3, 224, 224, classes=21), classified)


@case("sgdm", "amp_fp16", 10, accumulate=3)
def sixty_four_groups() -> Spec:
    return Spec(headed("resnext101_64x4d", 90), labelled(3, 224, 224, classes=90), classified)


@case("rmsprop", "fp32", 96, keep_grads=True)
def smallest_regular() -> Spec:
    return Spec(headed("regnet_x_400mf", 35), labelled(3, 224, 224, classes=35), classified)


@case("adamw", "amp_bf16", 24, clip=True)
def larger_regular() -> Spec:
    return Spec(headed("regnet_y_8gf", 300), labelled(3, 192, 192, classes=300), classified)


@case("adamw", "amp_fp16", 4, accumulate=2)
def efficient_at_456() -> Spec:
    return Spec(headed("efficientnet_b5", 12), labelled(3, 456, 456, classes=12), classified)


@case("adam", "fp32", 56)
def searched_and_wide() -> Spec:
    return Spec(headed("mnasnet1_3", 24, drop=0.2), labelled(3, 200, 200, classes=24), classified)


@case("nesterov", "fp32", 32, channels_last=True)
def turned_phones() -> Spec:
    """MobileNetV2 over pictures of 256, channels last, without mixed precision."""
    return Spec(headed("mobilenet_v2", 18), labelled(3, 256, 256, classes=18), classified)


@case("adam", "fp32", 12)
def dense_at_300() -> Spec:
    """Fourteen findings at once, the first block frozen."""
    model = headed("densenet121", 14)
    freeze(model.features[:5])
    return Spec(
        model,
        made(numbers(3, 300, 300), bits(14)),
        yes_or_no,
    )


@case("adam", "fp32", 64)
def thirteen_normed() -> Spec:
    """VGG-13 with norms at 128, a small perceptron for a head."""
    model = parts.zoo("vgg13_bn")
    model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(2), perceptron(2048, 512, 10)
    return Spec(model, labelled(3, 128, 128, classes=10), classified)


@case("adamw", "amp_fp16", 24, ema=True)
def modern_at_192() -> Spec:
    return Spec(headed("convnext_small", 88, drop=0.1), labelled(3, 192, 192, classes=88), classified)


class _Alike(nn.Module):
    """Two pictures of a product through one MobileNet; are they the same?"""

    def __init__(self) -> None:
        super().__init__()
        self.see = headed("mobilenet_v3_large", 128)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return F.pairwise_distance(self.see(first), self.see(second))


@case("adam", "amp_bf16", 48)
def same_product() -> Spec:
    def loss(model: nn.Module, first: Tensor, second: Tensor, same: Tensor) -> Tensor:
        far = model(first, second).float()
        return (same * far.pow(2) + (1 - same) * F.relu(1 - far).pow(2)).mean()

    picture = numbers(3, 176, 176)
    return Spec(_Alike(), made(picture, picture, bits()), loss)


@case("adam", "fp32", 24)
def flow_of_clips() -> Spec:
    """torchvision's smallest network for films, frozen but for its last stage."""
    model = torchvision().models.video.mc3_18(weights=None, num_classes=11)
    for part in (model.stem, model.layer1, model.layer2):
        freeze(part)
    return Spec(model, labelled(3, 12, 96, 96, classes=11), classified)


# Attention.


@case("adamw", "fp32", 12)
def windows_late() -> Spec:
    """The smaller Swin whose last two stages learn."""
    model = headed("swin_s", 61)
    freeze(model.features[:4])
    return Spec(model, labelled(3, 224, 224, classes=61), classified)


@case("adamw", "amp_bf16", 20, clip=True, ema=True)
def patches_at_288() -> Spec:
    """Patches of 32 over larger pictures, three numbers each."""
    model = torchvision().models.vit_b_32(weights=None, image_size=288, num_classes=3)
    return Spec(model, parts.to_numbers(3, 288, 288, outputs=(3,)), parts.squared)


@case("sgdm", "amp_fp16", 8)
def large_patches_probed() -> Spec:
    """The large vision transformer stays but for its norms and its head."""
    model = headed("vit_l_32", 70, frozen=True)
    for layer in model.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.requires_grad_(True)
    return Spec(model, labelled(3, 224, 224, classes=70), classified)


class _Sets(nn.Module):
    """Eight frames of a film by a ResNet-18, put in order by torch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.head = headed("resnet18", 256), nn.Linear(256, 14)
        layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
        self.order = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.places = nn.Parameter(torch.zeros(1, 8, 256))

    def forward(self, films: Tensor) -> Tensor:
        seen = self.see(films.flatten(0, 1)).unflatten(0, films.shape[:2])
        out: Tensor = self.head(self.order(seen + self.places).mean(1))
        return out


@case("adamw", "amp_fp16", 8)
def frames_in_order() -> Spec:
    return Spec(_Sets(), labelled(8, 3, 144, 144, classes=14), classified)
