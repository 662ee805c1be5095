"""Ordinary networks for pictures, as people train them: for cases that no rule was fitted to (`workloads.CASES["everyday"]`).

Like `models`, this file needs torch and torchvision, not Legroom.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.model_parts import Spec, torchvision, vision


def _labelled(*shape: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, *shape, device=device), torch.randint(0, classes, (count,), device=device)]

    return batch


def _only(*shape: int) -> Callable[[int, str], list[Tensor]]:
    return lambda count, device: [torch.randn(count, *shape, device=device)]


def _classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


class _WideBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        out: Tensor = self.conv2(F.relu(self.norm2(self.conv1(y)))) + self.short(x)
        return out


def _wide_residual() -> Spec:
    """A wide residual network for CIFAR's small pictures."""
    widths = (16, 96, 192, 384)
    blocks: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    for level, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        blocks += [_WideBlock(inputs, outputs, 1 if level == 0 else 2), _WideBlock(outputs, outputs, 1), _WideBlock(outputs, outputs, 1)]  # fmt: skip
    head = [nn.BatchNorm2d(384), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(384, 100)]
    return Spec(nn.Sequential(*blocks, *head), _labelled(3, 32, 32, classes=100), _classified)


def _small_vision_transformer() -> Spec:
    model = torchvision().models.VisionTransformer(
        image_size=224, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536, dropout=0.1
    )
    return Spec(model, _labelled(3, 224, 224, classes=1000), _classified)


