"""Hand-written transformers: text, bytes, mixtures of experts, proteins, time series."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.blocks import Checkpointed, TokenEmbedding, Transpose, transformer_layer
from bench.lib.models.layers import Residual, sequential
from bench.lib.models.parts import (
    Spec,
    batch_of,
    classification_loss,
    integers,
    mlp,
    mse_loss,
    normal,
    padded_texts,
    token_loss,
    tokens,
    unlabelled,
    with_targets,
)

CASES = CaseSet()
case = CASES.case


def _next_token_loss(output: Tensor, ids: Tensor) -> Tensor:
    """Return the next-token cross-entropy."""
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _split(x: Tensor, heads: int) -> Tensor:
    """Split the last dimension into heads, and move the heads before the positions."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


# Text.


class _RotaryAttention(nn.Module):
    """Attention with normalized queries and keys and rotary position embeddings."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.enter, self.leave = heads, nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)  # fmt: skip
        speed = 10000 ** -torch.linspace(0, 1, width // heads // 2)
        angle = torch.outer(torch.arange(length), speed)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        a, b = F.rms_norm(x, (x.size(-1),)).chunk(2, -1)
        return torch.cat([a * self.cos + b * self.sin, b * self.cos - a * self.sin], -1).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        asked, keys, values = (_split(part, self.heads) for part in self.enter(x).chunk(3, -1))
        seen = F.scaled_dot_product_attention(self.rotate(asked), self.rotate(keys), values, is_causal=True)
        out: Tensor = self.leave(seen.transpose(1, 2).flatten(2))
        return out


class _SquaredReLU(nn.Module):
    """Squared ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class _SpeedrunGPT(nn.Module):
    """A GPT in the style of repositories for speed runs."""

    def __init__(self, words: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)

        def mlp_layers() -> list[nn.Module]:
            return [nn.Linear(width, 4 * width, False), _SquaredReLU(), nn.Linear(4 * width, width, False)]

        self.layers = sequential(
            *(
                part
                for _ in range(layers)
                for part in (
                    Residual(nn.RMSNorm(width), _RotaryAttention(width, width // 64, length)),
                    Residual(nn.RMSNorm(width), *mlp_layers()),
                )
            )
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = F.rms_norm(self.words(ids), (self.words.embedding_dim,))
        output = self.head(F.rms_norm(self.layers(x), x.shape[-1:])).float()
        return 15 * torch.tanh(output / 15)


@case("adamw_fused", "amp_bf16", 6, accumulate=2, clip=True)
def raced_gpt() -> Spec:
    """Build a GPT with eight layers and logits soft-capped at 15."""
    return Spec(
        _SpeedrunGPT(32768, 512, 8, 512), tokens(32768, 512), lambda m, ids, _: _next_token_loss(m(ids), ids)
    )


@case("adamw", "amp_bf16", 8)
def losses_in_pieces() -> Spec:
    """Build a GPT with a chunked loss. The output layer and its cross-entropy run with checkpointing, 512 tokens at a
    time."""
    layers = [transformer_layer(512, 8, causal=True) for _ in range(6)]
    model = nn.ModuleDict(
        {
            "body": sequential(TokenEmbedding(50000, 512, 448), *layers, nn.LayerNorm(512)),
            "head": nn.Linear(512, 50000),
        }
    )

    def loss(model: nn.ModuleDict, ids: Tensor, target: Tensor) -> Tensor:
        def piece(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model["head"](x), y, reduction="sum")

        pieces = zip(model["body"](ids).flatten(0, 1).split(512), target.flatten().split(512), strict=True)
        total = sum(checkpoint(piece, x, y, use_reentrant=False) for x, y in pieces)
        return total / target.numel()

    return Spec(model, batch_of(integers(50000, 448), integers(50000, 448)), loss)


class _RelativeAttention(nn.Module):
    """Attention with a learned relative position bias and dropout."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.enter, self.leave = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.apart = nn.Embedding(2 * length - 1, heads)
        places = torch.arange(length)
        self.register_buffer("far", places[:, None] - places + length - 1, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        asked, keys, values = (_split(part, self.heads) for part in self.enter(x).chunk(3, -1))
        bias = self.apart(self.far).permute(2, 0, 1).unsqueeze(0).to(asked.dtype).expand(len(x), -1, -1, -1)
        seen = F.scaled_dot_product_attention(asked, keys, values, bias, dropout_p=0.1 * self.training)
        out: Tensor = self.leave(seen.transpose(1, 2).flatten(2))
        return out


@case("adamw", "amp_fp16", 12)
def how_far_apart() -> Spec:
    """Build a masked language model on 256 tokens."""
    layers = [
        part
        for _ in range(6)
        for part in (
            Residual(nn.LayerNorm(384), _RelativeAttention(384, 6, 256)),
            Residual(nn.LayerNorm(384), *mlp(384, 1536, 384, act=nn.GELU)),
        )
    ]
    model = sequential(nn.Embedding(14000, 384), *layers, nn.LayerNorm(384), nn.Linear(384, 14000))
    return Spec(model, batch_of(integers(14000, 256), integers(14000, 256)), token_loss)


class _AttentionWithWeights(nn.Module):
    """`nn.MultiheadAttention` that also returns its weights, with a padding mask, as in many tutorials."""

    def __init__(self, words: int, width: int, length: int, classes: int) -> None:
        super().__init__()
        self.words, self.head = TokenEmbedding(words, width, length), nn.Linear(width, classes)
        self.looks = nn.ModuleList(nn.MultiheadAttention(width, 8, 0.1, batch_first=True) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(8))
        self.mlp_layers = nn.ModuleList(mlp(width, 2 * width, width) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x, attention_weights = self.words(ids), []
        for look, mlp_layers, first, second in zip(
            self.looks, self.mlp_layers, self.norms[::2], self.norms[1::2], strict=True
        ):
            seen, weights = look(x, x, x, key_padding_mask=ids == 0)
            attention_weights.append(weights.detach())
            x = first(x + seen)
            x = second(x + mlp_layers(x))
        self.attention_weights = torch.stack(attention_weights).mean(0)
        out: Tensor = self.head(x.mean(1))
        return out


@case("adam", "fp32", 40)
def weights_to_look_at() -> Spec:
    return Spec(_AttentionWithWeights(15000, 256, 200, 6), padded_texts(15000, 200, 6), classification_loss)


class _MegaByte(nn.Module):
    """A large model over groups of eight bytes and a small model over the bytes of each group (MegaByte)."""

    def __init__(self, length: int, width: int = 640, narrow: int = 192, piece: int = 8) -> None:
        super().__init__()
        self.piece, self.read = piece, TokenEmbedding(256, width // piece, length)
        self.large = sequential(*(transformer_layer(width, 10, causal=True) for _ in range(8)))
        self.output, self.bytes = nn.Linear(width, narrow), nn.Embedding(256, narrow)
        self.small = sequential(
            *(transformer_layer(narrow, 3, causal=True) for _ in range(3)), nn.Linear(narrow, 256)
        )

    def forward(self, ids: Tensor) -> Tensor:
        pieces = self.read(ids).unflatten(1, (-1, self.piece)).flatten(2)
        known = self.output(self.large(F.pad(pieces, (0, 0, 1, -1)))).flatten(0, 1).unsqueeze(1)
        before = F.pad(self.bytes(ids.view(-1, self.piece)), (0, 0, 1, -1))
        out: Tensor = self.small(before + known).unflatten(0, (len(ids), -1)).flatten(1, 2)
        return out


@case("adamw", "tf32", 6, clip=True)
def bytes_in_two_stages() -> Spec:
    return Spec(_MegaByte(1536), tokens(256, 1536), token_loss)


# Experts.


class _SwitchExperts(nn.Module):
    """Top-1 routing with a capacity per expert (Switch). Overflowing tokens skip the layer."""

    def __init__(self, width: int, experts: int, room: float = 1.25) -> None:
        super().__init__()
        self.choose, self.room = nn.Linear(width, experts), room
        self.enter = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.02)
        self.leave = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        odds = self.choose(rows).softmax(1)
        sure, which = odds.max(1)
        experts, room = odds.size(1), int(self.room * len(rows) / odds.size(1))
        mine = (which.unsqueeze(1) == torch.arange(experts, device=x.device)).to(x.dtype)
        place = mine.cumsum(0) * mine - 1
        slots = (place.unsqueeze(2) == torch.arange(room, device=x.device)).to(x.dtype)
        sent = torch.einsum("nes,nw->esw", slots, rows)
        done = F.gelu(sent @ self.enter) @ self.leave
        back = torch.einsum("nes,esw->nw", slots * sure.view(-1, 1, 1), done)
        return back.view_as(x)


class _ExpertChoice(nn.Module):
    """Expert choice routing, in which each expert selects the same number of tokens."""

    def __init__(self, width: int, experts: int, share: int) -> None:
        super().__init__()
        self.like, self.share = nn.Linear(width, experts, bias=False), share
        self.enter = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02)
        self.leave = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        weight, which = self.like(x).softmax(2).transpose(1, 2).topk(x.size(1) // self.share, 2)
        index = which.flatten(1).unsqueeze(2).expand(-1, -1, x.size(2))
        taken = x.gather(1, index).unflatten(1, which.shape[1:])
        done = torch.einsum("benh,ehw->benw", F.silu(torch.einsum("benw,ewh->benh", taken, self.enter)), self.leave)  # fmt: skip
        back = (done * weight.unsqueeze(3)).flatten(1, 2)
        return torch.zeros_like(x).scatter_add(1, index, back.to(x.dtype))


class _SoftExperts(nn.Module):
    """Soft routing, in which experts process weighted mixtures of all positions (Soft MoE)."""

    def __init__(self, width: int, experts: int, slots: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(width, experts * slots) * 0.02)
        self.experts = nn.ModuleList(mlp(width, 4 * width, width, act=nn.GELU) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ self.mix
        sent = scores.softmax(1).transpose(1, 2) @ x
        parts = sent.chunk(len(self.experts), 1)
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)], 1)
        return scores.softmax(2) @ done


def _with_experts(width: int, layers: int, experts: type[nn.Module], *sizes: int, causal: bool) -> list[nn.Module]:  # fmt: skip
    """Return transformer layers. A mixture of experts follows every second layer."""
    found: list[nn.Module] = []
    for number in range(layers):
        found.append(transformer_layer(width, width // 64, causal=causal))
        if number % 2:
            found.append(Residual(nn.LayerNorm(width), experts(width, *sizes)))
    return found


@case("adamw", "fp32", 6, clip=True)
def one_expert_for_each_word() -> Spec:
    layers = _with_experts(384, 6, _SwitchExperts, 8, causal=True)
    model = sequential(TokenEmbedding(12000, 384, 256), *layers, nn.LayerNorm(384), nn.Linear(384, 12000))
    return Spec(model, batch_of(integers(12000, 256), integers(12000, 256)), token_loss)


@case("adamw", "bf16", 10)
def experts_choose_words() -> Spec:
    layers = _with_experts(512, 6, _ExpertChoice, 16, 8, causal=False)
    model = sequential(TokenEmbedding(20000, 512, 320), *layers, nn.LayerNorm(512), nn.Linear(512, 20000))
    return Spec(model, batch_of(integers(20000, 320), integers(20000, 320)), token_loss)


@case("adamw", "amp_bf16", 28, ema=True)
def soft_experts_for_patches() -> Spec:
    """Return a vision transformer on 160-pixel images with 16-pixel patches."""
    enter = [nn.Conv2d(3, 384, 16, 16), nn.Flatten(2), Transpose()]
    layers = _with_experts(384, 8, _SoftExperts, 8, 13, causal=False)
    model = sequential(enter, *layers, nn.LayerNorm(384), Transpose(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(384, 70))  # fmt: skip
    return Spec(model, batch_of(normal(3, 160, 160), integers(70)), classification_loss)


# Proteins and time series.


class _TriangleBlock(nn.Module):
    """Triangle multiplication and triangle attention over residue pairs (AlphaFold)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.sides, self.gates, self.out = (nn.Linear(width, 2 * width), nn.Linear(width, 2 * width), nn.Linear(width, width))  # fmt: skip
        self.asked, self.bias, self.leave = (nn.Linear(width, 3 * width), nn.Linear(width, heads), nn.Linear(width, width))  # fmt: skip
        self.mlp_layers = sequential(nn.LayerNorm(width), mlp(width, 4 * width, width))

    def forward(self, pairs: Tensor) -> Tensor:
        x = self.norm(pairs)
        one, other = (self.sides(x) * self.gates(x).sigmoid()).chunk(2, -1)
        pairs = pairs + self.out(torch.einsum("bikc,bjkc->bijc", one, other))
        x = self.second(pairs)
        asked, keys, values = (_split(part, self.heads).flatten(0, 1) for part in self.asked(x).chunk(3, -1))
        bias = self.bias(x).permute(0, 3, 1, 2).repeat_interleave(x.size(1), 0)
        seen = F.scaled_dot_product_attention(asked, keys, values, bias.to(asked.dtype))
        pairs = pairs + self.leave(seen.transpose(1, 2).flatten(2)).view_as(pairs)
        out: Tensor = pairs + self.mlp_layers(pairs)
        return out


@case("adam", "amp_bf16", 4, clip=True)
def distances_of_residues() -> Spec:
    """Build a model over tables of 88 × 88 residue pairs, with activation checkpointing."""
    layers = Checkpointed(*(_TriangleBlock(96, 4) for _ in range(6)))
    model = sequential(nn.Linear(20, 96), layers, nn.LayerNorm(96), nn.Linear(96, 37))

    def loss(model: nn.Module, pairs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(pairs).flatten(0, 2).float(), target.flatten())

    return Spec(model, batch_of(normal(88, 88, 20), integers(37, 88, 88)), loss)


@case("adam", "fp32", 16)
def each_series_is_a_word() -> Spec:
    """Build a model that predicts the next 192 hours of 321 series from 96 hours. Each series is one token
    (iTransformer)."""
    layers = [transformer_layer(512, 8, inner=512, drop=0.1) for _ in range(3)]
    model = sequential(
        Transpose(), nn.Linear(96, 512), *layers, nn.LayerNorm(512), nn.Linear(512, 192), Transpose()
    )
    return Spec(model, with_targets(96, 321, outputs=(192, 321)), mse_loss)


@case("adamw", "amp_fp16", 90)
def pieces_foretell_pieces() -> Spec:
    """Return a model in which each patch of 32 values predicts the next 96 values (TimesFM)."""
    layers = [transformer_layer(320, 5, causal=True, drop=0.1) for _ in range(8)]
    model = sequential(nn.Unflatten(1, (-1, 32)), mlp(32, 320, 320, act=nn.SiLU), *layers, nn.Linear(320, 96))

    def loss(model: nn.Module, series: Tensor) -> Tensor:
        output = model(series[:, :1024])
        return F.l1_loss(output.float(), series[:, 32:].unfold(1, 96, 32))

    return Spec(model, unlabelled(1120), loss)
