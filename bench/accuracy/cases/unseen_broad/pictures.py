"""Models for images, videos and volumes: classification, segmentation, detection and tracking. Also image, speech and
video models from the transformers library."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.blocks import Concat, UNet, bottleneck, pooled_head
from bench.lib.models.layers import (
    Residual,
    conv_norm,
    conv_pool,
    outputs_of,
    resnet_stages,
    sequential,
    with_new_head,
)
from bench.lib.models.parts import (
    Spec,
    batch_of,
    classification_loss,
    dice_loss,
    freeze,
    huggingface,
    image_loss,
    integers,
    labelled,
    mlp,
    normal,
    segmentation,
    transformer_sizes,
    zeros_or_ones,
)

CASES = CaseSet()
case = CASES.case


# Convolutional networks.


# Classification.


@case("sgdm", "amp_fp16", 36, channels_last=True, accumulate=2)
def tiles_and_bricks() -> Spec:
    return Spec(with_new_head("resnet34", 37), labelled(3, 208, 208, classes=37), classification_loss)


@case("adamw", "amp_bf16", 25, ema=True)
def moths_on_a_sheet() -> Spec:
    """Build EfficientNet-B5 on 190-pixel images."""
    return Spec(
        with_new_head("efficientnet_b4", 280, drop=0.4),
        labelled(3, 190, 190, classes=280),
        classification_loss,
    )


@case("nesterov", "tf32", 51)
def minerals() -> Spec:
    return Spec(with_new_head("resnet50", 62), labelled(3, 160, 160, classes=62), classification_loss)


@case("adam", "fp32", 52, frozen=True, evaluate=True)
def lichens() -> Spec:
    """Build a DenseNet with the first three quarters of its tensors frozen."""
    return Spec(with_new_head("densenet121", 17), labelled(3, 136, 136, classes=17), classification_loss)


@case("adam", "fp32", 56, evaluate=True)
def loaves_and_rolls() -> Spec:
    """Build four plain convolutions on 96 × 128 images."""
    model = sequential(conv_pool((3, 40, 80, 80, 160)), nn.Flatten(), nn.Dropout(0.3), mlp(160 * 48, 320, 14))
    return Spec(model, labelled(3, 96, 128, classes=14), classification_loss)


@case("adamw", "amp_bf16", 66, clip=True)
def patches_stay_patches() -> Spec:
    """Build a model of patches and depthwise convolutions with residual connections (ConvMixer)."""

    def residual(layer: nn.Module) -> list[nn.Module]:
        return [layer, nn.GELU(), nn.BatchNorm2d(320)]

    layers = residual(nn.Conv2d(3, 320, 7, 7))
    for _ in range(8):
        layers += [
            Residual(*residual(nn.Conv2d(320, 320, 9, padding=4, groups=320))),
            *residual(nn.Conv2d(320, 320, 1)),
        ]
    return Spec(
        sequential(layers, pooled_head(320, 90)), labelled(3, 196, 196, classes=90), classification_loss
    )


class Scales(nn.Module):
    """A block whose channels are split into groups. Each group also receives the output of the previous group
    (Res2Net)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        first, *pieces = x.chunk(len(self.layers) + 1, 1)
        made_of = [first]
        for piece, layer in zip(pieces, self.layers, strict=True):
            made_of.append(layer(piece + made_of[-1]))
        return torch.cat(made_of, 1)


