"""Recurrent networks, tables, recommenders, graphs, reinforcement learning, physics."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts
from bench.lib.models.blocks import Select, TokenEmbedding, binary_loss, transformer_layer
from bench.lib.models.layers import Recurrent, Residual, linear_norm, sequential
from bench.lib.models.parts import (
    Spec,
    batch_of,
    classification_loss,
    ema_update,
    freeze,
    integers,
    mlp,
    mse_loss,
    no_loss,
    normal,
    token_loss,
    unlabelled,
    zeros_or_ones,
)

CASES = CaseSet()
case = CASES.case


# Recurrent.


@case("adam", "fp32", 90, evaluate=True)
def moods_of_messages() -> Spec:
    """Return a bidirectional LSTM over 160 tokens."""
    read = Recurrent(nn.LSTM, 128, 224, bidirectional=True)
    model = sequential(nn.Embedding(25000, 128), read, nn.Dropout(0.3), Select("mean"), nn.Linear(448, 7))
    return Spec(model, parts.padded_texts(25000, 160, 7), classification_loss)


@case("sgd", "fp32", 30, clip=True)
def encyclopedia_word_by_word() -> Spec:
    """Return a two-layer LSTM language model with 18,000 words."""
    read = Recurrent(nn.LSTM, 512, 512, num_layers=2, dropout=0.5)
    model = sequential(
        nn.Embedding(18000, 512), nn.Dropout(0.5), read, nn.Dropout(0.5), nn.Linear(512, 18000)
    )
    batch = batch_of(integers(18000, 62), integers(18000, 62))
    return Spec(model, batch, token_loss)


@case("adamw", "amp_bf16", 260)
def load_of_a_grid() -> Spec:
    """Return a three-layer GRU over two weeks of hourly values that predicts the next day."""
    model = sequential(Recurrent(nn.GRU, 18, 144, num_layers=3), Select("last"), nn.Linear(144, 24))
    return Spec(model, parts.with_targets(336, 18, outputs=(24,)), mse_loss)


# Tables.


@case("adam", "fp32", 9001)
def loans_paid_back() -> Spec:
    """Build linear layers with batch norm on 130 columns."""
    model = sequential(linear_norm(130, 640, 640, 320, drop=0.3), nn.Linear(320, 4))
    return Spec(model, parts.labelled(130, classes=4), classification_loss)


class _FTTransformer(nn.Module):
    """Transformer layers over one token per numeric column (FT-Transformer)."""

    def __init__(self, columns: int = 60, width: int = 128) -> None:
        super().__init__()
        self.size, self.move = (nn.Parameter(torch.randn(columns, width) * 0.1) for _ in range(2))
        self.look = sequential(
            *(transformer_layer(width, 8, inner=256, drop=0.1) for _ in range(3)), nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.look(x.unsqueeze(2) * self.size + self.move).mean(1))
        return out


@case("adamw", "tf32", 515)
def numbers_as_words() -> Spec:
    return Spec(_FTTransformer(), parts.with_targets(60, outputs=(1,)), mse_loss)


# Recommenders.


@case("adam", "fp32", 75)
def next_film() -> Spec:
    """Build a sequential recommender over the last eighty items (SASRec)."""
    layers = [transformer_layer(96, 2, causal=True, inner=96, drop=0.2) for _ in range(2)]
    model = sequential(TokenEmbedding(16000, 96, 80), *layers, nn.LayerNorm(96), nn.Linear(96, 16000))
    batch = batch_of(integers(16000, 80), integers(16000, 80))
    return Spec(model, batch, token_loss)


class _TwoTowers(nn.Module):
    """A two-tower model with in-batch negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.readers, self.books = nn.Embedding(120000, 48), nn.Embedding(70000, 48)
        self.up = nn.ModuleList(mlp(48, 256, 64) for _ in range(2))

    def forward(self, reader: Tensor, book: Tensor) -> Tensor:
        similarity = self.up[0](self.readers(reader)) @ self.up[1](self.books(book)).T
        return F.cross_entropy(similarity, torch.arange(len(similarity), device=similarity.device))


