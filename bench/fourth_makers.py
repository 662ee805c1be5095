"""Networks that make or mend pictures: codes, diffusion, restoration. Cases stand above the model they train."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, joined
from bench.model_parts import Spec, alone, kinds, labelled, made, numbers, to_numbers

FOURTH_MAKERS = CaseSet()
case = FOURTH_MAKERS.case


@case("nadam", "amp_bf16", 64)
def flaws_of_surfaces() -> Spec:
    """Pictures of 128 through a code of 200 and back, halved and doubled by strides."""
    widths = (3, 32, 32, 64, 128)
    down: list[nn.Module] = []
    up: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        down += [
            nn.Conv2d(inputs, outputs, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.LeakyReLU(0.2),
        ]
        up = [nn.ConvTranspose2d(outputs, inputs, 4, 2, 1), nn.LeakyReLU(0.2), *up]
    model = joined(
        down,
        nn.Conv2d(128, 200, 8),
        nn.ConvTranspose2d(200, 128, 8),
        nn.LeakyReLU(0.2),
        up[:-1],
        nn.Sigmoid(),
    )
    return Spec(model, alone(3, 128, 128), lambda m, x: F.mse_loss(m(x).float(), x))


class _Coded(nn.Module):
    """A variational autoencoder of residual blocks with group norms, as codes for diffusion are learnt."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256), code: int = 4) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> Residual:
            layers: list[nn.Module] = []
            for first in (inputs, outputs):
                layers += [nn.GroupNorm(32, first), nn.SiLU(), nn.Conv2d(first, outputs, 3, padding=1)]
            return Residual(*layers, short=nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None)

        down: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1)]
        up: list[nn.Module] = [nn.GroupNorm(32, widths[0]), nn.SiLU(), nn.Conv2d(widths[0], 3, 3, padding=1)]
        for inputs, outputs in itertools.pairwise((widths[0], *widths)):
            down += [block(inputs, outputs), nn.Conv2d(outputs, outputs, 3, 2, 1)]
            up = [
                block(outputs, inputs),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(inputs, inputs, 3, padding=1),
                *up,
            ]
        self.read = joined(down, block(widths[-1], widths[-1]), nn.Conv2d(widths[-1], 2 * code, 1))
        self.write = joined(nn.Conv2d(code, widths[-1], 3, padding=1), block(widths[-1], widths[-1]), up)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.read(x).float().chunk(2, 1)
        told = self.write(mean + torch.randn_like(mean) * (0.5 * spread).exp())
        far = -0.5 * (1 + spread - mean**2 - spread.exp()).mean()
        return F.l1_loss(told.float(), x) + 1e-3 * far


@case("adamw", "amp_fp16", 6, clip=True)
def codes_for_later() -> Spec:
    return Spec(_Coded(), alone(3, 176, 176), lambda m, x: m(x))


