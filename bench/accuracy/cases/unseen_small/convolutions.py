"""Convolutional networks for small images in small batches, segmentation, generation, signals and volumes."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts
from bench.lib.models.blocks import (
    DiffusionUNet,
    UNet,
    add_noise,
    adversarial,
    binary_loss,
    bottleneck,
    conv1d_norm,
    pooled_head,
)
from bench.lib.models.layers import (
    Residual,
    basic_block,
    conv_norm,
    conv_pool,
    resnet_stages,
    sequential,
    with_new_head,
)
from bench.lib.models.parts import (
    Spec,
    batch_of,
    classification_loss,
    integers,
    labelled,
    mlp,
    mse_loss,
    normal,
    segmentation,
    unlabelled,
    zeros_or_ones,
)

CASES = CaseSet()
case = CASES.case


# Small images.


@case("sgdm", "fp32", 7, accumulate=4)
def leaves_by_sevens() -> Spec:
    """Return a residual network on 76-pixel images, with batches of seven and four micro-batches per step."""
    widths = (3, 96, 96, 192, 192, 384)
    blocks = [basic_block(a, b, 2 if a == b else 1) for a, b in itertools.pairwise(widths)]
    return Spec(
        sequential(*blocks, pooled_head(384, 19)), labelled(3, 76, 76, classes=19), classification_loss
    )


@case("nesterov", "fp32", 11, accumulate=3, clip=True)
def wide_over_small() -> Spec:
    """Build three stages of wide residual blocks on 36-pixel images."""
    blocks: list[nn.Module] = [*conv_norm(3, 32)]
    for inputs, outputs, stride in ((32, 160, 1), (160, 320, 2), (320, 640, 2)):
        blocks += [basic_block(inputs, outputs, stride), basic_block(outputs, outputs)]
    return Spec(
        sequential(blocks, pooled_head(640, 43)), labelled(3, 36, 36, classes=43), classification_loss
    )


@case("adam", "fp32", 5, accumulate=6, evaluate=True)
def coins() -> Spec:
    """Build plain 5 × 5 convolutions on 76-pixel gray images and a wide linear layer."""
    model = sequential(conv_pool((1, 48, 96, 192), 5), nn.Flatten(), nn.Dropout(0.4), mlp(192 * 81, 1024, 31))
    return Spec(model, labelled(1, 76, 76, classes=31), classification_loss)


@case("adamw", "tf32", 45)
def eleven_layers_at_72() -> Spec:
    """Build VGG-11 with batch norm and a small head."""
    model = parts.torchvision_model("vgg11_bn")
    model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), mlp(512, 256, 50)
    return Spec(model, labelled(3, 72, 72, classes=50), classification_loss)


@case("sgdm", "fp32", 13, accumulate=2)
def eighteen_at_88() -> Spec:
    return Spec(with_new_head("resnet18", 29), labelled(3, 88, 88, classes=29), classification_loss)


@case("adam", "amp_bf16", 74)
def two_views_of_one() -> Spec:
    """Build ResNet-18 for contrastive learning with two views of each 60-pixel image (SimCLR)."""

    def loss(model: nn.Module, first: Tensor, second: Tensor) -> Tensor:
        seen = F.normalize(model(torch.cat([first, second])).float(), dim=1)
        similarity = (seen @ seen.T / 0.2).fill_diagonal_(-1e4)
        return F.cross_entropy(
            similarity, torch.arange(len(similarity), device=similarity.device).roll(len(first))
        )

    return Spec(with_new_head("resnet18", 96), batch_of(normal(3, 60, 60), normal(3, 60, 60)), loss)


# Larger images.


@case("adamw", "amp_fp16", 45, channels_last=True)
def phones_see_signs() -> Spec:
    return Spec(
        with_new_head("mobilenet_v3_small", 58, drop=0.2),
        labelled(3, 240, 240, classes=58),
        classification_loss,
    )


@case("adamw", "fp32", 9, clip=True)
def modern_at_180() -> Spec:
    return Spec(with_new_head("convnext_tiny", 13), labelled(3, 180, 180, classes=13), classification_loss)


@case("rmsprop", "tf32", 21)
def narrow_and_grouped() -> Spec:
    """Build a multi-label network of grouped bottlenecks on 150-pixel images."""
    blocks: list[nn.Module] = [*conv_norm(3, 40, 5, 2)]
    for inputs, inner in ((40, 48), (96, 96), (192, 192)):
        blocks += [bottleneck(inputs, inner, 2 * inner, 2, groups=8), bottleneck(2 * inner, inner, 2 * inner, groups=8)]  # fmt: skip
    return Spec(
        sequential(blocks, pooled_head(384, 24)),
        batch_of(normal(3, 150, 150), zeros_or_ones(24)),
        binary_loss,
    )


# Segmentation and detection.


def _unet_levels(widths: tuple[int, ...], inputs: int) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return the encoder and decoder of a U-Net with two convolutions per level."""
    down = [
        sequential([nn.MaxPool2d(2)] if level else [], conv_norm(a, b), conv_norm(b, b))
        for level, (a, b) in enumerate(itertools.pairwise((inputs, *widths)))
    ]
    up = [sequential(conv_norm(a + b, b), conv_norm(b, b)) for a, b in itertools.pairwise(widths[::-1])]
    return down, up


