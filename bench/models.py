"""The models that the measured training steps use: the real ones where a library has them, small honest ones else.

Each builder returns a `Spec`: a model with random weights, a function that makes a batch, and the loss. Text
models (`reference_sequences`) are made from a configuration, never downloaded.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.model_parts import Spec, torchvision, vision
from bench.reference_sequences import REFERENCE_SEQUENCES


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


class _VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.LeakyReLU(0.2),
            nn.Conv2d(128, 256, 4, 2, 1), nn.BatchNorm2d(256), nn.LeakyReLU(0.2), nn.Flatten(),
        )  # fmt: skip
        self.mean, self.spread = nn.Linear(256 * 64, 128), nn.Linear(256 * 64, 128)
        self.widen = nn.Linear(128, 256 * 64)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encode(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return self.decode(self.widen(code).view(-1, 256, 8, 8)), mean, spread


def _vae_loss(model: nn.Module, x: Tensor) -> Tensor:
    picture, mean, spread = model(x)
    divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
    loss: Tensor = F.mse_loss(picture, x) + divergence / x.numel()
    return loss


def _vae() -> Spec:
    return Spec(_VAE(), lambda count, device: [torch.randn(count, 3, 64, 64, device=device)], _vae_loss)


def _dcgan_generator() -> Spec:
    widths = (512, 256, 128, 64)
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False),
        nn.BatchNorm2d(512),
        nn.ReLU(True),
    ]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [
            nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(True),
        ]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()]

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 100, 1, 1, device=device), torch.randn(count, 3, 64, 64, device=device)]

    return Spec(nn.Sequential(*layers), batch, lambda model, x, y: F.l1_loss(model(x), y))


class _ResidualBlock(nn.Module):
    """Of a diffusion U-Net: group norm, SiLU, convolution, and the time step added in the middle."""

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


def _conv3d_net() -> Spec:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128), (128, 256)):
        layers += [
            nn.Conv3d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm3d(outputs),
            nn.ReLU(inplace=True),
            nn.MaxPool3d((1, 2, 2) if inputs == 3 else 2),
        ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 101))

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 16, 112, 112, device=device),
            torch.randint(0, 101, (count,), device=device),
        ]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x), y))


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


class _Recommender(nn.Module):
    def __init__(self, tables: int = 8, rows: int = 50000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(width + (tables + 1) * tables // 2, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        base = self.dense(dense)
        parts = torch.stack([base, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(parts, parts.transpose(1, 2))
        rows, columns = torch.tril_indices(parts.shape[1], parts.shape[1], -1)
        out: Tensor = self.top(torch.cat([base, products[:, rows, columns]], 1))
        return out.squeeze(1)


def _recommender() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 13, device=device),
            torch.randint(0, 50000, (count, 8, 4), device=device),
            torch.rand(count, device=device),
        ]

    def loss(model: nn.Module, dense: Tensor, ids: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(dense, ids), target)

    return Spec(_Recommender(), batch, loss)


_TORCHVISION = (
    "resnet18", "resnet34", "resnet50", "wide_resnet50_2", "resnext50_32x4d", "vgg16", "mobilenet_v2",
    "mobilenet_v3_large", "shufflenet_v2_x1_0", "densenet121", "efficientnet_b0", "efficientnet_v2_s",
    "regnet_y_800mf", "regnet_x_1_6gf", "convnext_tiny", "vit_b_16", "vit_b_32", "swin_t",
)  # fmt: skip

MODELS: dict[str, Callable[[], Spec]] = {
    **{name: (lambda name=name: vision(name)) for name in _TORCHVISION},  # type: ignore[misc]
    "inception_v3": lambda: vision("inception_v3", size=299),
    "deeplabv3_resnet50": lambda: _segmentation("deeplabv3_resnet50"),
    "fcn_resnet50": lambda: _segmentation("fcn_resnet50"),
    **REFERENCE_SEQUENCES,
    "unet": _unet,
    "mlp": _mlp,
    "vae": _vae,
    "dcgan_generator": _dcgan_generator,
    "diffusion_unet": _diffusion_unet,
    "conv3d_net": _conv3d_net,
    "mlp_mixer": _mlp_mixer,
    "recommender": _recommender,
}