class _Step(nn.Module):
    """A residual block that is told the time, and after it, where asked for, attention over all places and a text's words."""

    def __init__(self, inputs: int, outputs: int, time: int, *, heads: int = 0, words: int = 0) -> None:
        super().__init__()
        self.first = joined(nn.GroupNorm(16, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.second = joined(nn.GroupNorm(16, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.time, self.heads = nn.Linear(time, outputs), heads
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        if heads:
            self.norm, self.ask, self.leave = (
                nn.GroupNorm(16, outputs),
                nn.Linear(outputs, outputs),
                nn.Linear(outputs, outputs),
            )
            self.answer = nn.Linear(words or outputs, 2 * outputs)

    def forward(self, x: Tensor, time: Tensor, words: Tensor | None) -> Tensor:
        y: Tensor = self.second(self.first(x) + self.time(F.silu(time))[:, :, None, None]) + self.short(x)
        if not self.heads:
            return y
        places = self.norm(y).flatten(2).transpose(1, 2)
        known = self.answer(places if words is None else words)
        q, k, v = (
            one.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for one in (self.ask(places), *known.chunk(2, 2))
        )
        looked = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return y + self.leave(looked).transpose(1, 2).reshape(y.shape)


class Noise(nn.Module):
    """A U-Net that tells the noise of a picture; two blocks on each level, attention on the last ones."""

    def __init__(
        self, channels: int, width: int, times: tuple[int, ...], *, told: int = 0, looking: int = 1, classes: int = 0, words: int = 0
    ) -> None:  # fmt: skip
        super().__init__()
        time, widths = 4 * width, [width * more for more in times]
        self.width, self.kinds = width, nn.Embedding(classes, time) if classes else None
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter, self.leave = nn.Conv2d(channels, width, 3, padding=1), joined(nn.GroupNorm(16, width), nn.SiLU(), nn.Conv2d(width, told or channels, 3, padding=1))  # fmt: skip
        levels = list(enumerate(itertools.pairwise((width, *widths))))

        def step(level: int, inputs: int, outputs: int) -> _Step:
            return _Step(
                inputs,
                outputs,
                time,
                heads=outputs // 32 if level >= len(times) - looking else 0,
                words=words,
            )

        self.down = nn.ModuleList(
            nn.ModuleList([step(level, a, b), step(level, b, b)]) for level, (a, b) in levels
        )
        self.middle = step(len(times), widths[-1], widths[-1])
        self.up = nn.ModuleList(
            nn.ModuleList([step(level, 2 * b, b), step(level, 2 * b, a)]) for level, (a, b) in levels
        )
        self.smaller = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for b in widths[:-1])
        self.larger = nn.ModuleList(nn.Conv2d(b, b, 3, padding=1) for b in widths[:-1])

    def forward(
        self, x: Tensor, time: Tensor, kind: Tensor | None = None, words: Tensor | None = None
    ) -> Tensor:
        half = self.width // 2
        turned = time[:, None] * torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
        known = self.time(torch.cat([turned.cos(), turned.sin()], 1))
        if self.kinds is not None:
            known = known + self.kinds(kind)
        x, kept = self.enter(x), []
        for level, blocks in enumerate(self.down):
            x = self.smaller[level - 1](x) if level else x
            for block in blocks:
                x = block(x, known, words)
                kept.append(x)
        x = self.middle(x, known, words)
        for level in reversed(range(len(self.up))):
            for block in self.up[level]:
                x = block(torch.cat([x, kept.pop()], 1), known, words)
            if level:
                x = self.larger[level - 1](F.interpolate(x, scale_factor=2))
        out: Tensor = self.leave(x)
        return out


def noisy(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A picture with noise, the noise, and the time that says how much of it there is."""
    time, noise = torch.rand(len(x), device=x.device), torch.randn_like(x)
    angle = (time * math.pi / 2).view(-1, 1, 1, 1)
    return angle.cos() * x + angle.sin() * noise, noise, time * 1000


@case("adam", "fp32", 128, ema=True)
def clothes_by_kind() -> Spec:
    """Grey pictures of 28 (padded to 32) and what they show."""

    def loss(model: nn.Module, x: Tensor, kind: Tensor) -> Tensor:
        mixed, noise, time = noisy(F.pad(x, (2, 2, 2, 2)))
        return F.mse_loss(model(mixed, time, kind), noise)

    return Spec(Noise(1, 32, (1, 2, 4), classes=10), labelled(1, 28, 28, classes=10), loss)


@case("adamw", "amp_bf16", 32, ema=True, clip=True)
def bedrooms() -> Spec:
    """Pictures of 64, attention on the two smallest levels."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        mixed, noise, time = noisy(x)
        return F.mse_loss(model(mixed, time).float(), noise)

    return Spec(Noise(3, 96, (1, 2, 3, 4), looking=2), alone(3, 64, 64), loss)


@case("adamw", "amp_fp16", 16, accumulate=2, clip=True)
def codes_told_by_words() -> Spec:
    """Codes of 40 by 40, every level looks at seventy-seven words that were read before."""

    def loss(model: nn.Module, x: Tensor, words: Tensor) -> Tensor:
        mixed, noise, time = noisy(x)
        return F.mse_loss(model(mixed, time, words=words).float(), noise)

    return Spec(
        Noise(4, 128, (1, 2, 4), looking=3, words=512), made(numbers(4, 40, 40), numbers(77, 512)), loss
    )


@case("adam", "fp32", 12)
def sharper_step_by_step() -> Spec:
    """Diffusion that begins with a small picture, laid beside the noise (SR3)."""

    def loss(model: nn.Module, small: Tensor, large: Tensor) -> Tensor:
        mixed, noise, time = noisy(large)
        beside = F.interpolate(small, scale_factor=4, mode="bicubic")
        return F.l1_loss(model(torch.cat([mixed, beside], 1), time), noise)

    return Spec(Noise(6, 48, (1, 2, 4, 4), told=3), made(numbers(3, 24, 24), numbers(3, 96, 96)), loss)


class _Gates(nn.Module):
    """A block without rectifiers: one half of the channels opens the other (NAFNet)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.after = nn.GroupNorm(1, width), nn.GroupNorm(1, width)
        self.enter, self.deep = (
            nn.Conv2d(width, 2 * width, 1),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width),
        )
        self.weigh, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.wide, self.narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.deep(self.enter(self.norm(x))).chunk(2, 1)
        y = a * b
        x = x + self.leave(y * self.weigh(y.mean((2, 3), keepdim=True)))
        a, b = self.wide(self.after(x)).chunk(2, 1)
        out: Tensor = x + self.narrow(a * b)
        return out


class _Mended(nn.Module):
    def __init__(self, width: int = 24, depths: tuple[int, ...] = (2, 2, 4)) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(len(depths))]
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList(
            nn.Sequential(*(_Gates(a) for _ in range(depth))) for a, depth in zip(widths, depths, strict=True)
        )
        self.smaller = nn.ModuleList(nn.Conv2d(a, 2 * a, 2, 2) for a in widths)
        self.middle = nn.Sequential(*(_Gates(2 * widths[-1]) for _ in range(4)))
        self.larger = nn.ModuleList(
            joined(nn.Conv2d(2 * a, 4 * a, 1), nn.PixelShuffle(2)) for a in reversed(widths)
        )
        self.up = nn.ModuleList(_Gates(a) for a in reversed(widths))

    def forward(self, x: Tensor) -> Tensor:
        y, kept = self.enter(x), []
        for blocks, smaller in zip(self.down, self.smaller, strict=True):
            y = blocks(y)
            kept.append(y)
            y = smaller(y)
        y = self.middle(y)
        for larger, block in zip(self.larger, self.up, strict=True):
            y = block(larger(y) + kept.pop())
        out: Tensor = x + self.leave(y)
        return out


@case("adamw", "fp32", 8)
def shaken_pictures() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return 10 * torch.log10(F.mse_loss(model(x), y) + 1e-8)

    return Spec(_Mended(), to_numbers(3, 192, 192, outputs=(3, 192, 192)), loss)


@case("sgdm", "fp32", 256)
def next_pixel() -> Spec:
    """Pixels told one after another: kernels that see only what came before (PixelCNN)."""

    class Before(nn.Conv2d):
        def __init__(self, inputs: int, outputs: int, size: int, own: bool) -> None:
            super().__init__(inputs, outputs, size, padding=size // 2)
            seen = torch.ones(1, 1, size, size)
            seen[..., size // 2, size // 2 + own :] = 0
            seen[..., size // 2 + 1 :, :] = 0
            self.register_buffer("seen", seen)

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight * self.seen, self.bias, padding=self.padding)

    layers: list[nn.Module] = [Before(1, 64, 7, own=False), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(7):
        layers += [Before(64, 64, 7, own=True), nn.BatchNorm2d(64), nn.ReLU()]
    model = joined(layers, nn.Conv2d(64, 256, 1))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(model(x.float().unsqueeze(1) / 255), x)

    return Spec(model, made(kinds(256, 28, 28)), loss)
