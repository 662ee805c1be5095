"""Networks that make pictures or points: codes, diffusion, restoration. Cases stand above the model they train."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, joined, normed, passed
from bench.model_parts import (
    Spec,
    alone,
    freeze,
    made,
    perceptron,
    shares,
    squared,
    to_numbers,
    zoo,
)

THIRD_MAKERS = CaseSet()
case = THIRD_MAKERS.case


@case("adam", "fp32", 128)
def cars_through_a_neck() -> Spec:
    """Pictures of 64 through a code of 100 and back, upsampled and convolved."""
    down: list[nn.Module] = []
    up: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 20, 40, 80)):
        down += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        up = [nn.Upsample(scale_factor=2), nn.Conv2d(outputs, inputs, 3, padding=1), nn.ReLU(), *up]
    model = joined(down, nn.Flatten(), nn.Linear(80 * 64, 100), nn.ReLU(), nn.Linear(100, 80 * 64), nn.Unflatten(1, (80, 8, 8)), up[:-1])  # fmt: skip
    return Spec(model, alone(3, 64, 64), lambda m, x: F.l1_loss(m(x), x))


class _ToldWhat(nn.Module):
    """A variational autoencoder that is told which digit it sees, by convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.read = joined(
            normed(11, 32, 3, 2), normed(32, 64, 3, 2), nn.Flatten(), nn.Linear(64 * 49, 256), nn.ReLU()
        )
        self.mean, self.spread = nn.Linear(256, 16), nn.Linear(256, 16)
        self.write = nn.Sequential(
            nn.Linear(26, 64 * 49), nn.ReLU(), nn.Unflatten(1, (64, 7, 7)), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kind = F.one_hot(y, 10).float()
        read = self.read(torch.cat([x, kind[:, :, None, None].expand(-1, -1, 28, 28)], 1))
        mean, spread = self.mean(read), self.spread(read)
        told = self.write(torch.cat([mean + torch.randn_like(mean) * torch.exp(spread / 2), kind], 1))
        far = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(told, x, reduction="none").flatten(1).sum(1).mean() + far


@case("adam", "fp32", 256)
def told_which_digit() -> Spec:
    return Spec(
        _ToldWhat(),
        made(shares(1, 28, 28), lambda n: torch.randint(0, 10, (n,))),
        lambda m, x, y: m(x, y),
    )


class _FromABook(nn.Module):
    """Each place's code is the nearest of 512 (VQ-VAE)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()

        def more() -> nn.Module:
            return Residual(nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 128, 1))

        self.read = joined(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), more(), more(), nn.Conv2d(128, width, 1))  # fmt: skip
        self.book = nn.Embedding(512, width)
        self.write = joined(nn.Conv2d(width, 128, 3, padding=1), more(), more(), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        code = self.read(x).permute(0, 2, 3, 1)
        flat = code.reshape(-1, code.size(3))
        far = (
            flat.pow(2).sum(1, keepdim=True)
            + self.book.weight.pow(2).sum(1)
            - 2 * flat @ self.book.weight.t()
        )
        taken = self.book(far.argmin(1)).view_as(code)
        costs = F.mse_loss(taken, code.detach()) + 0.25 * F.mse_loss(taken.detach(), code)
        told = self.write((code + (taken - code).detach()).permute(0, 3, 1, 2))
        return F.mse_loss(told, x) + costs


@case("adam_amsgrad", "fp32", 64)
def nearest_codes() -> Spec:
    return Spec(_FromABook(), alone(3, 64, 64), lambda m, x: m(x))


class _Timed(nn.Module):
    """A residual block that knows how noisy its picture is."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, outputs), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.time = nn.Linear(time, 2 * outputs)
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, 1)
        out: Tensor = self.second(self.first(x) * (1 + scale) + shift) + self.short(x)
        return out


