"""Sounds and measurements in time, by convolutions. Cases stand above the model they train."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import Residual, basic, joined, normed, passed
from bench.model_parts import (
    Spec,
    bits,
    classified,
    freeze,
    labelled,
    made,
    numbers,
    squared,
    to_numbers,
    zoo,
)

FOURTH_SIGNALS = CaseSet()
case = FOURTH_SIGNALS.case


def _in_time(inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """A convolution in time that keeps the length but for its stride, a norm and a rectifier."""
    return [
        nn.Conv1d(inputs, outputs, kernel, stride, dilation * (kernel // 2), dilation, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()
    ]  # fmt: skip


class _Inception(nn.Module):
    """Three kernels and a pool side by side over a narrow neck (InceptionTime)."""

    def __init__(self, inputs: int, width: int = 32) -> None:
        super().__init__()
        self.neck = nn.Conv1d(inputs, width, 1, bias=False)
        self.looks = nn.ModuleList(
            nn.Conv1d(width, width, size, padding="same", bias=False) for size in (39, 19, 9)
        )
        self.pool = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(inputs, width, 1, bias=False))
        self.after = nn.Sequential(nn.BatchNorm1d(4 * width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.neck(x)
        out: Tensor = self.after(torch.cat([*(look(narrow) for look in self.looks), self.pool(x)], 1))
        return out


@case("adam", "fp32", 64, evaluate=True)
def gestures() -> Spec:
    blocks: list[nn.Module] = []
    for inputs in (6, 128):
        layers = [_Inception(inputs), _Inception(128), _Inception(128)]
        blocks.append(
            Residual(
                *layers, short=nn.Sequential(nn.Conv1d(inputs, 128, 1), nn.BatchNorm1d(128)), act=nn.ReLU()
            )
        )
    model = joined(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 8))
    return Spec(model, labelled(6, 600, classes=8), classified)


@case("adamw", "amp_fp16", 48)
def hearts_in_detail() -> Spec:
    """Twelve leads at 500 Hz through an 18-layer residual network in time, several findings each."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        layers = _in_time(inputs, outputs, 7, stride) + _in_time(outputs, outputs, 7)[:-1]
        short = nn.Sequential(*_in_time(inputs, outputs, 1, stride)[:-1]) if inputs != outputs else None
        return Residual(*layers, short=short, act=nn.ReLU())

    blocks: list[nn.Module] = [*_in_time(12, 64, 15, 2), nn.MaxPool1d(3, 2, 1)]
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        blocks += [block(inputs, outputs, stride), block(outputs, outputs, 1)]
    model = joined(blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, 26))
    return Spec(
        model,
        made(numbers(12, 5000), bits(26)),
        lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y),
    )


@case("adam", "fp32", 128)
def wake_words() -> Spec:
    """A second of sound as 49 by 40 numbers, depthwise convolutions (DS-CNN)."""
    layers = normed(1, 172, 5, 2)
    for _ in range(5):
        layers += normed(172, 172, 3, groups=172) + normed(172, 172, 1)
    model = joined(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(172, 12))
    return Spec(model, labelled(1, 49, 40, classes=12), classified)


