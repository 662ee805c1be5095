"""Image generation, compression, inpainting, frame interpolation and super-resolution."""

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.blocks import DiffusionUNet, UNet, add_noise, adversarial
from bench.lib.models.layers import Residual, conv_norm, sequential
from bench.lib.models.parts import (
    Spec,
    batch_of,
    freeze,
    labelled,
    no_loss,
    uniform,
    unlabelled,
    with_targets,
)

CASES = CaseSet()
case = CASES.case


@case("adamw", "amp_fp16", 30, ema=True, clip=True)
def mugs_from_noise() -> Spec:
    """Build a class-conditional diffusion model for 56-pixel images. The class is dropped for one sample in ten."""

    def loss(model: nn.Module, x: Tensor, kind: Tensor) -> Tensor:
        mixed, noise, time = add_noise(x)
        hidden = torch.rand(len(x), device=x.device) < 0.1
        return F.mse_loss(model(mixed, time, kind.masked_fill(hidden, 24)).float(), noise)

    return Spec(DiffusionUNet(3, 64, (1, 2, 3), classes=25), labelled(3, 56, 56, classes=24), loss)


@case("radam", "fp32", 14)
def consistent_in_one_step() -> Spec:
    """Return a consistency model on 48-pixel images with an EMA teacher."""
    now = DiffusionUNet(3, 48, (1, 2, 2, 3))
    slow = copy.deepcopy(now)
    freeze(slow)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        mixed, _, time = add_noise(x)
        with torch.no_grad():
            target = model["slow"](0.9 * mixed + 0.1 * x, 0.9 * time)
        apart = (model["now"](mixed, time) - target).pow(2).flatten(1).sum(1)
        return ((apart + 0.01).sqrt() - 0.1).mean()

    return Spec(nn.ModuleDict({"now": now, "slow": slow}), unlabelled(3, 48, 48), loss)


