"""Transformers in people's own code: letters, patches, particles, volumes. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.block_parts import Again, Attention, Patches, Taken, Words, attending
from bench.case import CaseSet
from bench.fourth_makers import noisy
from bench.layer_parts import Residual, joined
from bench.model_parts import Spec, classified, kinds, labelled, made, numbers, squared, to_numbers, tokens

FIFTH_ATTENTION = CaseSet()
case = FIFTH_ATTENTION.case


def _following(model: nn.Module, ids: Tensor, _: Tensor) -> Tensor:
    """Every word tells the one after it."""
    told = model(ids)[:, :-1]
    return F.cross_entropy(told.reshape(-1, told.size(2)), ids[:, 1:].reshape(-1))


@case("adamw", "amp_bf16", 24, accumulate=2, clip=True)
def novels_by_syllable() -> Spec:
    """A GPT with one head for all keys, whose last line is its words."""
    words = Words(6000, 448, 384)
    head = nn.Linear(448, 6000, bias=False)
    head.weight = words.words.weight
    layers = [attending(448, 7, causal=True, few=1, drop=0.1) for _ in range(8)]
    return Spec(joined(words, *layers, nn.LayerNorm(448), head), tokens(6000, 384), _following)


@case("adam", "fp32", 10)
def twenty_layers_again() -> Spec:
    """A deep and narrow GPT; every layer is computed again."""
    layers = Again(*(attending(320, 5, causal=True) for _ in range(20)))
    model = joined(Words(16000, 320, 512), layers, nn.LayerNorm(320), nn.Linear(320, 16000))
    return Spec(model, tokens(16000, 512), _following)


@case("adamw", "amp_fp16", 128, evaluate=True)
def commands_in_slices() -> Spec:
    """A second of sound; each moment's forty pitches are a word."""
    enter = Patches(nn.Conv1d(40, 192, 1), 98, 192)
    model = joined(
        enter, *(attending(192, 3, drop=0.1) for _ in range(12)), Taken("first"), nn.Linear(192, 35)
    )
    return Spec(model, labelled(40, 98, classes=35), classified)


@case("adam", "fp32", 64)
def glucose_in_pieces() -> Spec:
    """Three days of eight sensors in pieces of twelve; four hours ahead."""
    enter = Patches(nn.Conv1d(8, 256, 12, 12), 72, 256)
    model = joined(enter, *(attending(256, 8, drop=0.2) for _ in range(4)), Taken("mean"), nn.Linear(256, 48))
    return Spec(model, to_numbers(8, 864, outputs=(48,)), squared)


@case("adamw", "amp_bf16", 192, ema=True)
def small_pictures_in_patches() -> Spec:
    """Pictures of 64 in patches of eight, from the beginning, with smoothed labels."""
    enter = Patches(nn.Conv2d(3, 384, 8, 8), 64, 384)
    model = joined(
        enter, *(attending(384, 6) for _ in range(9)), nn.LayerNorm(384), Taken("first"), nn.Linear(384, 200)
    )
    return Spec(
        model,
        labelled(3, 64, 64, classes=200),
        lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    )


class _Few(nn.Module):
    """A hundred and twenty-eight learnt questions look at every pixel twice and talk among themselves (Perceiver)."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.ask, self.pixels = nn.Parameter(torch.randn(1, 128, width) * 0.02), nn.Conv2d(5, width, 1)
        self.look = nn.ModuleList(Attention(width, 1, seen=width) for _ in range(2))
        self.think = nn.ModuleList(joined(*(attending(width, 8) for _ in range(4))) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (torch.linspace(-1, 1, size, device=x.device) for size in x.shape[2:])
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(len(x), -1, -1, -1)
        seen = self.norm(self.pixels(torch.cat([x, places], 1)).flatten(2).transpose(1, 2))
        y = self.ask.expand(len(x), -1, -1)
        for look, think in zip(self.look, self.think, strict=True):
            y = think(y + look(y, seen))
        out: Tensor = self.head(y.mean(1))
        return out


@case("adamw", "amp_fp16", 24)
def few_look_at_many() -> Spec:
    return Spec(_Few(), labelled(3, 72, 72, classes=100), classified)


class _Bent(nn.Module):
    """A layer whose norms are bent by what is to be drawn and when (DiT)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.bend = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.look = Attention(width, heads)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        size, move, open_, size2, move2, open2 = self.bend(known).unsqueeze(1).chunk(6, 2)
        x = x + open_ * self.look(self.norm(x) * (1 + size) + move)
        out: Tensor = x + open2 * self.think(self.norm(x) * (1 + size2) + move2)
        return out


class _Drawn(nn.Module):
    def __init__(self, width: int = 384, depth: int = 8) -> None:
        super().__init__()
        self.enter = Patches(nn.Conv2d(4, width, 2, 2), 196, width)
        self.kinds, self.time = (
            nn.Embedding(101, width),
            nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width)),
        )
        self.layers = nn.ModuleList(_Bent(width, 6) for _ in range(depth))
        self.head = nn.Linear(width, 16)

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        known, y = self.time(time.unsqueeze(1) / 1000) + self.kinds(kind), self.enter(x)
        for layer in self.layers:
            y = layer(y, known)
        told = self.head(y[:, 1:]).transpose(1, 2).unflatten(2, (14, 14))
        return F.pixel_shuffle(told, 2)


@case("adamw", "amp_bf16", 32, ema=True, clip=True)
def codes_drawn_by_kind() -> Spec:
    def loss(model: nn.Module, x: Tensor, kind: Tensor) -> Tensor:
        mixed, noise, time = noisy(x)
        return F.mse_loss(model(mixed, time, kind).float(), noise)

    return Spec(_Drawn(), labelled(4, 28, 28, classes=100), loss)


@case("radam", "tf32", 400)
def jets_of_particles() -> Spec:
    """A hundred particles of a collision in no order; which kind of jet was it?"""
    layers = [attending(128, 8, inner=256, drop=0.1) for _ in range(6)]
    model = joined(
        nn.Linear(7, 128), nn.GELU(), nn.Linear(128, 128), *layers, Taken("mean"), nn.Linear(128, 10)
    )
    return Spec(model, labelled(100, 7, classes=10), classified)


class _Scanned(nn.Module):
    """A volume in cubes of eight through a transformer, grown again by transposed convolutions (UNETR)."""

    def __init__(self, classes: int, width: int = 256) -> None:
        super().__init__()
        self.enter = Patches(nn.Conv3d(1, width, 8, 8), 8 * 10 * 10, width)
        self.layers = nn.Sequential(*(attending(width, 8) for _ in range(6)))
        grown: list[nn.Module] = []
        for inputs, outputs in ((width, 64), (64, 32), (32, 16)):
            grown += [
                nn.ConvTranspose3d(inputs, outputs, 2, 2),
                Residual(
                    nn.Conv3d(outputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.LeakyReLU()
                ),
            ]
        self.grown = joined(grown, nn.Conv3d(16, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.layers(self.enter(x))[:, 1:]
        out: Tensor = self.grown(seen.transpose(1, 2).unflatten(2, (8, 10, 10)))
        return out


@case("adamw", "amp_bf16", 2)
def organs_in_cubes() -> Spec:
    return Spec(_Scanned(6), made(numbers(1, 64, 80, 80), kinds(6, 64, 80, 80)), classified)
