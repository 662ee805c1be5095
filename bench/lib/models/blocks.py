"""Larger blocks that the models of the cases share: attention, U-Nets, adversarial training, diffusion."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.lib.models.layers import Residual, conv_norm, outputs_of, sequential
from bench.lib.models.parts import StepParts, huggingface, transformer_sizes


class Attention(nn.Module):
    """Multi-head attention over all positions, over earlier positions (causal), or over another sequence."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, few: int = 0, seen: int = 0) -> None:
        super().__init__()
        self.each, self.causal = width // heads, causal
        self.query, self.leave = nn.Linear(width, width), nn.Linear(width, width)
        self.keys_values = nn.Linear(seen or width, 2 * self.each * (few or heads))

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        queries = self.query(x).unflatten(-1, (-1, self.each)).transpose(1, 2)
        keys, values = (
            part.unflatten(-1, (-1, self.each)).transpose(1, 2)
            for part in self.keys_values(x if other is None else other).chunk(2, -1)
        )
        attended = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=self.causal, enable_gqa=keys.size(1) != queries.size(1)
        )
        out: Tensor = self.leave(attended.transpose(1, 2).flatten(2))
        return out


def transformer_layer(
    width: int, heads: int, *, causal: bool = False, few: int = 0, inner: int = 0, drop: float = 0.0
) -> nn.Sequential:
    """Return a pre-norm transformer layer with attention and a two-layer MLP, each with a residual connection."""
    inner = inner or 4 * width
    look = [nn.LayerNorm(width), Attention(width, heads, causal=causal, few=few), nn.Dropout(drop)]
    think = [nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width), nn.Dropout(drop)]
    return nn.Sequential(Residual(*look), Residual(nn.LayerNorm(width), *think))


class Checkpointed(nn.Sequential):
    """A sequence of layers with activation checkpointing."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class TokenEmbedding(nn.Module):
    """Token and position embeddings."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.words(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        return out


class PatchEmbedding(nn.Module):
    """Image patches or audio frames as a sequence, with a class token and position embeddings."""

    def __init__(self, cut: nn.Module, count: int, width: int) -> None:
        super().__init__()
        self.cut = cut
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, count + 1, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        pieces = self.cut(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), pieces], 1) + self.places


class Select(nn.Module):
    """Selects the first position, the last position, or the mean over positions."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1) if self.which == "mean" else x[:, 0 if self.which == "first" else -1]


class Transpose(nn.Module):
    """Swaps two dimensions."""

    def __init__(self, first: int = 1, second: int = 2) -> None:
        super().__init__()
        self.dimensions = first, second

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(*self.dimensions)


class Concat(nn.Module):
    """Applies several layers to the same input and concatenates the results along channels."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], 1)


class UNet(nn.Module):
    """A U-Net. `down` layers reduce the size of the input. `up` layers increase the size again and also receive the
    output of the matching `down` layer."""

    def __init__(
        self, down: Iterable[nn.Module], up: Iterable[nn.Module], head: nn.Module, *, added: bool = False
    ) -> None:
        super().__init__()
        self.down, self.up, self.head = nn.ModuleList(down), nn.ModuleList(up), head
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        kept = outputs_of(self.down, x)
        x = kept.pop()
        for layer in self.up:
            skip = kept.pop()
            larger = F.interpolate(x, size=skip.shape[2:])
            x = layer(larger + skip if self.added else torch.cat([larger, skip], 1))
        out: Tensor = self.head(x)
        return out


