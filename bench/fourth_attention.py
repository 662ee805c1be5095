"""Attention in people's own code: letters, pictures, boxes, things bought, series. Cases stand above the model they train."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.case import CaseSet
from bench.layer_parts import Residual, joined, normed, stages
from bench.model_parts import (
    Spec,
    classified,
    kinds,
    labelled,
    made,
    numbers,
    shares,
    squared,
    to_numbers,
    tokens,
)

FOURTH_ATTENTION = CaseSet()
case = FOURTH_ATTENTION.case


class _Heads(nn.Module):
    """Attention of torch's own, with places told by turning or not at all."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.turned = heads, causal, turned
        self.enter, self.leave = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def turn(self, x: Tensor) -> Tensor:
        half = x.size(3) // 2
        speed = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angle = torch.outer(torch.arange(x.size(2), device=x.device), speed)
        a, b = F.rms_norm(x, (2 * half,)).chunk(2, 3)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], 3).to(
            x.dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.enter(x).chunk(3, 2))
        if self.turned:
            q, k = self.turn(q), self.turn(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.leave(y.transpose(1, 2).flatten(2))
        return out


class _Squared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


def _layer(width: int, look: nn.Module, *, norm: type[nn.Module] = nn.LayerNorm, act: type[nn.Module] = nn.GELU, drop: float = 0.0) -> nn.Sequential:  # fmt: skip
    """Attention and a perceptron, each after a norm and beside a shortcut."""
    think = [norm(width), nn.Linear(width, 4 * width), act(), nn.Linear(4 * width, width), nn.Dropout(drop)]
    return nn.Sequential(Residual(norm(width), look, nn.Dropout(drop)), Residual(*think))


def _next(model: nn.Module, ids: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


@case("adamw", "amp_bf16", 16, accumulate=2)
def fast_letters() -> Spec:
    """A GPT as speed runs have it: turned and normed queries, squared rectifiers, no biases in attention."""
    layers = [
        _layer(512, _Heads(512, 4, causal=True, turned=True), norm=nn.RMSNorm, act=_Squared) for _ in range(8)
    ]
    model = nn.Sequential(
        nn.Embedding(16384, 512), *layers, nn.RMSNorm(512), nn.Linear(512, 16384, bias=False)
    )
    return Spec(model, tokens(16384, 513), _next)


class _Tutorial(nn.Module):
    """torch's encoder with a mask that hides what follows, as its tutorial writes texts."""

    def __init__(self, words: int = 28782, width: int = 400) -> None:
        super().__init__()
        self.width, self.words, self.head = width, nn.Embedding(words, width), nn.Linear(width, words)
        place, speed = (
            torch.arange(256).unsqueeze(1),
            torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width)),
        )
        self.register_buffer(
            "places", torch.stack([torch.sin(place * speed), torch.cos(place * speed)], 2).flatten(1)
        )
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 800, 0.2), 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids.t()) * math.sqrt(self.width) + self.places[: ids.size(1)].unsqueeze(1)
        hidden = nn.Transformer.generate_square_subsequent_mask(ids.size(1), device=ids.device)
        out: Tensor = self.head(self.body(F.dropout(x, 0.2, self.training), mask=hidden)).transpose(0, 1)
        return out


@case("sgd", "fp32", 20, clip=True)
def encyclopaedia() -> Spec:
    return Spec(_Tutorial(), tokens(28782, 71), _next)


class _Annotated(nn.Module):
    """Attention spelled out, with scores that are hidden by a number: reader and writer."""

    class Spelled(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.lines = heads, nn.ModuleList(nn.Linear(width, width) for _ in range(4))

        def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            q, k, v = (
                line(one).unflatten(2, (self.heads, -1)).transpose(1, 2)
                for line, one in zip(self.lines[:3], (x, y, y), strict=True)
            )
            scores = (q @ k.transpose(2, 3) / math.sqrt(q.size(3))).masked_fill(mask == 0, -1e9)
            weight = F.dropout(scores.softmax(3), 0.1, self.training)
            out: Tensor = self.lines[3]((weight @ v).transpose(1, 2).flatten(2))
            return out

    def __init__(self, words: int = 9000, width: int = 384, depth: int = 4) -> None:
        super().__init__()

        def perceptrons() -> nn.ModuleList:
            return nn.ModuleList(
                joined(nn.Linear(width, 1536), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1536, width))
                for _ in range(depth)
            )

        self.source, self.target, self.head = (
            nn.Embedding(words, width),
            nn.Embedding(words, width),
            nn.Linear(width, words),
        )
        self.own, self.mine, self.across = (
            nn.ModuleList(self.Spelled(width, 6) for _ in range(depth)) for _ in range(3)
        )
        self.read, self.write = perceptrons(), perceptrons()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5 * depth))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        seen, length = (source != 0)[:, None, None, :], target.size(1)
        before = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        x, y, norms = self.source(source), self.target(target), iter(self.norms)
        for look, think in zip(self.own, self.read, strict=True):
            normal = next(norms)(x)
            x = x + F.dropout(look(normal, normal, seen), 0.1, self.training)
            x = x + think(next(norms)(x))
        for look, across, think in zip(self.mine, self.across, self.write, strict=True):
            normal = next(norms)(y)
            y = y + look(normal, normal, before)
            y = y + across(next(norms)(y), x, seen)
            y = y + think(next(norms)(y))
        out: Tensor = self.head(y)
        return out