@case("adagrad", "fp32", 5000)
def readers_and_books() -> Spec:
    return Spec(_TwoTowers(), batch_of(integers(120000), integers(70000)), lambda m, *ids: m(*ids))


class _AutoInt(nn.Module):
    """Self-attention over categorical fields and a linear part (AutoInt)."""

    def __init__(self, fields: int = 26, words: int = 20000, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("begins", torch.arange(fields) * words)
        self.words, self.alone = (
            nn.Embedding(fields * words, width),
            nn.EmbeddingBag(fields * words, 1, mode="sum"),
        )
        self.look = nn.Sequential(*(transformer_layer(width, 2, inner=64) for _ in range(3)))
        self.head = nn.Linear(fields * width, 1)

    def forward(self, fields: Tensor) -> Tensor:
        ids = fields + self.begins
        out: Tensor = (self.head(self.look(self.words(ids)).flatten(1)) + self.alone(ids)).squeeze(1)
        return out


@case("adam", "fp32", 4096)
def fields_look_at_fields() -> Spec:
    return Spec(
        _AutoInt(),
        batch_of(integers(20000, 26), zeros_or_ones()),
        binary_loss,
    )


class _BPR(nn.Module):
    """Bayesian personalized ranking (BPR)."""

    def __init__(self) -> None:
        super().__init__()
        self.people, self.things, self.bias = (
            nn.Embedding(80000, 64),
            nn.Embedding(50000, 64),
            nn.Embedding(50000, 1),
        )

    def forward(self, person: Tensor, liked: Tensor, other: Tensor) -> Tensor:
        def score(thing: Tensor) -> Tensor:
            return (self.people(person) * self.things(thing)).sum(1) + self.bias(thing).squeeze(1)

        return -F.logsigmoid(score(liked) - score(other)).mean()


@case("adam", "fp32", 16384)
def liked_before_others() -> Spec:
    return Spec(_BPR(), batch_of(integers(80000), integers(50000), integers(50000)), lambda m, *ids: m(*ids))


# Graphs.


def _graph(features: int, degree: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    """Return one graph with node features, edges, and a class per node. The batch size is the number of nodes."""

    def batch(count: int, device: str) -> list[Tensor]:
        ends = torch.randint(0, count, (2, degree * count))
        return [
            part.to(device)
            for part in (torch.randn(count, features), ends, torch.randint(0, classes, (count,)))
        ]

    return batch


class _JumpingSAGE(nn.Module):
    """GraphSAGE layers whose outputs are concatenated (jumping knowledge)."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        sizes = (inputs, width, width)
        self.own = nn.ModuleList(nn.Linear(size, width) for size in sizes)
        self.similarity = nn.ModuleList(nn.Linear(size, width, bias=False) for size in sizes)
        self.head = nn.Linear(3 * width, classes)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        count = x.new_zeros(len(x)).index_add(0, ends[1], x.new_ones(ends.size(1))).clamp(min=1).unsqueeze(1)
        kept = []
        for own, similarity in zip(self.own, self.similarity, strict=True):
            around = torch.zeros_like(x).index_add(0, ends[1], x[ends[0]]) / count
            x = F.dropout(F.relu(own(x) + similarity(around)), 0.4, self.training)
            kept.append(x)
        out: Tensor = self.head(torch.cat(kept, 1))
        return out


@case("adam", "fp32", 30000)
def who_cites_whom() -> Spec:
    return Spec(
        _JumpingSAGE(128, 256, 40), _graph(128, 7, 40), lambda m, x, ends, y: F.cross_entropy(m(x, ends), y)
    )


@case("adam", "fp32", 24000)
def spread_by_steps() -> Spec:
    """Return an MLP whose outputs are propagated over ten steps (APPNP)."""

    class APPNP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = sequential(nn.Dropout(0.5), mlp(500, 256, 24))

        def forward(self, x: Tensor, ends: Tensor) -> Tensor:
            begin = output = self.first(x)
            for _ in range(10):
                moved = torch.zeros_like(output).index_add(0, ends[1], output[ends[0]]) / 8
                output = 0.9 * moved + 0.1 * begin
            return output

    return Spec(APPNP(), _graph(500, 8, 24), lambda m, x, ends, y: F.cross_entropy(m(x, ends), y))


class _GATLayer(nn.Module):
    """Graph attention with four heads (GAT)."""

    def __init__(self, inputs: int, width: int, heads: int = 4) -> None:
        super().__init__()
        self.line, self.ends = (
            nn.Linear(inputs, heads * width),
            nn.Parameter(torch.randn(2, heads, width) * 0.1),
        )
        self.heads = heads

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        y = self.line(x).unflatten(1, (self.heads, -1))
        here, there = ((y * end).sum(2) for end in self.ends)
        weight = F.leaky_relu(here[ends[0]] + there[ends[1]], 0.2).clamp(max=20).exp()
        total = torch.zeros_like(here).index_add(0, ends[1], weight) + 1e-9
        messages = y[ends[0]] * (weight / total[ends[1]]).unsqueeze(2)
        return torch.zeros_like(y).index_add(0, ends[1], messages).flatten(1)


@case("adam", "fp32", 18000)
def weighed_friends() -> Spec:
    """Build two graph attention layers over 18,000 nodes."""
    layers = nn.ModuleList([_GATLayer(96, 32), _GATLayer(128, 32), nn.Linear(128, 12)])

    def loss(model: nn.Module, x: Tensor, ends: Tensor, y: Tensor) -> Tensor:
        first, second, head = model
        return F.cross_entropy(head(F.elu(second(F.elu(first(x, ends)), ends))), y)

    return Spec(layers, _graph(96, 6, 12), loss)


class _GatedGraph(nn.Module):
    """A gated graph network over dense adjacency matrices of small molecules."""

    def __init__(self, width: int = 128, bonds: int = 4) -> None:
        super().__init__()
        self.atoms, self.lines = nn.Embedding(30, width), nn.Linear(width, bonds * width)
        self.cell, self.head = nn.GRUCell(width, width), mlp(width, width, 12)

    def forward(self, atoms: Tensor, bonds: Tensor) -> Tensor:
        x = self.atoms(atoms)
        for _ in range(4):
            messages = self.lines(x).unflatten(2, (bonds.size(1), -1)).transpose(1, 2)
            received = (bonds @ messages).sum(1)
            x = self.cell(received.flatten(0, 1), x.flatten(0, 1)).view_as(x)
        out: Tensor = self.head(x.sum(1))
        return out


@case("adam", "fp32", 256)
def molecules_as_tables() -> Spec:
    return Spec(
        _GatedGraph(),
        batch_of(integers(30, 38), zeros_or_ones(4, 38, 38), normal(12)),
        lambda m, atoms, bonds, y: F.mse_loss(m(atoms, bonds), y),
    )


# Reinforcement learning and physics.


def _td3_step(parts_of_step: parts.StepParts) -> Callable[[], Tensor]:
    """Return a TD3 step. Two critics are trained in every step, and the actor is trained in every second step. Then
    the target networks are updated."""
    act, critic, target_act, target_critic = (
        parts_of_step.model[name] for name in ("act", "critic", "target_act", "target_critic")
    )
    act_optimizer, critic_optimizer = (
        parts_of_step.optimizer(act.parameters()),
        parts_of_step.optimizer(critic.parameters()),
    )
    slow = [*target_act.parameters(), *target_critic.parameters()]
    fast = [*act.parameters(), *critic.parameters()]

    def step() -> Tensor:
        for turn in range(2):
            state, move, reward, after = parts_of_step.batch()
            with torch.no_grad():
                ahead = (target_act(after).tanh() + 0.2 * torch.randn_like(move).clamp(-0.5, 0.5)).clamp(
                    -1, 1
                )
                both = torch.cat([after, ahead], 1)
                target = reward + 0.99 * torch.min(target_critic[0](both), target_critic[1](both))
            both = torch.cat([state, move], 1)
            loss = F.mse_loss(critic[0](both), target) + F.mse_loss(critic[1](both), target)
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
            if turn:
                act_optimizer.zero_grad()
                (-critic[0](torch.cat([state, act(state).tanh()], 1)).mean()).backward()
                act_optimizer.step()
                ema_update(slow, fast, 0.005)
        return loss.detach()

    return step


@case("adam", "fp32", 4096)
def arms_that_reach() -> Spec:
    act, critic = (
        mlp(60, 1024, 1024, 12),
        nn.ModuleList(mlp(72, 1024, 1024, 1) for _ in range(2)),
    )
    model = {
        "act": act,
        "critic": critic,
        "target_act": copy.deepcopy(act),
        "target_critic": copy.deepcopy(critic),
    }
    for name in ("target_act", "target_critic"):
        freeze(model[name])
    return Spec(
        nn.ModuleDict(model), batch_of(normal(60), normal(12), normal(1), normal(60)), no_loss, _td3_step
    )


class _NeRF(nn.Module):
    """A radiance field with 64 points per ray and positional encoding (NeRF)."""

    def __init__(self, waves: int = 8, width: int = 192) -> None:
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(waves))
        self.see = sequential(
            mlp(6 * waves, width, width, width, width, last=True), Residual(mlp(width, width))
        )
        self.colour, self.solid = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, begin: Tensor, way: Tensor) -> Tensor:
        far = torch.linspace(2, 6, 64, device=begin.device)
        places = begin.unsqueeze(1) + way.unsqueeze(1) * far.view(1, -1, 1)
        angles = (places.unsqueeze(3) * self.waves).flatten(2)
        y = self.see(torch.cat([angles.sin(), angles.cos()], 2))
        through = torch.exp(-F.softplus(self.solid(y)).squeeze(2) * 0.06)
        weight = (1 - through) * torch.cumprod(
            torch.cat([torch.ones_like(through[:, :1]), through[:, :-1] + 1e-10], 1), 1
        )
        return (weight.unsqueeze(2) * self.colour(y).sigmoid()).sum(1)


@case("adam", "fp32", 2048)
def rays_through_a_room() -> Spec:
    return Spec(
        _NeRF(),
        batch_of(normal(3), normal(3), normal(3)),
        lambda m, begin, way, y: F.mse_loss(m(begin, way), y),
    )


@case("nadamw", "fp32", 60000)
def beams_that_bend() -> Spec:
    """Build a PINN with fourth derivatives of a beam's equation."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        slope = model(x)
        for _ in range(4):
            (slope,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (slope + 1).pow(2).mean()

    return Spec(mlp(1, 64, 64, 64, 1, act=nn.Tanh), unlabelled(1), loss)


class _RealNVP(nn.Module):
    """Ten affine coupling layers (RealNVP)."""

    def __init__(self, columns: int = 64) -> None:
        super().__init__()
        self.half = columns // 2
        self.layers = nn.ModuleList(mlp(self.half, 512, 512, columns) for _ in range(10))

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for layer in self.layers:
            a, b = x.split(self.half, 1)
            size, move = layer(a).chunk(2, 1)
            x = torch.cat([b * size.tanh().exp() + move, a], 1)
            total = total + size.tanh().sum(1)
        return (0.5 * x.pow(2).sum(1) - total).mean()


@case("adamw", "fp32", 8192, clip=True)
def how_likely_are_rows() -> Spec:
    return Spec(_RealNVP(), unlabelled(64), lambda m, x: m(x))