class _Calls(nn.Module):
    """Five seconds of sound become a picture of frequencies on the GPU; a ResNet-34 looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(1024))
        self.register_buffer("bands", torch.rand(128, 513) / 40)
        self.see = zoo("resnet34")
        self.see.conv1, self.see.fc = nn.Conv2d(1, 64, 7, 2, 3, bias=False), nn.Linear(512, 182)

    def forward(self, sound: Tensor) -> Tensor:
        with torch.no_grad():
            size = torch.stft(sound, 1024, 320, window=self.window, return_complex=True).abs().pow(2)
            picture = torch.log1p(self.bands @ size).unsqueeze(1)
        out: Tensor = self.see(picture)
        return out


@case("adamw", "tf32", 32)
def calls_of_birds() -> Spec:
    return Spec(_Calls(), labelled(160000, classes=182), classified)


class _Separated(nn.Module):
    """Two speakers taken apart: learnt frequencies, dilated convolutions, a mask for each (Conv-TasNet)."""

    def __init__(self, width: int = 128, inner: int = 256) -> None:
        super().__init__()
        self.enter, self.leave = (
            nn.Conv1d(1, 256, 16, 8, bias=False),
            nn.ConvTranspose1d(256, 1, 16, 8, bias=False),
        )

        def block(dilation: int) -> nn.Module:
            return Residual(
                nn.Conv1d(width, inner, 1), nn.PReLU(), nn.GroupNorm(1, inner),
                nn.Conv1d(inner, inner, 3, padding=dilation, dilation=dilation, groups=inner), nn.PReLU(), nn.GroupNorm(1, inner),
                nn.Conv1d(inner, width, 1),
            )  # fmt: skip

        blocks = [block(2**level) for _ in range(2) for level in range(6)]
        self.body = joined(
            nn.GroupNorm(1, 256),
            nn.Conv1d(256, width, 1),
            *blocks,
            nn.PReLU(),
            nn.Conv1d(width, 512, 1),
            nn.Sigmoid(),
        )

    def forward(self, sound: Tensor) -> Tensor:
        seen = F.relu(self.enter(sound.unsqueeze(1)))
        kept = self.body(seen).view(len(sound), 2, 256, -1) * seen.unsqueeze(1)
        out: Tensor = self.leave(kept.flatten(0, 1)).view(len(sound), 2, -1)
        return out


def _as_loud(told: Tensor, wanted: Tensor) -> Tensor:
    """How much louder what is right is than what is not, in decibels."""
    right = (told * wanted).sum(-1, keepdim=True) / (wanted.pow(2).sum(-1, keepdim=True) + 1e-8) * wanted
    return 10 * torch.log10(right.pow(2).sum(-1) / ((told - right).pow(2).sum(-1) + 1e-8) + 1e-8)


@case("adam", "fp32", 6, clip=True)
def two_at_a_table() -> Spec:
    def loss(model: nn.Module, mixed: Tensor, wanted: Tensor) -> Tensor:
        told = model(mixed)
        ways = [_as_loud(told, wanted).mean(1), _as_loud(told.flip(1), wanted).mean(1)]
        return -torch.stack(ways).amax(0).mean()

    return Spec(_Separated(), made(numbers(32000), numbers(2, 32000)), loss)


class _Backing(nn.Module):
    """A U-Net in time over two channels of music, gated convolutions on the way up (Demucs)."""

    def __init__(self, widths: tuple[int, ...] = (48, 96, 192, 384)) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            joined(nn.Conv1d(a, b, 8, 4, 2), nn.GELU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(1))
            for a, b in itertools.pairwise((2, *widths))
        )
        self.up = nn.ModuleList(
            joined(
                nn.Conv1d(b, 2 * b, 3, padding=1),
                nn.GLU(1),
                nn.ConvTranspose1d(b, a, 8, 4, 2),
                *([nn.GELU()] if a != 8 else []),
            )
            for a, b in reversed(list(itertools.pairwise((8, *widths))))
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = passed(self.down, x)
        y = torch.zeros_like(kept[-1])
        for layer in self.up:
            y = layer(y + kept.pop())
        return y.unflatten(1, (4, 2))


@case("adamw", "amp_bf16", 8)
def without_the_singer() -> Spec:
    return Spec(
        _Backing(), to_numbers(2, 131072, outputs=(4, 2, 131072)), lambda m, x, y: F.l1_loss(m(x).float(), y)
    )


@case("adam", "fp32", 256)
def traffic_ahead() -> Spec:
    """Dilated kernels that look back only, over 207 sensors; an hour ahead."""

    class Back(nn.Module):
        def __init__(self, inputs: int, dilation: int) -> None:
            super().__init__()
            self.reach = 2 * dilation
            self.look = nn.utils.parametrizations.weight_norm(nn.Conv1d(inputs, 160, 3, dilation=dilation))
            self.short = nn.Conv1d(inputs, 160, 1) if inputs != 160 else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(F.relu(self.look(F.pad(x, (self.reach, 0)))), 0.2, self.training) + self.short(x)

    class Ahead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*(Back(207 if level == 0 else 160, 2**level) for level in range(6)))
            self.head = nn.Linear(160, 207 * 12)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(x)[:, :, -1]).unflatten(1, (207, 12))
            return out

    return Spec(Ahead(), to_numbers(207, 288, outputs=(207, 12)), squared)


@case("adam", "fp32", 24)
def taught_to_listen() -> Spec:
    """A frozen network over spectrograms teaches a smaller one what it sees on the way."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.master = joined(normed(1, 64), basic(64, 128, 2), basic(128, 256, 2), basic(256, 512, 2))
            freeze(self.master)
            self.learner = joined(
                normed(1, 24), normed(24, 48, 3, 2), normed(48, 96, 3, 2), normed(96, 192, 3, 2)
            )
            self.like, self.head = nn.Conv2d(192, 512, 1), nn.Linear(192, 35)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = self.master(x)
            seen = self.learner(x)
            return F.cross_entropy(self.head(seen.mean((2, 3))), y) + F.mse_loss(self.like(seen), wanted)

    return Spec(Both(), labelled(1, 96, 256, classes=35), lambda m, x, y: m(x, y))