class _Looking(nn.Module):
    """Every place looks at all others."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.enter, self.leave = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        n, width, height, across = x.shape
        q, k, v = (
            self.enter(self.norm(x)).view(n, 3, self.heads, width // self.heads, -1).transpose(3, 4).unbind(1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(n, width, height, across)
        out: Tensor = x + self.leave(y)
        return out


class _Denoiser(nn.Module):
    def __init__(self, channels: int, width: int, times: tuple[int, ...]) -> None:
        super().__init__()
        widths = [width * more for more in times]
        self.width, known = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, known), nn.SiLU(), nn.Linear(known, known))
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList(_Timed(a, b, known) for a, b in itertools.pairwise((width, *widths)))
        self.smaller = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for b in widths[:-1])
        last = widths[-1]
        self.middle, self.look, self.after = (
            _Timed(last, last, known),
            _Looking(last, 4),
            _Timed(last, last, known),
        )
        self.up = nn.ModuleList(_Timed(2 * b, a, known) for a, b in itertools.pairwise((width, *widths)))
        self.larger = nn.ModuleList(nn.Conv2d(b, b, 3, padding=1) for b in widths[:-1])
        self.head = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, channels, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        half = self.width // 2
        speed = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
        turned = time[:, None] * speed
        known = self.time(torch.cat([turned.sin(), turned.cos()], 1))
        x, kept = self.enter(x), []
        for level, block in enumerate(self.down):
            x = block(self.smaller[level - 1](x) if level else x, known)
            kept.append(x)
        x = self.after(self.look(self.middle(x, known)), known)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([x, kept.pop()], 1), known)
            if level:
                x = self.larger[level - 1](F.interpolate(x, scale_factor=2))
        out: Tensor = self.head(x)
        return out


def _noise(model: nn.Module, x: Tensor) -> Tensor:
    time = torch.randint(0, 1000, (len(x),), device=x.device)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=x.device), 0)[time].view(-1, 1, 1, 1)
    noise = torch.randn_like(x)
    return F.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, time.float()).float(), noise)


@case("adam", "fp32", 64, ema=True, clip=True)
def noise_in_small_pictures() -> Spec:
    return Spec(_Denoiser(3, 64, (1, 2, 2)), alone(3, 32, 32), _noise)


@case("adamw", "amp_fp16", 16)
def noise_in_anime() -> Spec:
    return Spec(_Denoiser(3, 64, (1, 2, 4, 8)), alone(3, 64, 64), _noise)


class _InCodes(nn.Module):
    """Diffusion in the codes of a frozen autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.read = joined(normed(3, 64, 3, 2, act=nn.SiLU), normed(64, 128, 3, 2, act=nn.SiLU), normed(128, 128, 3, 2, act=nn.SiLU), nn.Conv2d(128, 4, 1))  # fmt: skip
        freeze(self.read)
        self.body = _Denoiser(4, 96, (1, 2, 3))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out: Tensor = self.body(x, time)
        return out


@case("adamw_fused", "amp_bf16", 32, clip=True)
def noise_in_codes() -> Spec:
    def loss(model: _InCodes, x: Tensor) -> Tensor:
        with torch.no_grad():
            code = model.read(x).float()
        return _noise(model, code)

    return Spec(_InCodes(), alone(3, 256, 256), loss)


@case("adamw", "fp32", 20000)
def flows_of_points() -> Spec:
    """A perceptron learns where points move between noise and two moons (flow matching)."""
    model = perceptron(3, 512, 512, 512, 512, 2)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        time, noise = torch.rand(len(x), 1, device=x.device), torch.randn_like(x)
        return F.mse_loss(model(torch.cat([(1 - time) * noise + time * x, time], 1)), x - noise)

    return Spec(model, alone(2), loss)


