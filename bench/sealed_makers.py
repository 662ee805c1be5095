"""Networks that make pictures, sounds or samples: autoencoders, adversaries, diffusion, flows, sharpening. Cases stand above
the model they train.
"""

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import Spec, Workshop, alone, no_loss, perceptron, squared, to_numbers, zoo

SEALED_MAKERS = CaseSet()
case = SEALED_MAKERS.case


@case("adam", "fp32", 256)
def digits_through_a_neck() -> Spec:
    model = nn.Sequential(*perceptron(784, 512, 128, 32, 128, 512, 784), nn.Sigmoid())
    return Spec(model, alone(784), lambda m, x: F.mse_loss(m(x), x))


class _DigitCodes(nn.Module):
    """The first variational autoencoder that people write."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.mean, self.spread = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.write, self.leave = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.relu(self.enter(x))
        mean, spread = self.mean(y), self.spread(y)
        code = mean + torch.randn_like(spread) * torch.exp(0.5 * spread)
        return torch.sigmoid(self.leave(F.relu(self.write(code)))), mean, spread


@case("adam", "fp32", 128, evaluate=True)
def digit_codes() -> Spec:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        told, mean, spread = model(x)
        far = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        return F.binary_cross_entropy(told, x, reduction="sum") + far

    return Spec(_DigitCodes(), alone(784), loss)


class _LargeCodes(nn.Module):
    """Pictures of 128 as 200 numbers; convolutions with norms, transposed ones back."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256, 512)
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            down += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.LeakyReLU()]
        for inputs, outputs in itertools.pairwise((*widths[:0:-1], 32)):
            up += [nn.ConvTranspose2d(inputs, outputs, 3, 2, 1, 1), nn.BatchNorm2d(outputs), nn.LeakyReLU()]
        self.down = nn.Sequential(*down, nn.Flatten())
        self.mean, self.spread = nn.Linear(8192, 200), nn.Linear(8192, 200)
        self.start = nn.Linear(200, 8192)
        self.up = nn.Sequential(nn.Unflatten(1, (512, 4, 4)), *up, nn.Conv2d(32, 3, 3, padding=1), nn.Tanh())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.down(x)
        mean, spread = self.mean(y), self.spread(y)
        return self.up(self.start(mean + torch.randn_like(mean) * (spread / 2).exp())), mean, spread


@case("adam", "amp_bf16", 64)
def portraits() -> Spec:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        told, mean, spread = model(x)
        far = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        return F.mse_loss(told.float(), x) + 0.00025 * far.float()

    return Spec(_LargeCodes(), alone(3, 128, 128), loss)