@case("adam", "fp32", 64)
def spelled_out() -> Spec:
    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        told = model(source, target[:, :-1]).log_softmax(2).flatten(0, 1)
        right = target[:, 1:].flatten()
        smooth = torch.full_like(told, 0.1 / 8998).scatter_(1, right.unsqueeze(1), 0.9)
        return F.kl_div(told, smooth, reduction="sum") / len(right)

    return Spec(_Annotated(), made(kinds(9000, 44), kinds(9000, 41)), loss)


class _Tiny(nn.Module):
    """Pictures of 32 in patches of four, torch's own encoder layers."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.enter, self.first = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.places, self.head = nn.Parameter(torch.randn(1, 65, width) * 0.02), nn.Linear(width, 100)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 1024, 0.1, "gelu", batch_first=True, norm_first=True), 7, enable_nested_tensor=False)  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x).flatten(2).transpose(1, 2)
        out: Tensor = self.head(
            self.body(torch.cat([self.first.expand(len(x), -1, -1), y], 1) + self.places)[:, 0]
        )
        return out


@case("adamw", "amp_fp16", 128, evaluate=True)
def patches_of_four() -> Spec:
    return Spec(_Tiny(), labelled(3, 32, 32, classes=100), classified)


class _Compact(nn.Module):
    """Convolutions make the words, attention weighs them, and a weighed sum replaces the first word (CCT)."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.enter = joined(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(64, width, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1))  # fmt: skip
        self.layers = nn.ModuleList(_layer(width, _Heads(width, 4), drop=0.1) for _ in range(7))
        self.weigh, self.head = nn.Linear(width, 1), nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            y = checkpoint(layer, y, use_reentrant=False) if self.training else layer(y)
        out: Tensor = self.head((self.weigh(y).softmax(1) * y).sum(1))
        return out


@case("adamw", "amp_bf16", 64)
def words_from_convolutions() -> Spec:
    return Spec(_Compact(), labelled(3, 96, 96, classes=12), classified)