@case("adam", "fp32", 128)
def grain() -> Spec:
    """Seventeen layers that tell the grain of a patch of 40 (DnCNN)."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(inplace=True)]
    for _ in range(15):
        layers += normed(64, 64)
    model = joined(layers, nn.Conv2d(64, 1, 3, padding=1))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        noise = torch.randn_like(x) * 0.1
        return F.mse_loss(model(x + noise), noise)

    return Spec(model, alone(1, 40, 40), loss)


@case("sgd", "fp32", 16, clip=True)
def three_layers_sharper() -> Spec:
    """Blown up first, then kernels of nine, five and five (SRCNN)."""
    model = nn.Sequential(
        nn.Upsample(scale_factor=3, mode="bicubic"), nn.Conv2d(1, 64, 9, padding=4), nn.ReLU(), nn.Conv2d(64, 32, 5, padding=2),
        nn.ReLU(), nn.Conv2d(32, 1, 5, padding=2),
    )  # fmt: skip
    return Spec(model, to_numbers(1, 85, 85, outputs=(1, 255, 255)), squared)


@case("adam", "amp_fp16", 16)
def sharper_without_norms() -> Spec:
    """Sixteen residual blocks without norms and two shuffles (EDSR)."""
    blocks: list[nn.Module] = [
        Residual(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(True), nn.Conv2d(64, 64, 3, padding=1))
        for _ in range(16)
    ]
    larger: list[nn.Module] = []
    for _ in range(2):
        larger += [nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2)]
    model = joined(nn.Conv2d(3, 64, 3, padding=1), Residual(*blocks), larger, nn.Conv2d(64, 3, 3, padding=1))
    return Spec(
        model, to_numbers(3, 48, 48, outputs=(3, 192, 192)), lambda m, x, y: F.l1_loss(m(x).float(), y)
    )


class _Painted(nn.Module):
    """The picture itself is what learns, seen by a frozen VGG-19."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Parameter(torch.rand(1, 3, 400, 400))
        features = zoo("vgg19").features[:21]
        for layer in features:
            if isinstance(layer, nn.ReLU):
                layer.inplace = False
        self.stages = nn.ModuleList(features[a:b] for a, b in itertools.pairwise((0, 2, 7, 12, 21)))
        freeze(self.stages)

    def seen(self, x: Tensor) -> list[Tensor]:
        return passed(self.stages, x)

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        def likeness(x: Tensor) -> Tensor:
            flat = x.flatten(2)
            return flat @ flat.transpose(1, 2) / flat[0].numel()

        with torch.no_grad():
            wanted = self.seen(content)[-1]
            styles = [likeness(one) for one in self.seen(style)]
        told = self.seen(self.picture)
        like = torch.stack([F.mse_loss(likeness(a), b) for a, b in zip(told, styles, strict=True)]).sum()
        return F.mse_loss(told[-1], wanted) + 1e6 * like


@case("adam", "fp32", 1)
def painted_picture() -> Spec:
    return Spec(_Painted(), made(shares(3, 400, 400), shares(3, 400, 400)), lambda m, a, b: m(a, b))


class _Filled(nn.Module):
    """Holes in pictures, filled by gated convolutions."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (
            (4, 48, 5, 1, 1),
            (48, 96, 3, 2, 1),
            (96, 96, 3, 1, 1),
            (96, 192, 3, 2, 1),
            (192, 192, 3, 1, 2),
            (192, 192, 3, 1, 4),
        )
        self.layers = nn.ModuleList(nn.Conv2d(a, 2 * b, k, s, d * (k // 2), d) for a, b, k, s, d in sizes)
        self.back = nn.ModuleList(nn.Conv2d(a, 2 * b, 3, padding=1) for a, b in ((192, 96), (96, 48)))
        self.head = nn.Conv2d(48, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            value, gate = layer(x).chunk(2, 1)
            x = F.elu(value) * torch.sigmoid(gate)
        for layer in self.back:
            value, gate = layer(F.interpolate(x, scale_factor=2)).chunk(2, 1)
            x = F.elu(value) * torch.sigmoid(gate)
        return torch.tanh(self.head(x))


@case("adam", "fp32", 12)
def filled_holes() -> Spec:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        hole = torch.zeros_like(x[:, :1])
        hole[:, :, 40:104, 30:110] = 1
        told = model(torch.cat([x * (1 - hole), hole], 1))
        return F.l1_loss(told * hole, x * hole) * 5 + F.l1_loss(told, x)

    return Spec(_Filled(), alone(3, 160, 160), loss)