@case("adam", "fp32", 64)
def cleaned_pages() -> Spec:
    """Noise is added, and taken away again by a network that upsamples."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(16, 1, 3, padding=1), nn.Sigmoid(),
    )  # fmt: skip

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        noisy = (x + 0.3 * torch.randn_like(x)).clamp(0, 1)
        return F.mse_loss(model(noisy), x)

    return Spec(model, alone(1, 140, 180), loss)


# Adversaries, each with an optimizer of its own.


def _taking_turns(shop: Workshop) -> Callable[[], Tensor]:
    """First the judge: real ones, then made ones, backward after each; then the maker."""
    make, judge = shop.model["make"], shop.model["judge"]
    of_judge, of_make = shop.optimizer(judge.parameters()), shop.optimizer(make.parameters())
    tell = nn.BCEWithLogitsLoss()

    def step() -> Tensor:
        (real,) = shop.batch()
        judge.zero_grad()
        with shop.precision():
            told = judge(real).flatten()
            right = tell(told, torch.full_like(told, 0.9))
        right.backward()
        with shop.precision():
            made = make(torch.randn(len(real), 100, 1, 1, device=real.device))
            told = judge(made.detach()).flatten()
            wrong = tell(told, torch.zeros_like(told))
        wrong.backward()
        of_judge.step()
        make.zero_grad()
        with shop.precision():
            told = judge(made).flatten()
            fooled = tell(told, torch.ones_like(told))
        fooled.backward()
        of_make.step()
        return fooled.detach()

    return step


def _adversaries(channels: int, width: int, levels: int) -> nn.ModuleDict:
    top = width * 2 ** (levels - 1)
    up: list[nn.Module] = [
        nn.ConvTranspose2d(100, top, 4, 1, 0, bias=False),
        nn.BatchNorm2d(top),
        nn.ReLU(True),
    ]
    down: list[nn.Module] = [nn.Conv2d(channels, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for level in range(levels - 1):
        large = top // 2**level
        up += [
            nn.ConvTranspose2d(large, large // 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(large // 2),
            nn.ReLU(True),
        ]
        small = width * 2**level
        down += [nn.Conv2d(small, 2 * small, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * small), nn.LeakyReLU(0.2, inplace=True)]  # fmt: skip
    make = nn.Sequential(*up, nn.ConvTranspose2d(width, channels, 4, 2, 1, bias=False), nn.Tanh())
    judge = nn.Sequential(*down, nn.Conv2d(top, 1, 4, 1, 0, bias=False))
    return nn.ModuleDict({"make": make, "judge": judge})


@case("adam", "fp32", 64)
def adversaries_of_clothes() -> Spec:
    return Spec(_adversaries(1, 32, 3), alone(1, 32, 32), no_loss, _taking_turns)


@case("adam", "amp_bf16", 32)
def adversaries_of_rooms() -> Spec:
    return Spec(_adversaries(3, 48, 5), alone(3, 128, 128), no_loss, _taking_turns)


class _Across(nn.Module):
    """A small U-Net from drawing to picture."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 48, 96, 192, 384)
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.InstanceNorm2d(b), nn.LeakyReLU(0.2)) for a, b in itertools.pairwise(widths)
        )  # fmt: skip
        self.up = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.InstanceNorm2d(b), nn.ReLU(), nn.Dropout(0.5 if a > 300 else 0.0))
            for a, b in ((384, 192), (384, 96), (192, 48))
        )  # fmt: skip
        self.head = nn.ConvTranspose2d(96, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        x = kept.pop()
        for block in self.up:
            x = torch.cat([block(x), kept.pop()], 1)
        return torch.tanh(self.head(x))


def _conditioned(shop: Workshop) -> Callable[[], Tensor]:
    """The judge sees drawing and picture side by side; the maker is also held to the picture."""
    make, judge = shop.model["make"], shop.model["judge"]
    of_make, of_judge = shop.optimizer(make.parameters()), shop.optimizer(judge.parameters())

    def step() -> Tensor:
        drawing, picture = shop.batch()
        made = make(drawing)
        judge.requires_grad_(True)
        of_judge.zero_grad()
        no, yes = judge(torch.cat([drawing, made.detach()], 1)), judge(torch.cat([drawing, picture], 1))
        caught = (F.mse_loss(no, torch.zeros_like(no)) + F.mse_loss(yes, torch.ones_like(yes))) / 2
        caught.backward()
        of_judge.step()
        judge.requires_grad_(False)
        of_make.zero_grad()
        told = judge(torch.cat([drawing, made], 1))
        loss = F.mse_loss(told, torch.ones_like(told)) + 100 * F.l1_loss(made, picture)
        loss.backward()
        of_make.step()
        return loss.detach()

    return step


@case("adam", "fp32", 8)
def drawings_to_pictures() -> Spec:
    layers: list[nn.Module] = [nn.Conv2d(6, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
    for inputs, outputs, stride in ((64, 128, 2), (128, 256, 2), (256, 512, 1)):
        layers += [nn.Conv2d(inputs, outputs, 4, stride, 1), nn.InstanceNorm2d(outputs), nn.LeakyReLU(0.2)]
    model = nn.ModuleDict({"make": _Across(), "judge": nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 1))})

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 3, 192, 192).to(device) for _ in range(2)]

    return Spec(model, batch, no_loss, _conditioned)


# Diffusion, flows, sharpening.


