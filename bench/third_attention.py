"""Attention in people's own code: letters, pictures, sets, tables, series. Cases stand above the model they train."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.case import CaseSet
from bench.layer_parts import Residual
from bench.model_parts import Spec, bits, classified, kinds, labelled, made, numbers, tokens

THIRD_ATTENTION = CaseSet()
case = THIRD_ATTENTION.case


def _next(model: nn.Module, ids: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class _Fused(nn.Module):
    """One line for queries, keys and values, torch's own attention."""

    def __init__(self, width: int, heads: int, *, causal: bool, drop: float = 0.0) -> None:
        super().__init__()
        self.heads, self.causal, self.drop = heads, causal, drop
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.heads, -1).transpose(1, 2) for part in self.enter(x).split(width, 2)
        )
        drop = self.drop if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=drop)
        out: Tensor = self.leave(y.transpose(1, 2).reshape(n, length, width))
        return out


def _block(width: int, heads: int, *, causal: bool = False, drop: float = 0.0) -> nn.Sequential:
    think = [
        nn.LayerNorm(width),
        nn.Linear(width, 4 * width),
        nn.GELU(),
        nn.Linear(4 * width, width),
        nn.Dropout(drop),
    ]
    return nn.Sequential(
        Residual(nn.LayerNorm(width), _Fused(width, heads, causal=causal, drop=drop), nn.Dropout(drop)),
        Residual(*think),
    )


class _Letters(nn.Module):
    """A small GPT whose head is its words."""

    def __init__(
        self, words: int, width: int, layers: int, longest: int, *, drop: float = 0.0, again: bool = False
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(_block(width, width // 64, causal=True, drop=drop) for _ in range(layers))
        self.norm, self.head, self.again = nn.LayerNorm(width), nn.Linear(width, words, bias=False), again
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        out: Tensor = self.head(self.norm(x))
        return out


@case("adamw", "amp_bf16", 12, accumulate=4, clip=True)
def letters_on_one_card() -> Spec:
    """nanoGPT's way: several batches a step, bfloat16, clipped."""
    return Spec(_Letters(50304, 384, 6, 512), tokens(50304, 513), _next)


@case("adamw_fused", "fp32", 32)
def verses() -> Spec:
    return Spec(_Letters(96, 256, 8, 320, drop=0.2), tokens(96, 321), _next)


@case("adamw", "amp_fp16", 6, clip=True)
def computed_again() -> Spec:
    return Spec(_Letters(16000, 512, 12, 1024, drop=0.1, again=True), tokens(16000, 1025), _next)


class _Turning(nn.Module):
    """A layer as newer language models have it: turned queries and keys, few heads of keys, a gate, root-mean-square norms."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, each = heads, groups, width // heads
        self.q, self.k, self.v = (
            nn.Linear(width, each * many, bias=False) for many in (heads, groups, groups)
        )
        self.o = nn.Linear(width, width, bias=False)
        inner = 8 * width // 3
        self.gate, self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)  # fmt: skip
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)

    @staticmethod
    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, length, width = x.shape
        y = self.norm1(x)
        q = self.q(y).view(n, length, self.heads, -1).transpose(1, 2)
        k, v = (line(y).view(n, length, self.groups, -1).transpose(1, 2) for line in (self.k, self.v))
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        k, v = (one.repeat_interleave(self.heads // self.groups, dim=1) for one in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(n, length, width))
        y = self.norm2(x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


class _OwnLlama(nn.Module):
    def __init__(self, width: int = 480, layers: int = 8) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(12000, width), nn.Linear(width, 12000, bias=False)
        self.layers, self.norm = (
            nn.ModuleList(_Turning(width, 8, 2) for _ in range(layers)),
            nn.RMSNorm(width),
        )
        turned = torch.outer(torch.arange(512.0), 10000 ** (-torch.arange(0, 30) / 30))
        self.register_buffer("cos", turned.cos(), persistent=False)
        self.register_buffer("sin", turned.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x, length = self.words(ids), ids.size(1)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        out: Tensor = self.head(self.norm(x))
        return out


@case("adamw", "fp32", 8, clip=True)
def own_llama() -> Spec:
    return Spec(_OwnLlama(), tokens(12000, 300), _next)


class _Patches(nn.Module):
    """A vision transformer from scratch: patches cut by hand, attention spelled out."""

    class Spelled(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.scale = heads, (width // heads) ** -0.5
            self.enter, self.leave = (
                nn.Linear(width, 3 * width, bias=False),
                nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1)),
            )
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            n, length, width = x.shape
            q, k, v = self.enter(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            weight = self.drop(((q @ k.transpose(-2, -1)) * self.scale).softmax(-1))
            out: Tensor = self.leave((weight @ v).transpose(1, 2).reshape(n, length, width))
            return out

    def __init__(self, width: int = 256, layers: int = 6) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.LayerNorm(192), nn.Linear(192, width), nn.LayerNorm(width))
        self.first, self.places = (
            nn.Parameter(torch.randn(1, 1, width)),
            nn.Parameter(torch.randn(1, 145, width)),
        )
        blocks: list[nn.Module] = []
        for _ in range(layers):
            think = [
                nn.LayerNorm(width),
                nn.Linear(width, 512),
                nn.GELU(),
                nn.Dropout(0.1),
                nn.Linear(512, width),
                nn.Dropout(0.1),
            ]
            blocks += [Residual(nn.LayerNorm(width), self.Spelled(width, 8)), Residual(*think)]
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        patches = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).reshape(n, 144, 192)
        y = torch.cat([self.first.expand(n, -1, -1), self.enter(patches)], 1) + self.places
        out: Tensor = self.head(self.body(F.dropout(y, 0.1, self.training))[:, 0])
        return out


@case("adam", "fp32", 64, evaluate=True)
def patches_by_hand() -> Spec:
    return Spec(_Patches(), labelled(3, 96, 96, classes=10), classified)


class _Columns(nn.Module):
    """Every column of a table is a word (FT-Transformer)."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(28, width) * 0.05) for _ in range(2))
        self.words, self.first = nn.Embedding(600, width), nn.Parameter(torch.randn(1, 1, width))
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 256, 0.1, "relu", batch_first=True, norm_first=True), 3, enable_nested_tensor=False)  # fmt: skip
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        rows = torch.cat(
            [self.first.expand(len(x), -1, -1), x.unsqueeze(2) * self.scale + self.shift, self.words(words)],
            1,
        )
        out: Tensor = self.head(self.body(rows)[:, 0]).squeeze(1)
        return out


@case("adamw", "fp32", 256)
def columns_as_words() -> Spec:
    return Spec(
        _Columns(),
        made(numbers(28), kinds(600, 12), bits()),
        lambda m, x, words, y: F.binary_cross_entropy_with_logits(m(x, words), y),
    )


class _Conformer(nn.Module):
    """Attention and a depthwise convolution in time by turns."""

    class Convolved(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.enter = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
            self.deep = nn.Conv1d(width, width, 31, padding=15, groups=width)
            self.after, self.leave = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.glu(self.enter(self.norm(x).transpose(1, 2)), 1)
            out: Tensor = self.leave(F.silu(self.after(self.deep(y)))).transpose(1, 2)
            return out

    def __init__(self, width: int = 144) -> None:
        super().__init__()
        self.thin = nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU())
        self.enter = nn.Linear(32 * 19, width)
        blocks: list[nn.Module] = []
        for _ in range(6):
            for last in (False, True):
                blocks.append(Residual(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)))  # fmt: skip
                if not last:
                    blocks += [
                        Residual(nn.LayerNorm(width), _Fused(width, 4, causal=False, drop=0.1)),
                        Residual(self.Convolved(width)),
                    ]
            blocks.append(nn.LayerNorm(width))
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(width, 48)

    def forward(self, x: Tensor) -> Tensor:
        y = self.thin(x.unsqueeze(1))
        out: Tensor = self.head(self.body(self.enter(y.transpose(1, 2).flatten(2)))).transpose(1, 2)
        return out


