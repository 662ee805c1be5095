"""Attention in plain torch, taken from torch.nn or written out, over words, letters, pictures and sensors. Cases stand above
the model they train.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.case import CaseSet
from bench.model_parts import (
    Spec,
    classified,
    padded_texts,
    squared,
    to_numbers,
    tokens,
    zoo,
)

SEALED_ATTENTION = CaseSet()
case = SEALED_ATTENTION.case


class _Encoded(nn.Module):
    """torch's encoder over a text, padding masked, the mean of what remains."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(20000, width, padding_idx=0),
            nn.Parameter(torch.randn(1, 256, width) * 0.02),
        )
        layer = nn.TransformerEncoderLayer(
            width, 6, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        empty = ids == 0
        x = self.body(self.words(ids) + self.places[:, : ids.size(1)], src_key_padding_mask=empty)
        kept = (~empty).unsqueeze(2).float()
        out: Tensor = self.head((x * kept).sum(1) / kept.sum(1))
        return out


@case("adamw", "fp32", 64, evaluate=True)
def encoded_news() -> Spec:
    return Spec(_Encoded(), padded_texts(20000, 160, 4), classified)


class _Ahead(nn.Module):
    """A block of a small GPT with torch's attention and a mask of what lies ahead."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look = nn.MultiheadAttention(width, heads, dropout=0.2, batch_first=True)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.Dropout(0.2)
        )

    def forward(self, x: Tensor, ahead: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.look(y, y, y, attn_mask=ahead, need_weights=False)[0]
        out: Tensor = x + self.think(self.norm2(x))
        return out


class _Plays(nn.Module):
    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(65, width), nn.Embedding(256, width)
        self.blocks = nn.ModuleList(_Ahead(width, 6) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.size(1)
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool, device=ids.device), 1)
        x = self.letters(ids) + self.places(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x, ahead)
        out: Tensor = self.head(self.norm(x))
        return out


def _next(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), labels[:, 1:].flatten())


@case("adamw", "fp32", 64)
def plays() -> Spec:
    return Spec(_Plays(), tokens(65, 257), _next)


class _ByHand(nn.Module):
    """Attention spelled out: scores, mask, softmax, dropout, sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm1, self.norm2, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.1)
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (f(x).view(n, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(mask == 0, -1e4)
        y = torch.matmul(self.drop(torch.softmax(scores, dim=-1)), v)
        x = self.norm1(x + self.drop(self.o(y.transpose(1, 2).contiguous().view(n, length, width))))
        out: Tensor = self.norm2(x + self.drop(self.think(x)))
        return out


class _HandMade(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(10000, 256), nn.Embedding(512, 256)
        self.blocks = nn.ModuleList(_ByHand(256, 8) for _ in range(4))
        self.head = nn.Linear(256, 5)

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 0)[:, None, None, :]
        x = self.words(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x, mask)
        out: Tensor = self.head(x.max(1).values)
        return out


@case("adam", "amp_fp16", 16)
def attention_by_hand() -> Spec:
    return Spec(_HandMade(), padded_texts(10000, 400, 5), classified)


class _Recomputed(nn.Module):
    """Encoder layers that are run again in the backward pass."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 2048, batch_first=True) for _ in range(8)
        )
        self.head = nn.Linear(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        out: Tensor = self.head(x)
        return out


@case("adamw", "amp_bf16", 16)
def recomputed_layers() -> Spec:
    return Spec(_Recomputed(), to_numbers(384, 64, outputs=(384, 64)), squared)


class _Captions(nn.Module):
    """A frozen ResNet-18's places, and torch's decoder that looks at them."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.see = nn.Sequential(*list(zoo("resnet18").children())[:-2]).requires_grad_(False)
        self.enter, self.words = nn.Linear(512, width), nn.Embedding(9000, width)
        self.places = nn.Embedding(40, width)
        self.body = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, 4, 1024, batch_first=True), 3)
        self.head = nn.Linear(width, 9000)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        seen = self.enter(self.see(x).flatten(2).transpose(1, 2))
        length = words.size(1)
        ahead = nn.Transformer.generate_square_subsequent_mask(length, device=x.device)
        y = self.words(words) + self.places(torch.arange(length, device=x.device))
        out: Tensor = self.head(self.body(y, seen, tgt_mask=ahead, tgt_is_causal=True))
        return out


@case("adam", "fp32", 32)
def captions() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 224, 224).to(device), torch.randint(0, 9000, (count, 24)).to(device)]

    def loss(model: nn.Module, x: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(model(x, words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    return Spec(_Captions(), batch, loss)


class _PatchedSeries(nn.Module):
    """Each sensor by itself, cut into patches of sixteen (PatchTST)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.enter, self.places = nn.Linear(16, width), nn.Parameter(torch.randn(1, 41, width) * 0.02)
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 16, 256, 0.2, batch_first=True), 3
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(41 * width, 96))

    def forward(self, x: Tensor) -> Tensor:
        n, channels, _ = x.shape
        mean, spread = x.mean(2, keepdim=True), x.std(2, keepdim=True) + 1e-5
        patches = ((x - mean) / spread).flatten(0, 1).unfold(1, 16, 8)
        told: Tensor = self.head(self.body(self.enter(patches) + self.places))
        return told.view(n, channels, 96) * spread + mean


@case("adam", "fp32", 32)
def electricity() -> Spec:
    return Spec(_PatchedSeries(), to_numbers(21, 336, outputs=(21, 96)), squared)