class _Level(nn.Module):
    """Two convolutions that know the time, and attention among places where asked for."""

    def __init__(self, inputs: int, outputs: int, heads: int = 0) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(16, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(256, 2 * outputs))
        self.norm, self.last = nn.GroupNorm(16, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.short = nn.Conv2d(inputs, outputs, 1)
        self.look = nn.MultiheadAttention(outputs, heads, batch_first=True) if heads else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.time(time)[:, :, None, None].chunk(2, 1)
        y = self.short(x) + self.last(F.silu(self.norm(self.first(x)) * (1 + scale) + shift))
        if self.look is not None:
            flat = y.flatten(2).transpose(1, 2)
            y = y + self.look(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(y)
        return y


class _Butterflies(nn.Module):
    """A diffusion network for pictures of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.enter = nn.Conv2d(3, 64, 3, padding=1)
        self.down = nn.ModuleList([_Level(64, 64), _Level(64, 128), _Level(128, 256, 4)])
        self.smaller = nn.ModuleList(
            [nn.Conv2d(64, 64, 3, 2, 1), nn.Conv2d(128, 128, 3, 2, 1), nn.Conv2d(256, 256, 3, 2, 1)]
        )
        self.middle = _Level(256, 256, 4)
        self.up = nn.ModuleList([_Level(512, 128, 4), _Level(256, 64), _Level(128, 64)])
        self.leave = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        speeds = torch.exp(torch.arange(32, device=x.device) * (-math.log(10000) / 32))
        angles = time[:, None].float() * speeds
        known = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.enter(x)
        kept = []
        for level, smaller in zip(self.down, self.smaller, strict=True):
            x = level(x, known)
            kept.append(x)
            x = smaller(x)
        x = self.middle(x, known)
        for level in self.up:
            x = level(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1), known)
        out: Tensor = self.leave(x)
        return out


@case("adamw", "amp_fp16", 32, clip=True, ema=True)
def butterflies() -> Spec:
    shares = torch.cos(torch.linspace(0, 1, 1000) * math.pi / 2) ** 2

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        time = torch.randint(0, 1000, (len(x),), device=x.device)
        share = shares.to(x.device)[time].view(-1, 1, 1, 1)
        noise = torch.randn_like(x)
        return F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, time).float(), noise)

    return Spec(_Butterflies(), alone(3, 64, 64), loss)


class _Patches(nn.Module):
    """A diffusion transformer over patches of small latents."""

    def __init__(self, width: int = 384, depth: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.zeros(1, 256, width))
        self.time, self.kind = (
            nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width)),
            nn.Embedding(11, width),
        )
        self.ask = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.tell = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.think = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth))  # fmt: skip
        self.adjust = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.leave = nn.Linear(width, 16)

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        y = self.enter(x).flatten(2).transpose(1, 2) + self.places
        n, places, width = y.shape
        known = F.silu(self.time(time[:, None]) + self.kind(kind)).unsqueeze(1)
        for ask, tell, think, adjust in zip(self.ask, self.tell, self.think, self.adjust, strict=True):
            scale1, shift1, scale2, shift2 = adjust(known).chunk(4, -1)
            z = F.layer_norm(y, (width,)) * (1 + scale1) + shift1
            q, k, v = ask(z).view(n, places, 3, 6, width // 6).permute(2, 0, 3, 1, 4)
            y = y + tell(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, places, width))
            y = y + think(F.layer_norm(y, (width,)) * (1 + scale2) + shift2)
        return F.fold(self.leave(y).transpose(1, 2), (32, 32), 2, stride=2)


@case("adamw", "amp_bf16", 64)
def drawn_by_patches() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 4, 32, 32).to(device), torch.randint(0, 11, (count,)).to(device)]

    def loss(model: nn.Module, x: Tensor, kind: Tensor) -> Tensor:
        time = torch.rand(len(x), device=x.device)
        noise = torch.randn_like(x)
        share = time.view(-1, 1, 1, 1)
        return F.mse_loss(model((1 - share) * x + share * noise, time, kind).float(), noise - x)

    return Spec(_Patches(), batch, loss)


class _Coupled(nn.Module):
    """Half of the numbers say how the other half is stretched (RealNVP)."""

    def __init__(self, width: int = 256, steps: int = 8) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 64)) for _ in range(steps)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        told = torch.zeros(len(x), device=x.device)
        a, b = x.chunk(2, 1)
        for net in self.nets:
            scale, shift = net(a).chunk(2, 1)
            scale = torch.tanh(scale)
            a, b = b * scale.exp() + shift, a
            told = told + scale.sum(1)
        return (0.5 * torch.cat([a, b], 1).pow(2).sum(1) - told).mean()


@case("adam", "fp32", 4096)
def stretched() -> Spec:
    return Spec(_Coupled(), alone(64), lambda m, x: m(x))


@case("adam", "fp32", 16)
def sharper_by_shuffling() -> Spec:
    """ESPCN: work at the small size, then shuffle channels into places."""
    model = nn.Sequential(
        nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 64, 3, padding=1), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1),
        nn.Tanh(), nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3), nn.Sigmoid(),
    )  # fmt: skip
    return Spec(model, to_numbers(1, 160, 160, outputs=(1, 480, 480)), squared)


class _Seen(nn.Module):
    """Sharpened pictures, judged by what a frozen VGG-19 sees of them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 64, 9, padding=4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.PReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64))
            for _ in range(6)
        )  # fmt: skip
        self.grow = nn.Sequential(
            nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(64, 3, 9, padding=4)
        )
        self.see = zoo("vgg19").features[:18].requires_grad_(False)

    def forward(self, small: Tensor, large: Tensor) -> Tensor:
        x = F.relu(self.enter(small))
        for block in self.blocks:
            x = x + block(x)
        made = self.grow(x)
        return F.l1_loss(made, large) + 0.006 * F.mse_loss(self.see(made), self.see(large).detach())


@case("adam", "fp32", 12)
def sharper_to_the_eye() -> Spec:
    return Spec(
        _Seen(), to_numbers(3, 64, 64, outputs=(3, 128, 128)), lambda m, small, large: m(small, large)
    )


class _Voices(nn.Module):
    """A U-Net over waves that takes one voice out of a mixture."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 24, 48, 72, 96)
        self.down = nn.ModuleList(nn.Sequential(nn.Conv1d(a, b, 15, padding=7), nn.BatchNorm1d(b), nn.LeakyReLU(0.1)) for a, b in itertools.pairwise(widths))  # fmt: skip
        self.middle = nn.Sequential(nn.Conv1d(96, 120, 15, padding=7), nn.LeakyReLU(0.1))
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a + b, b, 5, padding=2), nn.BatchNorm1d(b), nn.LeakyReLU(0.1)) for a, b in itertools.pairwise((120, 96, 72, 48, 24))
        )  # fmt: skip
        self.head = nn.Conv1d(25, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, kept = x, []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = x[:, :, ::2]
        x = self.middle(x)
        for block in self.up:
            x = block(
                torch.cat(
                    [F.interpolate(x, scale_factor=2, mode="linear", align_corners=True), kept.pop()], 1
                )
            )
        return torch.tanh(self.head(torch.cat([x, first], 1)))


@case("adam", "fp32", 16)
def one_voice() -> Spec:
    return Spec(_Voices(), to_numbers(1, 16384, outputs=(1, 16384)), squared)
