"""Networks that draw, mend or grow pictures: diffusion, adversaries, restoration. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.block_parts import Levels, against
from bench.case import CaseSet
from bench.fourth_makers import Noise, noisy
from bench.layer_parts import Residual, joined, normed
from bench.model_parts import Spec, alone, freeze, made, no_loss, numbers, perceptron, shares, to_numbers

FIFTH_MAKERS = CaseSet()
case = FIFTH_MAKERS.case


def _told_noise(model: nn.Module, x: Tensor) -> Tensor:
    mixed, noise, time = noisy(x)
    return F.mse_loss(model(mixed, time).float(), noise)


@case("adamw", "amp_fp16", 20, clip=True, ema=True)
def faces_at_80() -> Spec:
    return Spec(Noise(3, 64, (1, 2, 4, 4)), alone(3, 80, 80), _told_noise)


@case("adam", "fp32", 10)
def rain_after_rain() -> Spec:
    """The next map of rain, drawn from noise beside the last four."""

    def loss(model: nn.Module, past: Tensor, coming: Tensor) -> Tensor:
        mixed, noise, time = noisy(coming)
        return F.mse_loss(model(torch.cat([mixed, past], 1), time), noise)

    return Spec(Noise(5, 32, (1, 2, 4, 8), told=1), made(numbers(4, 128, 128), numbers(1, 128, 128)), loss)


@case("adamw_fused", "amp_bf16", 12, accumulate=2)
def only_looks_learn() -> Spec:
    """Codes of 32 told by words; only lines of attention go on learning."""
    model = Noise(4, 160, (1, 2, 4), looking=3, words=768)
    freeze(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name for part in (".ask", ".answer", ".leave.weight")))

    def loss(model: nn.Module, x: Tensor, words: Tensor) -> Tensor:
        mixed, noise, time = noisy(x)
        return F.mse_loss(model(mixed, time, words=words).float(), noise)

    return Spec(model, made(numbers(4, 32, 32), numbers(77, 768)), loss)


@case("adamw", "amp_bf16", 24)
def voices_as_maps() -> Spec:
    """Maps of 80 pitches over 160 moments, straight from noise to voice (flow matching)."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        time, noise = torch.rand(len(x), device=x.device), torch.randn_like(x)
        share = time.view(-1, 1, 1, 1)
        return F.mse_loss(model(share * x + (1 - share) * noise, time * 1000).float(), x - noise)

    return Spec(Noise(1, 48, (1, 2, 3, 4)), alone(1, 80, 160), loss)


# Adversaries.


class _Styled(nn.Module):
    """A style bends every layer of a maker; noise is added on the way (StyleGAN in few lines)."""

    def __init__(self, widths: tuple[int, ...] = (256, 256, 128, 64, 32)) -> None:
        super().__init__()
        self.style, self.first = perceptron(128, 128, 128, 128), nn.Parameter(torch.randn(1, widths[0], 6, 6))
        pairs = list(itertools.pairwise(widths))
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.bends = nn.ModuleList(nn.Linear(128, 2 * b) for _, b in pairs)
        self.head = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, code: Tensor) -> Tensor:
        style, x = self.style(code), self.first.expand(len(code), -1, -1, -1)
        for layer, bend in zip(self.layers, self.bends, strict=True):
            x = layer(F.interpolate(x, scale_factor=2, mode="bilinear"))
            size, move = bend(style)[:, :, None, None].chunk(2, 1)
            x = F.leaky_relu(F.instance_norm(x + 0.1 * torch.randn_like(x[:, :1])) * (1 + size) + move, 0.2)
        out: Tensor = self.head(x)
        return out


def _halved(*widths: int, act: type[nn.Module] = nn.LeakyReLU) -> list[nn.Module]:
    """Plain convolutions with strides of two."""
    return [part for a, b in itertools.pairwise(widths) for part in (nn.Conv2d(a, b, 4, 2, 1), act(0.2))]


@case("adam", "fp32", 24)
def styled_flowers() -> Spec:
    """Pictures of 96; the judge pays for its slope at real ones."""
    judge = joined(_halved(3, 64, 128, 256, 256), nn.Flatten(), nn.Linear(256 * 36, 1))

    def judged(judge: nn.Module, batch: list[Tensor], drawn: Tensor) -> Tensor:
        real = batch[0].requires_grad_(True)
        told = judge(real)
        (slope,) = torch.autograd.grad(told.sum(), real, create_graph=True)
        return (
            F.softplus(judge(drawn)).mean()
            + F.softplus(-told).mean()
            + 5 * slope.pow(2).sum((1, 2, 3)).mean()
        )

    turns = against(
        lambda make, batch: make(torch.randn(len(batch[0]), 128, device=batch[0].device)),
        judged,
        lambda judge, batch, drawn: F.softplus(-judge(drawn)).mean(),
    )
    return Spec(nn.ModuleDict({"make": _Styled(), "judge": judge}), alone(3, 96, 96), no_loss, turns)


