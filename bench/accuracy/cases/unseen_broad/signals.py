"""Sensors and audio with 1D convolutions."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.accuracy.cases.unseen_broad.pictures import Scales
from bench.lib.models.blocks import Concat, Transpose, UNet, conv1d_norm
from bench.lib.models.layers import Recurrent, Residual, conv_norm, sequential
from bench.lib.models.parts import Spec, batch_of, classification_loss, labelled, normal, unlabelled

CASES = CaseSet()
case = CASES.case


@case("adam", "fp32", 72, evaluate=True)
def ways_to_walk() -> Spec:
    """Build a model with kernels of three lengths in parallel, on nine sensors over 1,100 time steps (InceptionTime)."""

    def lengths(inputs: int, width: int = 32) -> list[nn.Module]:
        def thin() -> nn.Module:
            return nn.Conv1d(inputs, width, 1, bias=False)

        looks = [nn.Conv1d(width, width, size, padding=size // 2, bias=False) for size in (39, 19, 9)]
        both = Concat(sequential(thin(), Concat(*looks)), sequential(nn.MaxPool1d(3, 1, 1), thin()))
        return [both, nn.BatchNorm1d(4 * width), nn.ReLU()]

    def block(inputs: int) -> Residual:
        layers = lengths(inputs) + lengths(128) + lengths(128)
        return Residual(*layers, short=sequential(conv1d_norm(inputs, 128, 1)[:-1]), act=nn.ReLU())

    model = sequential(block(9), block(128), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 13))
    return Spec(model, labelled(9, 1100, classes=13), classification_loss)


class _SqueezeExcite(nn.Module):
    """Squeeze-and-excitation over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = sequential(
            nn.Conv1d(width, width // 4, 1), nn.ReLU(), nn.Conv1d(width // 4, width, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.weigh(x.mean(2, keepdim=True))
        return out


class _ECAPA(nn.Module):
    """Speaker identification with dilated Res2Net blocks and attentive pooling (ECAPA)."""

    def __init__(self, speakers: int, width: int = 512) -> None:
        super().__init__()
        few = width // 8

        def block(apart: int) -> Residual:
            looks = (
                sequential(
                    nn.Conv1d(few, few, 3, padding=apart, dilation=apart), nn.ReLU(), nn.BatchNorm1d(few)
                )
                for _ in range(7)
            )
            return Residual(
                *conv1d_norm(width, width, 1),
                Scales(*looks),
                *conv1d_norm(width, width, 1),
                _SqueezeExcite(width),
            )

        self.enter = sequential(conv1d_norm(80, width, 5))
        self.blocks = nn.ModuleList(block(apart) for apart in (2, 3, 4))
        self.join = sequential(nn.Conv1d(3 * width, 1024, 1), nn.ReLU())
        self.weigh = sequential(nn.Conv1d(1024, 128, 1), nn.Tanh(), nn.Conv1d(128, 1024, 1), nn.Softmax(2))
        self.head = sequential(
            nn.BatchNorm1d(2048), nn.Linear(2048, 192), nn.BatchNorm1d(192), nn.Linear(192, speakers)
        )

    def forward(self, x: Tensor) -> Tensor:
        y, kept = self.enter(x), []
        for block in self.blocks:
            y = block(y)
            kept.append(y)
        y = self.join(torch.cat(kept, 1))
        weight = self.weigh(y)
        mean = (weight * y).sum(2)
        spread = ((weight * y.pow(2)).sum(2) - mean.pow(2)).clamp(min=1e-6).sqrt()
        out: Tensor = self.head(torch.cat([mean, spread], 1))
        return out


@case("adam", "amp_fp16", 44, clip=True, accumulate=2)
def who_is_on_the_line() -> Spec:
    return Spec(_ECAPA(2600), labelled(80, 302, classes=2600), classification_loss)


class _AudioCodec(nn.Module):
    """An audio codec with residual vector quantization (EnCodec)."""

    def __init__(self, strides: tuple[int, ...] = (2, 4, 5, 8), width: int = 24, codes: int = 1024) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(len(strides) + 1)]
        steps = list(zip(itertools.pairwise(widths), strides, strict=True))

        def residual_block(channels: int) -> Residual:
            return Residual(
                nn.ELU(),
                nn.Conv1d(channels, channels // 2, 3, padding=1),
                nn.ELU(),
                nn.Conv1d(channels // 2, channels, 1),
            )

        def lstm_layers() -> list[nn.Module]:
            return [Transpose(), Recurrent(nn.LSTM, widths[-1], widths[-1], num_layers=2), Transpose()]

        self.enter = sequential(
            nn.Conv1d(1, width, 7, padding=3),
            *(
                sequential(
                    residual_block(a), nn.ELU(), nn.Conv1d(a, b, 2 * stride, stride, stride // 2 + stride % 2)
                )
                for (a, b), stride in steps
            ),
            lstm_layers(),
            nn.Conv1d(widths[-1], 128, 7, padding=3),
        )
        self.leave = sequential(
            nn.Conv1d(128, widths[-1], 7, padding=3),
            lstm_layers(),
            *(
                sequential(
                    nn.ELU(),
                    nn.ConvTranspose1d(b, a, 2 * stride, stride, stride // 2 + stride % 2, stride % 2),
                    residual_block(a),
                )
                for (a, b), stride in reversed(steps)
            ),
            nn.Conv1d(width, 1, 7, padding=3),
        )
        self.books = nn.ModuleList(nn.Embedding(codes, 128) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.enter(x).transpose(1, 2)
        left, found = seen, torch.zeros_like(seen)
        for book in self.books:
            nearest = book(torch.cdist(left.detach(), book.weight.expand(len(x), -1, -1)).argmin(2))
            left, found = left - nearest.detach(), found + nearest
        drawn = self.leave((seen + (found - seen).detach()).transpose(1, 2))
        return (
            F.l1_loss(drawn, x) + F.mse_loss(found, seen.detach()) + 0.25 * F.mse_loss(seen, found.detach())
        )


@case("adamw", "fp32", 18, clip=True)
def sound_in_few_codes() -> Spec:
    return Spec(_AudioCodec(), unlabelled(1, 16000), lambda m, x: m(x))


class _SpeechEnhancement(nn.Module):
    """A speech enhancement U-Net that predicts a complex mask over the spectrogram."""

    def __init__(self, widths: tuple[int, ...] = (24, 48, 96, 144)) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        down = [
            sequential(conv_norm(a, b, 5, 2 if a > 2 else 1, act=nn.PReLU))
            for a, b in itertools.pairwise((2, *widths))
        ]
        up = [sequential(conv_norm(a + b, b, act=nn.PReLU)) for a, b in itertools.pairwise(widths[::-1])]
        self.keep = UNet(down, up, sequential(nn.Conv2d(24, 2, 1), nn.Tanh()))

    def seen(self, x: Tensor) -> Tensor:
        return torch.stft(x, 512, 160, window=self.window, return_complex=True)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.seen(x)
        keep = self.keep(torch.stack([seen.real, seen.imag], 1))
        return seen * torch.complex(keep[:, 0], keep[:, 1])


@case("adam", "fp32", 12)
def hiss_taken_away() -> Spec:
    """Build a speech enhancement model for three seconds of noisy and clean speech."""

    def loss(model: nn.Module, mixed: Tensor, clean: Tensor) -> Tensor:
        output, target = model(mixed), model.seen(clean)
        return (output - target).abs().mean() + F.l1_loss(output.abs(), target.abs())

    return Spec(_SpeechEnhancement(), batch_of(normal(48000), normal(48000)), loss)