@case("adam", "fp32", 3, accumulate=2)
def roads_and_the_rest() -> Spec:
    down, up = _unet_levels((32, 64, 128, 256, 512), 3)
    return Spec(UNet(down, up, nn.Conv2d(32, 2, 1)), segmentation(3, 208, 272, 2), classification_loss)


@case("adamw", "amp_fp16", 5, evaluate=True)
def edges_of_nuclei() -> Spec:
    """Build a U-Net on 336-pixel gray images with three classes."""
    down, up = _unet_levels((48, 96, 192, 384), 1)
    return Spec(UNet(down, up, nn.Conv2d(48, 3, 1)), segmentation(1, 336, 336, 3), classification_loss)


@case("sgdm", "tf32", 6)
def fields_and_rivers() -> Spec:
    """Return a U-Net with a ResNet-18 encoder on six bands."""
    body = resnet_stages("resnet18")
    body[0][0] = nn.Conv2d(6, 64, 7, 2, 3, bias=False)
    up = [sequential(conv_norm(a + b, b)) for a, b in itertools.pairwise((512, 256, 128, 64, 64))]
    head = sequential(nn.Conv2d(64, 9, 1), nn.Upsample(scale_factor=2, mode="bilinear"))
    return Spec(UNet(body, up, head), segmentation(6, 288, 288, 9), classification_loss)


@case("adam", "amp_bf16", 10)
def centres_of_cars() -> Spec:
    """Return a ResNet-34 with transposed convolutions that predicts center maps (CenterNet)."""
    grown: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((512, 256, 128, 64)):
        grown += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]  # fmt: skip
    model = sequential(*resnet_stages("resnet34"), grown, nn.Conv2d(64, 5, 1))
    return Spec(model, parts.with_targets(3, 352, 352, outputs=(5, 88, 88)), mse_loss)


# Generation.


def _hinge_loss(discriminator: nn.Module, batch: list[Tensor], generated: Tensor) -> Tensor:
    return F.relu(1 - discriminator(batch[0])).mean() + F.relu(1 + discriminator(generated)).mean()


def _generate(generator: nn.Module, batch: list[Tensor]) -> Tensor:
    generated: Tensor = generator(torch.randn(len(batch[0]), 100, 1, 1, device=batch[0].device))
    return generated


def _generator_and_discriminator(widths: tuple[int, ...], start: int) -> nn.ModuleDict:
    """Return a DCGAN generator from a latent of 100 and the mirrored discriminator."""
    generator: list[nn.Module] = [nn.ConvTranspose2d(100, widths[0], start), nn.BatchNorm2d(widths[0]), nn.ReLU(True)]  # fmt: skip
    discriminator: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        generator += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
        discriminator = [nn.Conv2d(b, a, 4, 2, 1), nn.LeakyReLU(0.2, True), *discriminator]
    generator += [nn.Conv2d(widths[-1], 3, 3, padding=1), nn.Tanh()]
    discriminator = [
        nn.Conv2d(3, widths[-1], 3, padding=1),
        *discriminator,
        nn.Flatten(),
        nn.Linear(widths[0] * start**2, 1),
    ]
    return nn.ModuleDict({"generator": sequential(generator), "discriminator": sequential(discriminator)})


_ADVERSARIAL_STEP = adversarial(
    _generate, _hinge_loss, lambda discriminator, batch, generated: -discriminator(generated).mean()
)


@case("adam", "fp32", 63)
def drawn_faces() -> Spec:
    """Build a DCGAN on 64-pixel images."""
    return Spec(
        _generator_and_discriminator((512, 256, 128, 64, 32), 4),
        unlabelled(3, 64, 64),
        parts.no_loss,
        _ADVERSARIAL_STEP,
    )


@case("adam", "amp_bf16", 26)
def drawn_sneakers() -> Spec:
    """Build a DCGAN on 112-pixel images."""
    return Spec(
        _generator_and_discriminator((384, 192, 96, 48, 24), 7),
        unlabelled(3, 112, 112),
        parts.no_loss,
        _ADVERSARIAL_STEP,
    )