class _Codes(nn.Module):
    """Codes of a picture one after another, after its kind."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.kinds, self.codes = nn.Embedding(100, width), nn.Embedding(2048, width)
        self.places = nn.Parameter(torch.randn(1, 256, width) * 0.02)
        self.body = nn.Sequential(*(_layer(width, _Heads(width, 8, causal=True), drop=0.1) for _ in range(8)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2048))

    def forward(self, kind: Tensor, codes: Tensor) -> Tensor:
        x = torch.cat([self.kinds(kind).unsqueeze(1), self.codes(codes[:, :-1])], 1) + self.places
        out: Tensor = self.head(self.body(x)).transpose(1, 2)
        return out


@case("adamw_fused", "amp_bf16", 24, clip=True, ema=True)
def pictures_code_by_code() -> Spec:
    return Spec(
        _Codes(),
        made(kinds(100), kinds(2048, 256)),
        lambda m, kind, codes: F.cross_entropy(m(kind, codes).float(), codes),
    )


class _Questions(nn.Module):
    """Boxes asked for by fifty questions over what a ResNet-18 sees (DETR in few lines)."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.see, self.enter = nn.Sequential(*stages("resnet18")), nn.Conv2d(512, width, 1)
        self.body = nn.Transformer(width, 8, 3, 3, 1024, 0.1, batch_first=True)
        self.ask = nn.Parameter(torch.rand(50, width))
        self.rows, self.columns = (
            nn.Parameter(torch.rand(30, width // 2)),
            nn.Parameter(torch.rand(30, width // 2)),
        )
        self.kind, self.box = nn.Linear(width, 21), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.enter(self.see(x))
        height, across = y.shape[2:]
        places = torch.cat(
            [
                self.columns[:across].expand(height, -1, -1),
                self.rows[:height].unsqueeze(1).expand(-1, across, -1),
            ],
            2,
        )
        told = self.body(y.flatten(2).transpose(1, 2) + places.flatten(0, 1), self.ask.expand(len(x), -1, -1))
        return self.kind(told), self.box(told).sigmoid()


@case("adamw", "fp32", 8, clip=True)
def fifty_questions() -> Spec:
    def loss(model: nn.Module, x: Tensor, kind: Tensor, box: Tensor) -> Tensor:
        told, place = model(x)
        return F.cross_entropy(told.transpose(1, 2), kind) + 5 * F.l1_loss(place, box)

    return Spec(_Questions(), made(numbers(3, 416, 480), kinds(21, 50), shares(50, 4)), loss)


class _Hidden(nn.Module):
    """Things that were bought, some hidden, guessed from both sides (BERT4Rec); every thing gets a score."""

    def __init__(self, things: int = 20000, width: int = 128) -> None:
        super().__init__()
        self.things, self.places = nn.Embedding(things + 2, width, padding_idx=0), nn.Embedding(100, width)
        self.body = nn.Sequential(*(_layer(width, _Heads(width, 4), drop=0.2) for _ in range(3)))
        self.bias = nn.Parameter(torch.zeros(things + 2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.things(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        return self.body(x) @ self.things.weight.t() + self.bias


@case("adam", "fp32", 64)
def hidden_purchases() -> Spec:
    def loss(model: nn.Module, ids: Tensor, hidden: Tensor) -> Tensor:
        covered = hidden == 0
        told = model(ids.masked_fill(covered, 20001))
        return F.cross_entropy(told.flatten(0, 1), ids.masked_fill(~covered, -100).flatten())

    return Spec(_Hidden(), made(kinds(20000, 100), kinds(6, 100)), loss)


@case("adam", "tf32", 32)
def sensors_as_words() -> Spec:
    """Each of 321 series is one word (iTransformer), 96 steps in, 192 ahead."""

    class Turned(nn.Module):
        def __init__(self, width: int = 512) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(96, width),
                nn.Dropout(0.1),
                *(_layer(width, _Heads(width, 8), drop=0.1) for _ in range(3)),
            )
            self.head = nn.Linear(width, 192)

        def forward(self, x: Tensor) -> Tensor:
            mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
            told = self.head(self.body(((x - mean) / spread).transpose(1, 2))).transpose(1, 2)
            return told * spread + mean

    return Spec(Turned(), to_numbers(96, 321, outputs=(192, 321)), squared)


class _FourBooks(nn.Module):
    """Music as four codes a moment, each a step later than the one above; four heads tell the next (as MusicGen does)."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.books = nn.ModuleList(nn.Embedding(1025, width) for _ in range(4))
        self.body = nn.Sequential(
            *(_layer(width, _Heads(width, 8, causal=True, turned=True)) for _ in range(8)),
            nn.LayerNorm(width),
        )
        self.heads = nn.ModuleList(nn.Linear(width, 1024, bias=False) for _ in range(4))

    def forward(self, codes: Tensor) -> Tensor:
        late = torch.stack(
            [F.pad(codes[:, book], (book + 1, 0), value=1024)[:, : codes.size(2)] for book in range(4)], 1
        )
        x = torch.stack([book(late[:, index]) for index, book in enumerate(self.books)]).sum(0)
        y = self.body(x)
        return torch.stack([head(y).transpose(1, 2) for head in self.heads], 3)


@case("adamw", "amp_fp16", 8)
def music_in_codes() -> Spec:
    return Spec(
        _FourBooks(),
        made(kinds(1024, 4, 500)),
        lambda m, codes: F.cross_entropy(m(codes).float(), codes.transpose(1, 2)),
    )


class _Pairs(nn.Module):
    """Pictures by convolutions, captions by attention; each must find its own."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.see = joined(normed(3, 64, 7, 2), normed(64, 128, 3, 2), normed(128, 256, 3, 2), normed(256, 512, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, width))  # fmt: skip
        self.words, self.places = nn.Embedding(12000, 384), nn.Parameter(torch.randn(1, 40, 384) * 0.02)
        self.read = nn.Sequential(*(_layer(384, _Heads(384, 6, causal=True), drop=0.1) for _ in range(4)))
        self.head, self.sharp = nn.Linear(384, width), nn.Parameter(torch.tensor(2.6))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        seen = F.normalize(self.see(x).float())
        told = F.normalize(self.head(self.read(self.words(ids) + self.places)[:, -1]).float())
        near, own = self.sharp.exp() * seen @ told.t(), torch.arange(len(x), device=x.device)
        return (F.cross_entropy(near, own) + F.cross_entropy(near.t(), own)) / 2


@case("adamw", "amp_bf16", 96)
def captions_find_pictures() -> Spec:
    return Spec(_Pairs(), made(numbers(3, 160, 160), kinds(12000, 40)), lambda m, x, ids: m(x, ids))