def conv1d_norm(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    *,
    groups: int = 1,
    act: type[nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Return a 1D convolution with a norm, like `conv_norm`."""
    look = nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [look, nn.BatchNorm1d(outputs), act()]


def bottleneck(inputs: int, inner: int, outputs: int, stride: int = 1, *, groups: int = 1) -> Residual:
    """Return a residual bottleneck block."""
    layers = [*conv_norm(inputs, inner, 1), *conv_norm(inner, inner, 3, stride, groups=groups)]
    short = None
    if inputs != outputs or stride > 1:
        short = sequential(conv_norm(inputs, outputs, 1, stride)[:-1])
    return Residual(*layers, *conv_norm(inner, outputs, 1)[:-1], short=short, act=nn.ReLU())


def pooled_head(width: int, classes: int, *, drop: float = 0.0) -> list[nn.Module]:
    """Return global average pooling and a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(drop), nn.Linear(width, classes)]


def binary_loss(model: nn.Module, *rows: Tensor) -> Tensor:
    """Return the binary cross-entropy with logits. The last tensor of the batch is the target."""
    *seen, target = rows
    return F.binary_cross_entropy_with_logits(model(*seen), target)


def adversarial(
    fake: Callable[[nn.Module, list[Tensor]], Tensor],
    discriminator_loss: Callable[[nn.Module, list[Tensor], Tensor], Tensor],
    generator_loss: Callable[[nn.Module, list[Tensor], Tensor], Tensor],
) -> Callable[[StepParts], Callable[[], Tensor]]:
    """Return an adversarial step. It first trains the discriminator on generated samples, and then trains the
    generator with the discriminator."""

    def training(parts: StepParts) -> Callable[[], Tensor]:
        generator, discriminator = parts.model["generator"], parts.model["discriminator"]
        generator_optimizer, discriminator_optimizer = (
            parts.optimizer(generator.parameters()),
            parts.optimizer(discriminator.parameters()),
        )

        def learn(optimizer: torch.optim.Optimizer, precision: contextlib.AbstractContextManager[object], loss: Callable[[], Tensor]) -> Tensor:  # fmt: skip
            optimizer.zero_grad()
            with precision:
                found = loss()
            found.backward()
            optimizer.step()
            return found.detach()

        def step() -> Tensor:
            batch = parts.batch()
            with parts.precision():
                generated = fake(generator, batch)
            learn(
                discriminator_optimizer,
                parts.precision(),
                lambda: discriminator_loss(discriminator, batch, generated.detach()),
            )
            return learn(
                generator_optimizer,
                parts.precision(),
                lambda: generator_loss(discriminator, batch, generated),
            )

        return step

    return training


class _DiffusionBlock(nn.Module):
    """A residual block conditioned on the time step, optionally followed by self- or cross-attention."""

    def __init__(self, inputs: int, outputs: int, time: int, *, heads: int = 0, words: int = 0) -> None:
        super().__init__()
        self.first = sequential(nn.GroupNorm(16, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.second = sequential(
            nn.GroupNorm(16, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.time, self.heads = nn.Linear(time, outputs), heads
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        if heads:
            self.norm, self.query, self.leave = (
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
        keys_values = self.answer(places if words is None else words)
        q, k, v = (
            one.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for one in (self.query(places), *keys_values.chunk(2, 2))
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return y + self.leave(attended).transpose(1, 2).reshape(y.shape)


class DiffusionUNet(nn.Module):
    """A diffusion U-Net with two blocks on each level and attention on the last levels."""

    def __init__(
        self, channels: int, width: int, times: tuple[int, ...], *, output_channels: int = 0, attention_levels: int = 1, classes: int = 0, words: int = 0
    ) -> None:  # fmt: skip
        super().__init__()
        time, widths = 4 * width, [width * more for more in times]
        self.width, self.classes_embedding = width, nn.Embedding(classes, time) if classes else None
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter, self.leave = nn.Conv2d(channels, width, 3, padding=1), sequential(nn.GroupNorm(16, width), nn.SiLU(), nn.Conv2d(width, output_channels or channels, 3, padding=1))  # fmt: skip
        levels = list(enumerate(itertools.pairwise((width, *widths))))

        def step(level: int, inputs: int, outputs: int) -> _DiffusionBlock:
            return _DiffusionBlock(
                inputs,
                outputs,
                time,
                heads=outputs // 32 if level >= len(times) - attention_levels else 0,
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
        angles = time[:, None] * torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
        condition = self.time(torch.cat([angles.cos(), angles.sin()], 1))
        if self.classes_embedding is not None:
            condition = condition + self.classes_embedding(kind)
        x, kept = self.enter(x), []
        for level, blocks in enumerate(self.down):
            x = self.smaller[level - 1](x) if level else x
            for block in blocks:
                x = block(x, condition, words)
                kept.append(x)
        x = self.middle(x, condition, words)
        for level in reversed(range(len(self.up))):
            for block in self.up[level]:
                x = block(torch.cat([x, kept.pop()], 1), condition, words)
            if level:
                x = self.larger[level - 1](F.interpolate(x, scale_factor=2))
        out: Tensor = self.leave(x)
        return out


def add_noise(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a noisy image, its noise, and the time step that sets the amount of noise."""
    time, noise = torch.rand(len(x), device=x.device), torch.randn_like(x)
    angle = (time * math.pi / 2).view(-1, 1, 1, 1)
    return angle.cos() * x + angle.sin() * noise, noise, time * 1000


class SentenceEncoder(nn.Module):
    """BERT whose normalized mean output embeds a sentence."""

    def __init__(self, width: int = 384, layers: int = 6) -> None:
        super().__init__()
        config = huggingface().BertConfig(**transformer_sizes(width, layers))
        self.body = huggingface().BertModel(config, add_pooling_layer=False)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return F.normalize(states.mean(1).float(), dim=1)