@case("adamw", "tf32", 27, ema=True)
def noise_at_44() -> Spec:
    """Build a diffusion model for 44-pixel images."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        mixed, noise, time = add_noise(x)
        return F.mse_loss(model(mixed, time), noise)

    return Spec(DiffusionUNet(3, 48, (1, 2, 4)), unlabelled(3, 44, 44), loss)


@case("adam", "fp32", 9)
def four_times_sharper() -> Spec:
    """Build a super-resolution model from 44 to 176 pixels without norms (EDSR)."""

    def plain(outputs: int = 80) -> nn.Module:
        return nn.Conv2d(80, outputs, 3, padding=1)

    body = Residual(*(Residual(plain(), nn.ReLU(), plain()) for _ in range(12)), plain())
    larger = [part for _ in range(2) for part in (plain(320), nn.PixelShuffle(2))]
    model = sequential(nn.Conv2d(3, 80, 3, padding=1), body, larger, plain(3))
    return Spec(
        model, parts.with_targets(3, 44, 44, outputs=(3, 176, 176)), lambda m, x, y: F.l1_loss(m(x), y)
    )


# Signals.


@case("adam", "fp32", 38)
def twelve_leads() -> Spec:
    """Return a 1D residual network with kernels of 15 on twelve-lead ECGs of ten seconds."""

    def block(inputs: int, outputs: int) -> Residual:
        short = sequential(conv1d_norm(inputs, outputs, 1, 4)[:-1])
        layers = conv1d_norm(inputs, outputs, 15, 4) + conv1d_norm(outputs, outputs, 15)[:-1]
        return Residual(*layers, nn.Dropout(0.2), short=short, act=nn.ReLU())

    blocks = [block(a, b) for a, b in itertools.pairwise((64, 128, 192, 256))]
    model = sequential(
        conv1d_norm(12, 64, 15), *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(256, 26)
    )
    return Spec(model, batch_of(normal(12, 5000), zeros_or_ones(26)), binary_loss)


@case("adamw", "amp_fp16", 61, accumulate=2)
def words_from_waves() -> Spec:
    """Build a network on one second of raw audio, with a long first kernel (M5)."""
    layers: list[nn.Module] = [nn.Conv1d(1, 128, 80, 4), nn.BatchNorm1d(128), nn.ReLU(), nn.MaxPool1d(4)]
    for inputs, outputs in itertools.pairwise((128, 128, 256, 512)):
        layers += [*conv1d_norm(inputs, outputs, 3), nn.MaxPool1d(4)]
    model = sequential(layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, 35))
    return Spec(model, labelled(1, 16000, classes=35), classification_loss)


class _WaveNet(nn.Module):
    """Dilated causal convolutions with gates (WaveNet)."""

    def __init__(self, width: int = 64, steps: int = 10, levels: int = 128) -> None:
        super().__init__()
        self.words, self.head = (
            nn.Embedding(levels, width),
            sequential(nn.ReLU(), nn.Conv1d(width, levels, 1)),
        )
        self.looks = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**step) for step in range(steps))
        self.leave = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(steps))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        total = torch.zeros_like(x)
        for look, leave in zip(self.looks, self.leave, strict=True):
            value, gate = look(F.pad(x, (look.dilation[0], 0))).chunk(2, 1)
            on, aside = leave(value.tanh() * gate.sigmoid()).chunk(2, 1)
            x, total = x + on, total + aside
        out: Tensor = self.head(total)
        return out


@case("adam", "fp32", 5)
def next_sample() -> Spec:
    return Spec(_WaveNet(), batch_of(integers(128, 6000), integers(128, 6000)), classification_loss)


# Volumes.


def _conv3d_norm(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm3d(outputs), nn.ReLU()]


@case("adam", "fp32", 6)
def spots_in_lungs() -> Spec:
    """Build a 3D classifier for 48 × 72 × 72 volumes."""
    layers = [
        part
        for a, b in itertools.pairwise((1, 24, 48, 96))
        for part in (*_conv3d_norm(a, b), *_conv3d_norm(b, b, 2))
    ]
    model = sequential(layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(96, 2))
    return Spec(model, labelled(1, 48, 72, 72, classes=2), classification_loss)


@case("sgdm", "amp_bf16", 3)
def four_scans_of_a_head() -> Spec:
    """Return a 3D U-Net over four scan modalities."""
    widths = (20, 40, 80, 160)
    down = [sequential(_conv3d_norm(a, b, 1 if a == 4 else 2), _conv3d_norm(b, b)) for a, b in itertools.pairwise((4, *widths))]  # fmt: skip
    up = [sequential(_conv3d_norm(a + b, b)) for a, b in itertools.pairwise(widths[::-1])]
    batch = batch_of(normal(4, 64, 72, 64), integers(4, 64, 72, 64))
    return Spec(UNet(down, up, nn.Conv3d(20, 4, 1)), batch, classification_loss)