@case("adamw", "amp_fp16", 16)
def sounds_of_letters() -> Spec:
    """A sound for every fourth frame of eight seconds."""
    return Spec(_Conformer(), made(numbers(803, 80), kinds(48, 200)), classified)


class _Things(nn.Module):
    """Who bought these, buys that next (SASRec): causal attention and a dot with what follows and with a wrong guess."""

    def __init__(self, things: int = 54542, width: int = 64) -> None:
        super().__init__()
        self.things, self.places = nn.Embedding(things, width, padding_idx=0), nn.Embedding(200, width)
        self.layers = nn.ModuleList(nn.MultiheadAttention(width, 1, 0.2, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.think = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, width, 1)) for _ in range(2)
        )

    def forward(self, seen: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
        length = seen.size(1)
        x = self.things(seen) * math.sqrt(64) + self.places(torch.arange(length, device=seen.device))
        ahead = torch.ones(length, length, dtype=torch.bool, device=seen.device).triu(1)
        for index, layer in enumerate(self.layers):
            y = self.norms[2 * index](x)
            x = y + layer(y, x, x, attn_mask=ahead)[0]
            x = self.norms[2 * index + 1](x)
            x = x + self.think[index](x.transpose(1, 2)).transpose(1, 2)
        liked, other = (x * self.things(right)).sum(2), (x * self.things(wrong)).sum(2)
        return -(F.logsigmoid(liked) + F.logsigmoid(-other)).mean()


@case("adam", "fp32", 128)
def bought_next() -> Spec:
    some = kinds(54542, 200)
    return Spec(_Things(), made(some, some, some), lambda m, a, b, c: m(a, b, c))


class _Whole(nn.Module):
    """Temperatures read by torch's whole transformer, the next day written at once."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.enter, self.ask = nn.Linear(7, width), nn.Linear(4, width)
        self.body = nn.Transformer(width, 8, 3, 2, 512, 0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 7)

    def forward(self, past: Tensor, hours: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.enter(past), self.ask(hours)))
        return out


@case("adam", "amp_bf16", 64, evaluate=True)
def tomorrow() -> Spec:
    return Spec(
        _Whole(),
        made(numbers(288, 7), numbers(72, 4), numbers(72, 7)),
        lambda m, past, hours, y: F.mse_loss(m(past, hours).float(), y),
    )