@case("sgdm", "fp32", 26, clip=True)
def scales_within_a_block() -> Spec:
    blocks: list[nn.Module] = [*conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for inputs, inner in ((64, 104), (208, 208), (416, 416)):
        scales = Scales(*(sequential(conv_norm(inner // 4, inner // 4)) for _ in range(3)))
        inside = [*conv_norm(2 * inner, inner, 1), scales, *conv_norm(inner, 2 * inner, 1)[:-1]]
        blocks += [bottleneck(inputs, inner, 2 * inner, 2), Residual(*inside, act=nn.ReLU())]
    return Spec(
        sequential(blocks, pooled_head(832, 48)), labelled(3, 184, 184, classes=48), classification_loss
    )


# Segmentation, detection, tracking.


@case("adam", "amp_fp16", 15, channels_last=True, clip=True)
def gardens_from_drones() -> Spec:
    """Return a U-Net with a ResNet-50 encoder and eight classes."""
    up = [
        sequential(conv_norm(a + b, c), conv_norm(c, c))
        for a, b, c in ((2048, 1024, 256), (256, 512, 128), (128, 256, 64), (64, 64, 32))
    ]
    head = sequential(nn.Upsample(scale_factor=2), conv_norm(32, 16), nn.Conv2d(16, 8, 1))
    return Spec(UNet(resnet_stages("resnet50"), up, head), segmentation(3, 256, 256, 8), classification_loss)


@case("sgd_fused", "fp32", 8)
def four_pools_over_a_scene() -> Spec:
    """Build pyramid pooling over a ResNet-18 (PSPNet)."""
    pools = [
        sequential(
            nn.AdaptiveAvgPool2d(places), conv_norm(512, 128, 1), nn.Upsample(size=(10, 14), mode="bilinear")
        )
        for places in (1, 2, 3, 6)
    ]
    head = sequential(
        conv_norm(1024, 256),
        nn.Dropout(0.1),
        nn.Conv2d(256, 21, 1),
        nn.Upsample(scale_factor=32, mode="bilinear"),
    )
    model = sequential(*resnet_stages("resnet18"), Concat(nn.Identity(), *pools), head)
    return Spec(model, segmentation(3, 320, 448, 21), classification_loss)


class _SSD(nn.Module):
    """Single-shot detection with six boxes per position on four feature maps (SSD)."""

    def __init__(self, classes: int = 11, shapes: int = 6) -> None:
        super().__init__()
        self.enter = sequential(conv_norm(3, 32, 3, 2), conv_norm(32, 64, 3, 2), conv_norm(64, 128))
        widths = (128, 256, 384, 256, 256)
        self.maps = nn.ModuleList(
            sequential(conv_norm(a, a, 1), conv_norm(a, b, 3, 2), conv_norm(b, b))
            for a, b in itertools.pairwise(widths)
        )
        self.kinds = nn.ModuleList(nn.Conv2d(width, shapes * classes, 3, padding=1) for width in widths[1:])
        self.boxes = nn.ModuleList(nn.Conv2d(width, shapes * 4, 3, padding=1) for width in widths[1:])
        self.classes = classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = outputs_of(self.maps, self.enter(x))

        def predictions(heads: nn.ModuleList, each: int) -> Tensor:
            rows = [
                head(level).permute(0, 2, 3, 1).reshape(len(x), -1, each)
                for head, level in zip(heads, seen, strict=True)
            ]
            return torch.cat(rows, 1)

        return predictions(self.kinds, self.classes), predictions(self.boxes, 4)


@case("sgdm", "fp32", 20, clip=True)
def boxes_on_four_maps() -> Spec:
    count = 6 * (40**2 + 20**2 + 10**2 + 5**2)

    def loss(model: nn.Module, x: Tensor, kind: Tensor, box: Tensor) -> Tensor:
        kinds_told, boxes_told = model(x)
        near = F.smooth_l1_loss(boxes_told, box, reduction="none").sum(2) * (kind > 0)
        return F.cross_entropy(kinds_told.flatten(0, 1), kind.flatten()) + near.mean()

    return Spec(_SSD(), batch_of(normal(3, 320, 320), integers(11, count), normal(count, 4)), loss)


class _SiamFC(nn.Module):
    """Siamese tracking, in which features of the template are the convolution kernel for the scene (SiamFC)."""

    def __init__(self) -> None:
        super().__init__()
        self.see = sequential(
            conv_norm(3, 64, 7, 2),
            nn.MaxPool2d(3, 2),
            conv_norm(64, 128, 5),
            nn.MaxPool2d(3, 2),
            conv_norm(128, 192),
            nn.Conv2d(192, 192, 3, padding=1),
        )

    def forward(self, thing: Tensor, scene: Tensor) -> Tensor:
        kernels, place = self.see(thing)[:, :, 4:11, 4:11], self.see(scene)
        found = F.conv2d(place.flatten(0, 1).unsqueeze(0), kernels, groups=len(kernels))
        return found.squeeze(0) * 0.001


@case("sgd_loop", "fp32", 24)
def followed_in_films() -> Spec:
    return Spec(
        _SiamFC(),
        batch_of(normal(3, 127, 127), normal(3, 255, 255), zeros_or_ones(25, 25)),
        lambda m, thing, scene, y: F.binary_cross_entropy_with_logits(m(thing, scene), y),
    )


# Video and volumes.


def _conv3d_norm(inputs: int, outputs: int, stride: int, depth: int = 3) -> list[nn.Module]:
    look = nn.Conv3d(inputs, outputs, (depth, 3, 3), (1, stride, stride), (depth // 2, 1, 1), bias=False)
    return [look, nn.BatchNorm3d(outputs), nn.ReLU(True)]


class _SlowFast(nn.Module):
    """A slow pathway with many channels and a fast pathway with many frames (SlowFast)."""

    def __init__(self, classes: int, widths: tuple[int, ...] = (3, 64, 128, 256, 384)) -> None:
        super().__init__()
        thin = (3, *(width // 8 for width in widths[1:]))
        pairs, thin_pairs = list(itertools.pairwise(widths)), list(itertools.pairwise(thin))
        self.fast = nn.ModuleList(sequential(_conv3d_norm(a, b, 2)) for a, b in thin_pairs)
        self.side = nn.ModuleList(nn.Conv3d(a, 2 * a, (5, 1, 1), (4, 1, 1), (2, 0, 0)) for a in thin[1:])
        self.slow = nn.ModuleList(
            sequential(
                _conv3d_norm(a + (2 * c if a > 3 else 0), b, 2, 1), _conv3d_norm(b, b, 1, 3 if b > 128 else 1)
            )
            for (a, b), (c, _) in zip(pairs, thin_pairs, strict=True)
        )
        self.head = nn.Linear(widths[-1] + 2 * thin[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        few, many = x[:, :, ::4], x
        for slow, fast, side in zip(self.slow, self.fast, self.side, strict=True):
            few, many = slow(few), fast(many)
            few = torch.cat([few, side(many)], 1)
        out: Tensor = self.head(few.mean((2, 3, 4)))
        return out


@case("sgdm", "amp_fp16", 22)
def slow_and_fast_frames() -> Spec:
    return Spec(_SlowFast(44), labelled(3, 32, 128, 128, classes=44), classification_loss)


@case("adamw", "bf16", 3, accumulate=4)
def hippocampi() -> Spec:
    """Return a 3D U-Net with 5 × 5 × 5 kernels and residual connections, all in bfloat16 (V-Net)."""
    widths = (16, 32, 64, 128)

    def residual_block(width: int) -> Residual:
        return Residual(nn.Conv3d(width, width, 5, padding=2), nn.BatchNorm3d(width), nn.PReLU(width))

    down = [
        sequential(
            nn.Conv3d(a, b, 2, 2) if a > 1 else nn.Conv3d(a, b, 5, padding=2), nn.PReLU(b), residual_block(b)
        )
        for a, b in itertools.pairwise((1, *widths))
    ]
    up = [
        sequential(nn.Conv3d(a + b, b, 5, padding=2), nn.PReLU(b), residual_block(b))
        for a, b in itertools.pairwise(widths[::-1])
    ]
    model = UNet(down, up, nn.Conv3d(16, 1, 1))
    batch = batch_of(normal(1, 48, 80, 64), zeros_or_ones(1, 48, 80, 64))
    return Spec(model, batch, lambda m, x, y: dice_loss(m(x), y))


# Models from transformers: images, image captions, speech, video.


@case("adamw", "amp_bf16", 36, clip=True, ema=True)
def half_of_a_base_learns() -> Spec:
    """Build ViT-base with its first half frozen."""
    model = huggingface().ViTForImageClassification(huggingface().ViTConfig(num_labels=47))
    early = list(model.parameters())
    for parameter in early[: len(early) // 2]:
        parameter.requires_grad_(False)
    return Spec(model, labelled(3, 224, 224, classes=47), image_loss)


@case("adamw", "amp_fp16", 10, clip=True)
def second_windows_at_256() -> Spec:
    """Build Swin V2 tiny."""
    config = huggingface().Swinv2Config(image_size=256, window_size=8, num_labels=12)
    return Spec(
        huggingface().Swinv2ForImageClassification(config), labelled(3, 256, 256, classes=12), image_loss
    )


@case("sgdm", "fp32", 14)
def hierarchy_without_windows() -> Spec:
    """Build Hiera tiny."""
    config = huggingface().HieraConfig(depths=[1, 2, 7, 2], num_labels=33)
    return Spec(
        huggingface().HieraForImageClassification(config), labelled(3, 224, 224, classes=33), image_loss
    )


@case("adamw", "amp_bf16", 64)
def fast_over_small_maps() -> Spec:
    """Build LeViT, which has convolutions and then attention with batch norms."""
    config = huggingface().LevitConfig(num_labels=65)
    return Spec(
        huggingface().LevitForImageClassification(config), labelled(3, 224, 224, classes=65), image_loss
    )


@case("adamw", "fp32", 6)
def pictures_before_words() -> Spec:
    """Build GIT, in which image patches precede the caption's tokens."""
    config = huggingface().GitConfig(
        **transformer_sizes(512, 6, vocab_size=20000, use_cache=False), vision_config=transformer_sizes(512, 8, image_size=192, patch_size=16)
    )  # fmt: skip

    def loss(model: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
        output: Tensor = model(input_ids=ids, pixel_values=x, labels=ids).loss
        return output

    return Spec(
        huggingface().GitForCausalLM(config), batch_of(integers(20000, 36), normal(3, 192, 192)), loss
    )


@case("adamw", "amp_fp16", 5, accumulate=2, clip=True)
def half_minutes_written_down() -> Spec:
    """Build a fully trained Whisper-base."""
    config = huggingface().WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, use_cache=False,
    )  # fmt: skip
    model = huggingface().WhisperForConditionalGeneration(config)
    batch = batch_of(normal(80, 3000), integers(50000, 80))
    return Spec(model, batch, lambda m, x, y: m(input_features=x, labels=y).loss)


@case("adamw", "amp_bf16", 8)
def voices_of_callers() -> Spec:
    """Build UniSpeech-SAT with a frozen feature extractor, on 2.5 seconds of audio."""
    config = huggingface().UniSpeechSatConfig(
        **transformer_sizes(512, 6, num_labels=40),
        mask_time_prob=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
    )
    model = huggingface().UniSpeechSatForSequenceClassification(config)
    freeze(model.unispeech_sat.feature_extractor)
    return Spec(model, labelled(40000, classes=40), lambda m, x, y: m(input_values=x, labels=y).loss)


@case("radam", "amp_bf16", 6)
def films_in_tubes() -> Spec:
    """Build ViViT on sixteen 112-pixel frames in tubelets of two."""
    config = huggingface().VivitConfig(
        **transformer_sizes(384, 8, num_labels=24), image_size=112, num_frames=16, tubelet_size=[2, 16, 16]
    )
    batch = labelled(16, 3, 112, 112, classes=24)
    return Spec(huggingface().VivitForVideoClassification(config), batch, image_loss)