class _VAE(nn.Module):
    """A variational autoencoder on 96-pixel images with 16 latent values."""

    def __init__(self, widths: tuple[int, ...] = (3, 48, 96, 192, 256), codes: int = 16) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.enter = sequential(
            *(sequential(conv_norm(a, b, 3, 2, act=nn.SiLU)) for a, b in pairs),
            nn.Flatten(),
            nn.Linear(256 * 36, 2 * codes),
        )
        grown = [
            sequential(nn.Upsample(scale_factor=2), conv_norm(b, max(a, 24), act=nn.SiLU))
            for a, b in reversed(pairs)
        ]
        self.leave = sequential(
            nn.Linear(codes, 256 * 36), nn.Unflatten(1, (256, 6, 6)), *grown, nn.Conv2d(24, 3, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.enter(x).float().chunk(2, 1)
        generated = self.leave(mean + torch.randn_like(mean) * (0.5 * spread).exp())
        apart = 0.5 * (mean.pow(2) + spread.exp() - spread - 1).sum(1).mean()
        return F.binary_cross_entropy_with_logits(generated.float(), x, reduction="sum") / len(x) + 4 * apart


@case("adam", "amp_bf16", 110)
def toys_as_few_numbers() -> Spec:
    return Spec(_VAE(), unlabelled(3, 96, 96), lambda m, x: m(x))


@case("adam", "fp32", 18)
def holes_in_facades() -> Spec:
    """Build an inpainting model with a discriminator on 144-pixel images (a context encoder)."""
    widths = (3, 48, 96, 192, 384)
    down = [
        nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
        for a, b in itertools.pairwise(widths)
    ]
    discriminator = sequential(*copy.deepcopy(down), nn.Flatten(), nn.Linear(384 * 81, 1))
    up = [
        nn.Sequential(nn.ConvTranspose2d(b, a, 4, 2, 1), nn.BatchNorm2d(a), nn.ReLU())
        for a, b in reversed(list(itertools.pairwise((24, *widths[1:]))))
    ]
    generator = sequential(*down, conv_norm(384, 384), *up, nn.Conv2d(24, 3, 3, padding=1), nn.Sigmoid())

    def discriminator_loss(discriminator: nn.Module, batch: list[Tensor], generated: Tensor) -> Tensor:
        return F.softplus(-discriminator(batch[0])).mean() + F.softplus(discriminator(generated)).mean()

    turns = adversarial(
        lambda generator, batch: generator(
            F.pad(torch.zeros_like(batch[0][..., 36:108, 36:108]), (36, 36, 36, 36), value=1.0) * batch[0]
        ),
        discriminator_loss,
        lambda discriminator, batch, generated: (
            0.01 * F.softplus(-discriminator(generated)).mean() + F.mse_loss(generated, batch[0])
        ),
    )
    return Spec(
        nn.ModuleDict({"generator": generator, "discriminator": discriminator}),
        unlabelled(3, 144, 144),
        no_loss,
        turns,
    )


class _FrameInterpolation(nn.Module):
    """A frame interpolation model that predicts the flow from both frames and a blending mask."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        down = [
            sequential(conv_norm(a, b, 5, 2 if a > 6 else 1, act=nn.PReLU), conv_norm(b, b, act=nn.PReLU))
            for a, b in itertools.pairwise((6, *widths))
        ]
        up = [sequential(conv_norm(a + b, b, act=nn.PReLU)) for a, b in itertools.pairwise(widths[::-1])]
        self.move = UNet(down, up, nn.Conv2d(32, 5, 3, padding=1))

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        ways, trust = self.move(torch.cat([before, after], 1)).float().split((4, 1), 1)
        still = torch.eye(2, 3, device=before.device).expand(len(before), -1, -1)
        grid = F.affine_grid(still, list(before.shape), align_corners=False)
        first, second = (
            F.grid_sample(
                frame, grid + 0.1 * way.permute(0, 2, 3, 1), padding_mode="border", align_corners=False
            )
            for frame, way in zip((before, after), ways.chunk(2, 1), strict=True)
        )
        return torch.lerp(first, second, trust.sigmoid())


@case("adamw", "amp_bf16", 10)
def frames_between() -> Spec:
    frame = uniform(3, 192, 256)
    return Spec(
        _FrameInterpolation(), batch_of(frame, frame, frame), lambda m, a, b, y: (m(a, b) - y).abs().mean()
    )


class _DivisiveNorm(nn.Module):
    """Generalized divisive normalization, or its inverse."""

    def __init__(self, width: int, *, back: bool = False) -> None:
        super().__init__()
        self.mix, self.back = nn.Conv2d(width, width, 1), back

    def forward(self, x: Tensor) -> Tensor:
        size = self.mix(x * x).abs() + 1e-3
        return x * (size.sqrt() if self.back else size.rsqrt())


class _Compression(nn.Module):
    """Learned image compression with a scale hyperprior."""

    def __init__(self, width: int = 112) -> None:
        super().__init__()

        def smaller(inputs: int, kernel: int = 5, stride: int = 2) -> nn.Module:
            return nn.Conv2d(inputs, width, kernel, stride, kernel // 2)

        def larger(outputs: int = width) -> nn.Module:
            return nn.ConvTranspose2d(width, outputs, 5, 2, 2, 1)

        self.enter = sequential(
            *(sequential(smaller(a), _DivisiveNorm(width)) for a in (3, width, width)), smaller(width)
        )
        self.leave = sequential(
            *(sequential(larger(), _DivisiveNorm(width, back=True)) for _ in range(3)), larger(3)
        )
        self.squeeze = sequential(smaller(width, 3, 1), nn.ReLU(), smaller(width), nn.ReLU(), smaller(width))
        self.spread = sequential(
            larger(), nn.ReLU(), larger(), nn.ReLU(), smaller(width, 3, 1), nn.Softplus()
        )

    def forward(self, x: Tensor) -> Tensor:
        code = self.enter(x)
        hyper = self.squeeze(code.abs())
        spread = self.spread(hyper + torch.rand_like(hyper) - 0.5) + 0.1
        code = code + torch.rand_like(code) - 0.5
        chance = torch.special.ndtr((code.abs() + 0.5) / spread) - torch.special.ndtr(
            (code.abs() - 0.5) / spread
        )
        bits = -chance.clamp(min=1e-9).log2().sum() / x[:, 0].numel()
        return bits + 0.01 * 255**2 * F.mse_loss(self.leave(code), x)


@case("adam", "fp32", 8, clip=True)
def pictures_in_few_bits() -> Spec:
    return Spec(_Compression(), unlabelled(3, 256, 256), lambda m, x: m(x))


class _DenseBlock(nn.Module):
    """A residual dense block of five convolutions."""

    def __init__(self, width: int = 48, grow: int = 24) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(width + grow * place, grow if place < 4 else width, 3, padding=1) for place in range(5)
        )

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for layer in self.layers[:-1]:
            seen.append(F.leaky_relu(layer(torch.cat(seen, 1)), 0.2, inplace=True))
        out: Tensor = x + 0.2 * self.layers[-1](torch.cat(seen, 1))
        return out


@case("adam", "amp_fp16", 9, channels_last=True)
def sharper_by_thick_blocks() -> Spec:
    """Build a super-resolution model from 52 to 208 pixels (ESRGAN's generator)."""

    def plain(outputs: int = 48) -> nn.Module:
        return nn.Conv2d(48, outputs, 3, padding=1)

    body = Residual(*(Residual(_DenseBlock(), _DenseBlock(), _DenseBlock()) for _ in range(4)), plain())
    larger = [sequential(nn.Upsample(scale_factor=2), plain(), nn.LeakyReLU(0.2)) for _ in range(2)]
    model = sequential(nn.Conv2d(3, 48, 3, padding=1), body, *larger, plain(3))
    return Spec(
        model, with_targets(3, 52, 52, outputs=(3, 208, 208)), lambda m, x, y: F.l1_loss(m(x).float(), y)
    )