class _Block(nn.Module):
    """Two convolutions, with group or batch norms."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class _MedicalUNet(nn.Module):
    """A U-Net with bilinear steps upwards."""

    def __init__(self, edge: int = 1, classes: int = 4, first: int = 32) -> None:
        super().__init__()
        widths = [first, 2 * first, 4 * first, 8 * first, 16 * first]
        self.enter = _Block(edge, first)
        self.down = nn.ModuleList(_Block(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(_Block(a + b, a) for a, b in reversed(list(itertools.pairwise(widths))))
        self.head = nn.Conv2d(first, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.enter(x)]
        for block in self.down:
            kept.append(block(F.max_pool2d(kept[-1], 2)))
        y = kept.pop()
        for block in self.up:
            y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True)
            y = block(torch.cat([kept.pop(), y], 1))
        out: Tensor = self.head(y)
        return out


def _overlap_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    scores = model(x)
    share = scores.float().softmax(1)
    wanted = F.one_hot(y, scores.shape[1]).permute(0, 3, 1, 2).float()
    overlap = 2 * (share * wanted).sum((2, 3)) / (share + wanted).sum((2, 3)).clamp(min=1e-6)
    return F.cross_entropy(scores, y) + 1 - overlap.mean()


def _medical_unet() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 1, 224, 224, device=device),
            torch.randint(0, 4, (count, 224, 224), device=device),
        ]

    return Spec(_MedicalUNet(), batch, _overlap_loss)


class _EncodedUNet(nn.Module):
    """A U-Net whose way down is a ResNet-34."""

    def __init__(self) -> None:
        super().__init__()
        body = torchvision().models.resnet34(weights=None)
        self.stem = nn.Sequential(body.conv1, body.bn1, body.relu)
        self.pool = body.maxpool
        self.levels = nn.ModuleList([body.layer1, body.layer2, body.layer3, body.layer4])
        self.up = nn.ModuleList(
            [_Block(512 + 256, 256), _Block(256 + 128, 128), _Block(128 + 64, 64), _Block(64 + 64, 32)]
        )
        self.head = nn.Conv2d(32, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.stem(x)]
        y = self.pool(kept[0])
        for level in self.levels:
            y = level(y)
            kept.append(y)
        y = kept.pop()
        for block in self.up:
            y = block(torch.cat([F.interpolate(y, scale_factor=2), kept.pop()], 1))
        out: Tensor = self.head(F.interpolate(y, scale_factor=2))
        return out


def _encoded_unet() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 256, 256, device=device),
            torch.randint(0, 12, (count, 256, 256), device=device),
        ]

    return Spec(_EncodedUNet(), batch, lambda model, x, y: F.cross_entropy(model(x), y))


class _AdversarialPair(nn.Module):
    """DCGAN: generator and discriminator, both losses in one step."""

    def __init__(self, noise: int = 100, width: int = 64) -> None:
        super().__init__()

        def up(inputs: int, outputs: int, *shape: int) -> list[nn.Module]:
            return [nn.ConvTranspose2d(inputs, outputs, *shape, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]  # fmt: skip

        def down(inputs: int, outputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, True)]  # fmt: skip

        self.noise = noise
        self.make = nn.Sequential(
            *up(noise, 8 * width, 4, 1, 0), *up(8 * width, 4 * width, 4, 2, 1), *up(4 * width, 2 * width, 4, 2, 1),
            *up(2 * width, width, 4, 2, 1), nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
        self.judge = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True), *down(width, 2 * width),
            *down(2 * width, 4 * width), *down(4 * width, 8 * width), nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False),
        )  # fmt: skip

    def forward(self, real: Tensor) -> Tensor:
        made = self.make(torch.randn(real.shape[0], self.noise, 1, 1, device=real.device))
        told = self.judge(real).flatten(), self.judge(made.detach()).flatten(), self.judge(made).flatten()
        wanted = [torch.full_like(scores, value) for scores, value in zip(told, (0.9, 0.0, 1.0), strict=True)]
        losses = [F.binary_cross_entropy_with_logits(a, b) for a, b in zip(told, wanted, strict=True)]
        return torch.stack(losses).sum()


class _ResidualInstance(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


def _painter() -> Spec:
    """CycleGAN's generator."""
    layers: list[nn.Module] = [
        nn.ReflectionPad2d(3),
        nn.Conv2d(3, 64, 7),
        nn.InstanceNorm2d(64),
        nn.ReLU(True),
    ]
    for width in (64, 128):
        layers += [nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.ReLU(True)]
    layers += [_ResidualInstance(256) for _ in range(6)]
    for width in (256, 128):
        layers += [nn.ConvTranspose2d(width, width // 2, 3, 2, 1, 1), nn.InstanceNorm2d(width // 2), nn.ReLU(True)]  # fmt: skip
    layers += [nn.ReflectionPad2d(3), nn.Conv2d(64, 3, 7), nn.Tanh()]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.l1_loss(model(model(x)), x)

    return Spec(nn.Sequential(*layers), _only(3, 256, 256), loss)


class _NoiseBlock(nn.Module):
    """A residual block that knows how noisy its picture is."""

    def __init__(self, inputs: int, outputs: int, known: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.know = nn.Linear(known, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.drop = nn.Dropout(0.1)
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.know(F.silu(known))[:, :, None, None]
        out: Tensor = self.conv2(self.drop(F.silu(self.norm2(y)))) + self.short(x)
        return out


class _Look(nn.Module):
    """Attention of every place of a picture to every other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.enter, self.leave = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        q, k, v = self.enter(self.norm(x)).view(n, 3, 4, c // 4, h * w).transpose(3, 4).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = x + self.leave(y.transpose(2, 3).reshape(n, c, h, w))
        return out


class _NoiseNet(nn.Module):
    """DDPM's U-Net for pictures of 32."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        known = 4 * width
        self.width = width
        self.know = nn.Sequential(nn.Linear(width, known), nn.SiLU(), nn.Linear(known, known))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        widths = [width, 2 * width, 2 * width]
        self.down, self.shrink, kept, now = nn.ModuleList(), nn.ModuleList(), [width], width
        for level, outputs in enumerate(widths):
            for _ in range(2):
                self.down.append(nn.ModuleList([_NoiseBlock(now, outputs, known), _Look(outputs) if level == 1 else nn.Identity()]))  # fmt: skip
                now = outputs
                kept.append(now)
            if level < 2:
                self.shrink.append(nn.Conv2d(now, now, 3, 2, 1))
                kept.append(now)
        self.middle = nn.ModuleList([_NoiseBlock(now, now, known), _NoiseBlock(now, now, known)])
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level, outputs in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(nn.ModuleList([_NoiseBlock(now + kept.pop(), outputs, known), _Look(outputs) if level == 1 else nn.Identity()]))  # fmt: skip
                now = outputs
            if level:
                self.grow.append(nn.Conv2d(now, now, 3, padding=1))
        self.leave = nn.Sequential(nn.GroupNorm(32, now), nn.SiLU(), nn.Conv2d(now, 3, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        half = self.width // 2
        speeds = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
        angles = time[:, None].float() * speeds
        known = self.know(torch.cat([angles.sin(), angles.cos()], 1))
        y = self.enter(x)
        kept = [y]
        for index, (block, look) in enumerate(self.down):
            y = look(block(y, known))
            kept.append(y)
            if index in (1, 3):
                y = self.shrink[index // 2](y)
                kept.append(y)
        for block in self.middle:
            y = block(y, known)
        for index, (block, look) in enumerate(self.up):
            y = look(block(torch.cat([y, kept.pop()], 1), known))
            if index in (2, 5):
                y = self.grow[index // 3](F.interpolate(y, scale_factor=2))
        out: Tensor = self.leave(y)
        return out


def _noise_loss(model: Any, x: Tensor) -> Tensor:
    time = torch.randint(0, 1000, (x.shape[0],), device=x.device)
    noise = torch.randn_like(x)
    share = torch.cos(time / 1000 * math.pi / 2)[:, None, None, None]
    return F.mse_loss(model(share * x + (1 - share**2).sqrt() * noise, time).float(), noise)


class _Detector(nn.Module):
    """A ResNet-50 with a feature pyramid and heads for classes and boxes at every place (RetinaNet, FCOS)."""

    def __init__(self, classes: int = 20) -> None:
        super().__init__()
        body = torchvision().models.resnet50(weights=None)
        self.stem = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool, body.layer1)
        self.levels = nn.ModuleList([body.layer2, body.layer3, body.layer4])
        self.side = nn.ModuleList(nn.Conv2d(width, 256, 1) for width in (512, 1024, 2048))
        self.smooth = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in range(3))
        self.further = nn.Conv2d(256, 256, 3, 2, 1)
        self.kind, self.box = self._head(classes), self._head(4)

    @staticmethod
    def _head(outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Conv2d(256, 256, 3, padding=1), nn.GroupNorm(32, 256), nn.ReLU(True)]
        return nn.Sequential(*layers, nn.Conv2d(256, outputs, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.stem(x)
        found = []
        for level, side in zip(self.levels, self.side, strict=True):
            y = level(y)
            found.append(side(y))
        for index in (1, 0):
            found[index] = found[index] + F.interpolate(found[index + 1], scale_factor=2)
        found = [smooth(one) for smooth, one in zip(self.smooth, found, strict=True)]
        found.append(self.further(found[-1]))
        return tuple(torch.cat([head(one).flatten(2) for one in found], 2) for head in (self.kind, self.box))  # type: ignore[return-value]


def _detector() -> Spec:
    places = sum((256 // step) ** 2 for step in (8, 16, 32, 64))

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 256, 256, device=device),
            torch.randint(0, 21, (count, places), device=device),
            torch.rand(count, 4, places, device=device),
        ]

    def loss(model: nn.Module, x: Tensor, kinds: Tensor, boxes: Tensor) -> Tensor:
        scores, told = model(x)
        wanted = F.one_hot(kinds, 21)[..., 1:].transpose(1, 2).float()
        each = F.binary_cross_entropy_with_logits(scores.float(), wanted, reduction="none")
        share = scores.float().sigmoid()
        focal = (wanted * (1 - share) ** 2 + (1 - wanted) * share**2) * each
        inside = (kinds > 0).unsqueeze(1)
        near = F.smooth_l1_loss(told.float(), boxes, reduction="none") * inside
        return (focal.sum() + near.sum()) / inside.sum().clamp(min=1)

    return Spec(_Detector(), batch, loss)


class _Pose(nn.Module):
    """A ResNet-18 and three steps up to heat maps of joints."""

    def __init__(self, joints: int = 17) -> None:
        super().__init__()
        body = torchvision().models.resnet18(weights=None)
        self.body = nn.Sequential(*list(body.children())[:-2])
        layers: list[nn.Module] = []
        for inputs in (512, 256, 256):
            layers += [nn.ConvTranspose2d(inputs, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True)]  # fmt: skip
        self.head = nn.Sequential(*layers, nn.Conv2d(256, joints, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def _pose() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 256, 192, device=device),
            torch.rand(count, 17, 64, 48, device=device),
        ]

    return Spec(_Pose(), batch, lambda model, x, y: F.mse_loss(model(x).float(), y))


class _Contrasted(nn.Module):
    """A ResNet-18 that sees two views of each picture (SimCLR)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torchvision().models.resnet18(weights=None, num_classes=512)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def _contrasted() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 96, 96, device=device) for _ in range(2)]

    def loss(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        found = F.normalize(model(torch.cat([a, b])).float(), dim=1)
        scores = found @ found.t() / 0.2
        itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        other = torch.arange(len(scores), device=scores.device).roll(len(a))
        return F.cross_entropy(scores.masked_fill(itself, float("-inf")), other)

    return Spec(_Contrasted(), batch, loss)


def _spectrograms() -> Spec:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 32, 64, 128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.AvgPool2d(2)]  # fmt: skip
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, 50))
    return Spec(model, _labelled(1, 64, 400, classes=50), _classified)


def _digits() -> Spec:
    """What beginners train first."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(1),
    )  # fmt: skip
    return Spec(model, _labelled(1, 28, 28, classes=10), lambda model, x, y: F.nll_loss(model(x), y))


EVERYDAY_PICTURES: dict[str, Callable[[], Spec]] = {
    "wide_residual": _wide_residual,
    "small_vision_transformer": _small_vision_transformer,
    "medical_unet": _medical_unet,
    "encoded_unet": _encoded_unet,
    "adversarial": lambda: Spec(_AdversarialPair(), _only(3, 64, 64), lambda model, x: model(x)),
    "painter": _painter,
    "noise_net": lambda: Spec(_NoiseNet(), _only(3, 32, 32), _noise_loss),
    "detector": _detector,
    "pose": _pose,
    "contrasted": _contrasted,
    "spectrograms": _spectrograms,
    "digits": _digits,
    "resnet152": lambda: vision("resnet152"),
    "efficientnet_b3": lambda: vision("efficientnet_b3", size=300),
    "convnext_base": lambda: vision("convnext_base"),
    "swin_s": lambda: vision("swin_s"),
    "vgg19_bn": lambda: vision("vgg19_bn"),
}
