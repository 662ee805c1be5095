"""The models of the reference cases. Most models come from torchvision or transformers, and the others are defined in
this file.

Each builder returns a `Spec`: a model with random weights, a function that makes a batch, and the loss. Text models
(`reference_sequences`) are built from a configuration, so nothing is downloaded.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.lib.models.parts import Spec, image_classifier, torchvision
from bench.lib.models.reference_sequences import REFERENCE_SEQUENCES


def _segmentation(name: str, *, size: int = 256, classes: int = 21) -> Spec:
    segmentation = torchvision().models.segmentation
    model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=classes)

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, size, size, device=device),
            torch.randint(0, classes, (count, size, size), device=device),
        ]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x)["out"], y))


def _double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class _UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _double_convolution(i, o) for i, o in zip((3, *widths[:-1]), widths, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(o, i, 2, 2) for i, o in itertools.pairwise(widths))
        self.join = nn.ModuleList(_double_convolution(2 * i, i) for i in widths[:-1])
        self.out = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for level in reversed(range(len(self.up))):
            x = self.join[level](torch.cat([skips[level], self.up[level](x)], 1))
        out: Tensor = self.out(x)
        return out


def _unet() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 192, 192, device=device),
            torch.randint(0, 2, (count, 192, 192), device=device),
        ]

    return Spec(_UNet(), batch, lambda model, x, y: F.cross_entropy(model(x), y))


def _mlp() -> Spec:
    model = nn.Sequential(
        nn.Linear(784, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, 10),
    )

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 784, device=device), torch.randint(0, 10, (count,), device=device)]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x), y))


class _ResidualBlock(nn.Module):
    """A block of a diffusion U-Net with group norm, SiLU and convolution. The time step is added in the middle."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
        self.second = nn.Sequential(
            nn.GroupNorm(32, outputs), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.time(time)[:, :, None, None]
        out: Tensor = self.skip(x) + self.second(hidden)
        return out


class _SpatialAttention(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        count, width, height, breadth = x.shape
        q, k, v = (
            t.reshape(count, self.heads, width // self.heads, height * breadth).transpose(2, 3)
            for t in self.qkv(self.norm(x)).chunk(3, 1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(x.shape)
        out: Tensor = x + self.out(mixed)
        return out


class _DiffusionUNet(nn.Module):
    def __init__(self, width: int = 96, time: int = 384) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.width = width
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        inputs = width
        for outputs in widths:
            self.down.append(_ResidualBlock(inputs, outputs, time))
            self.shrink.append(nn.Conv2d(outputs, outputs, 3, 2, 1))
            inputs = outputs
        self.middle = _ResidualBlock(inputs, inputs, time)
        self.attention = _SpatialAttention(inputs)
        self.up = nn.ModuleList()
        for outputs in reversed(widths):
            self.up.append(_ResidualBlock(inputs + outputs, outputs, time))
            inputs = outputs
        self.leave = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, 3, 3, padding=1))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        frequencies = torch.exp(-torch.arange(self.width // 2, device=x.device) / self.width)
        angles = step[:, None].float() * frequencies[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        x = self.enter(x)
        skips = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, time)
            skips.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, time))
        for block in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, skips.pop()], 1), time)
        out: Tensor = self.leave(x)
        return out


def _diffusion_unet() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 64, 64, device=device), torch.randint(0, 1000, (count,), device=device)]

    def loss(model: nn.Module, x: Tensor, step: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        return F.mse_loss(model(x + noise, step), noise)

    return Spec(_DiffusionUNet(), batch, loss)


class _MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 256), nn.GELU(), nn.Linear(256, tokens))
        self.along = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.along(self.norm2(x))
        return out


def _mlp_mixer() -> Spec:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 512, 16, 16)
            self.blocks = nn.Sequential(*(_MixerBlock(196, 512) for _ in range(8)), nn.LayerNorm(512))
            self.head = nn.Linear(512, 1000)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
            return out

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 224, 224, device=device),
            torch.randint(0, 1000, (count,), device=device),
        ]

    return Spec(Mixer(), batch, lambda model, x, y: F.cross_entropy(model(x), y))


_TORCHVISION = (
    "resnet18", "resnet34", "resnet50", "vgg16", "mobilenet_v3_large", "densenet121", "efficientnet_b0", "regnet_x_1_6gf",
    "convnext_tiny", "vit_b_16", "swin_t",
)  # fmt: skip

MODELS: dict[str, Callable[[], Spec]] = {
    **{name: (lambda name=name: image_classifier(name)) for name in _TORCHVISION},  # type: ignore[misc]
    "fcn_resnet50": lambda: _segmentation("fcn_resnet50"),
    **REFERENCE_SEQUENCES,
    "unet": _unet,
    "mlp": _mlp,
    "diffusion_unet": _diffusion_unet,
    "mlp_mixer": _mlp_mixer,
}