@case("adam", "amp_bf16", 6)
def maps_from_the_air() -> Spec:
    """A U-Net draws a map of 256 from an aerial picture; a judge sees both, piece by piece."""
    widths = (64, 128, 256, 512, 512)
    down = [joined(_halved(a, b), nn.InstanceNorm2d(b)) for a, b in itertools.pairwise((3, *widths))]
    up = [
        joined(nn.Conv2d(a + b, b, 3, padding=1), nn.InstanceNorm2d(b), nn.ReLU(), nn.Dropout(0.2))
        for a, b in itertools.pairwise(widths[::-1])
    ]
    make = Levels(down, up, joined(nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()))
    judge = joined(_halved(6, 64, 128, 256), nn.Conv2d(256, 1, 4, padding=1))
    turns = against(
        lambda make, batch: make(batch[0]),
        lambda judge, batch, drawn: (
            (judge(torch.cat([batch[0], batch[1]], 1)) - 1).pow(2).mean()
            + judge(torch.cat([batch[0], drawn], 1)).pow(2).mean()
        ),
        lambda judge, batch, drawn: (
            (judge(torch.cat([batch[0], drawn], 1)) - 1).pow(2).mean()
            + 10 * F.l1_loss(drawn.float(), batch[1])
        ),
    )
    picture = shares(3, 256, 256)
    return Spec(nn.ModuleDict({"make": make, "judge": judge}), made(picture, picture), no_loss, turns)


# Mended and grown.


class _Weighed(nn.Module):
    """Channels weighed by their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = joined(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 16, 1), nn.ReLU(), nn.Conv2d(width // 16, width, 1), nn.Sigmoid()
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.weigh(x)
        return out


@case("adam", "fp32", 12)
def sharper_by_weighed_channels() -> Spec:
    """Shortcuts within shortcuts, pictures of 56 to 168 (RCAN)."""

    def plain() -> nn.Module:
        return nn.Conv2d(64, 64, 3, padding=1)

    groups = [
        Residual(*(Residual(plain(), nn.ReLU(True), plain(), _Weighed(64)) for _ in range(5)), plain())
        for _ in range(3)
    ]
    larger = [nn.Conv2d(64, 576, 3, padding=1), nn.PixelShuffle(3), nn.Conv2d(64, 3, 3, padding=1)]
    model = joined(nn.Conv2d(3, 64, 3, padding=1), Residual(*groups, plain()), *larger)
    return Spec(
        model,
        to_numbers(3, 56, 56, outputs=(3, 168, 168)),
        lambda m, x, y: F.l1_loss(m(x), y),
    )


@case("adam", "amp_fp16", 4, channels_last=True)
def seen_in_the_dark() -> Spec:
    """Raw pictures in four colours of 256, twice as large at the end."""
    widths = (32, 64, 128, 256)
    down = [
        joined(
            [nn.MaxPool2d(2)] if a > 4 else [], normed(a, b, act=nn.LeakyReLU), normed(b, b, act=nn.LeakyReLU)
        )
        for a, b in itertools.pairwise((4, *widths))
    ]
    up = [joined(normed(a + b, b, act=nn.LeakyReLU)) for a, b in itertools.pairwise(widths[::-1])]
    model = Levels(down, up, joined(nn.Conv2d(32, 12, 1), nn.PixelShuffle(2)))
    return Spec(
        model,
        to_numbers(4, 256, 256, outputs=(3, 512, 512)),
        lambda m, x, y: F.l1_loss(m(x).float(), y),
    )


class _Growing(nn.Module):
    """A small rule for every cell and its neighbours, applied again and again (a neural cellular automaton)."""

    def __init__(self, channels: int = 16, turns: int = 40) -> None:
        super().__init__()
        self.turns = turns
        self.around = nn.Conv2d(channels, 3 * channels, 3, padding=1, groups=channels, bias=False)
        self.rule = nn.Sequential(nn.Conv2d(3 * channels, 128, 1), nn.ReLU(), nn.Conv2d(128, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.turns):
            awake = torch.rand_like(x[:, :1]) < 0.5
            x = x + self.rule(self.around(x)) * awake
        return x[:, :4]


@case("adam", "fp32", 8)
def cells_that_grow() -> Spec:
    return Spec(_Growing(), to_numbers(16, 56, 56, outputs=(4, 56, 56)), lambda m, x, y: F.mse_loss(m(x), y))
