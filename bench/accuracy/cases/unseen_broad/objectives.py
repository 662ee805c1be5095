"""Losses that need more than one answer: contrast, teachers, several tasks, preferences, words moved to hurt. Cases stand above
the model they train."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.blocks import PatchEmbedding, SentenceEncoder, TokenEmbedding, transformer_layer
from bench.lib.models.layers import linear_norm, sequential
from bench.lib.models.parts import (
    Spec,
    StepParts,
    batch_of,
    causal_lm,
    ema_update,
    freeze,
    huggingface,
    integers,
    masked_text_loss,
    mlp,
    no_loss,
    normal,
    padded_to_longest,
    transformer_sizes,
    uniform,
    unlabelled,
)

CASES = CaseSet()
case = CASES.case


def _same_place(near: Tensor) -> Tensor:
    """The right answer of each row stands in the column of the same number."""
    return F.cross_entropy(near, torch.arange(len(near), device=near.device))


# Contrast.


@case("adamw", "amp_fp16", 32)
def same_sentence_twice() -> Spec:
    """BERT's base size reads each sentence twice; only its dropout differs (SimCSE)."""
    return Spec(
        SentenceEncoder(768, 12),
        batch_of(integers(30522, 40)),
        lambda m, ids: _same_place(m(ids) @ m(ids).T / 0.05),
    )


@case("adam", "fp32", 4000)
def rows_with_strange_values() -> Spec:
    """A row shall be near itself when six of ten values are another row's (SCARF)."""
    model = sequential(linear_norm(180, 1024, 1024, 1024, 1024, drop=0.1), mlp(1024, 512, 128))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        others = x.gather(0, torch.randint(len(x), x.shape, device=x.device))
        strange = torch.where(torch.rand_like(x) < 0.6, others, x)
        a, b = (F.normalize(model(rows), dim=1) for rows in (x, strange))
        return _same_place(a @ b.T)

    return Spec(model, unlabelled(180), loss)


def _in_pieces(shop: StepParts) -> Callable[[], Tensor]:
    """All sentences are read without a graph, their slopes found, and read again piece by piece (GradCache)."""
    model = shop.model
    optimizer = shop.optimizer(model.parameters())

    def read(ids: Tensor) -> Tensor:
        with shop.precision():
            found: Tensor = model(ids)
        return found

    def step() -> Tensor:
        optimizer.zero_grad()
        texts = [ids.split(40) for ids in shop.batch()]
        with torch.no_grad():
            known = [torch.cat([read(piece) for piece in pieces]) for pieces in texts]
        leaves = [found.detach().requires_grad_(True) for found in known]
        loss = _same_place(leaves[0] @ leaves[1].T * 20)
        loss.backward()
        for pieces, leaf in zip(texts, leaves, strict=True):
            for piece, slope in zip(pieces, leaf.grad.split(40), strict=True):
                (read(piece) * slope).sum().backward()
        optimizer.step()
        return loss.detach()

    return step


@case("adamw", "amp_bf16", 120)
def large_batches_in_pieces() -> Spec:
    return Spec(
        SentenceEncoder(512, 4), batch_of(integers(30522, 24), integers(30522, 128)), no_loss, _in_pieces
    )


# Teachers.


class _Taught(nn.Module):
    """A large reader that stays, a small one that shall find the same and the same likenesses."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small, self.wide = (
            SentenceEncoder(768, 12),
            SentenceEncoder(384, 3),
            nn.Linear(384, 768),
        )
        freeze(self.large)

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.large(ids)
        found = F.normalize(self.wide(self.small(ids)).float(), dim=1)
        alike = F.kl_div(
            (found @ found.T * 20).log_softmax(1), (wanted @ wanted.T * 20).softmax(1), reduction="batchmean"
        )
        return F.mse_loss(found, wanted) + alike


@case("adamw", "tf32", 48, evaluate=True)
def larger_reader_teaches() -> Spec:
    return Spec(_Taught(), batch_of(integers(30522, 72)), lambda m, ids: m(ids))


class _Seen(nn.Module):
    """Patches, of which only some may be looked at, and what the first word became."""

    def __init__(self, width: int = 320) -> None:
        super().__init__()
        self.enter = PatchEmbedding(nn.Conv2d(3, width, 12, 12), 144, width)
        self.layers = sequential(*(transformer_layer(width, 5) for _ in range(8)), nn.LayerNorm(width))
        self.head = sequential(mlp(width, 1024, 256, act=nn.GELU), nn.Linear(256, 8192, bias=False))

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        words = self.enter(x)
        if places is not None:
            words = torch.cat([words[:, :1], words[:, 1:].index_select(1, places)], 1)
        out: Tensor = self.head(self.layers(words)[:, 0])
        return out


def _own_teacher(shop: StepParts) -> Callable[[], Tensor]:
    """A slow copy sees two whole views; the network sees both, and four times a quarter of them (DINO)."""
    model = shop.model
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = shop.optimizer(model.parameters())
    centre = torch.zeros(8192, device=next(model.parameters()).device)

    def step() -> Tensor:
        views = shop.batch()
        with shop.precision():
            with torch.no_grad():
                told = [slow(view).float() for view in views]
                wanted = [((one - centre) / 0.04).softmax(1) for one in told]
            found = [model(view) for view in views]
            quarters = [torch.randperm(144, device=centre.device)[:36] for _ in range(4)]
            found += [model(views[0], places) for places in quarters]
            pairs = [(a, b) for i, a in enumerate(wanted) for j, b in enumerate(found) if i != j]
            loss = -torch.stack(
                [(a * (b.float() / 0.1).log_softmax(1)).sum(1).mean() for a, b in pairs]
            ).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        with torch.no_grad():
            centre.lerp_(torch.cat(told).mean(0), 0.1)
        ema_update(slow.parameters(), model.parameters(), 0.004)
        return loss.detach()

    return step


@case("adamw", "amp_bf16", 20)
def parts_and_wholes() -> Spec:
    return Spec(_Seen(), batch_of(uniform(3, 144, 144), uniform(3, 144, 144)), no_loss, _own_teacher)


# Words that deceive.


class _Replaced(nn.Module):
    """A small network fills hidden words; a larger one tells which words it filled (ELECTRA's whole training)."""

    def __init__(self, words: int = 16000, width: int = 384) -> None:
        super().__init__()
        self.words = TokenEmbedding(words, width, 192)
        self.narrow = sequential(nn.Linear(width, 128), *(transformer_layer(128, 2) for _ in range(6)))
        self.fill = sequential(nn.LayerNorm(128), nn.Linear(128, words))
        self.judge = sequential(
            *(transformer_layer(width, 6, drop=0.1) for _ in range(8)), nn.Linear(width, 1)
        )

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.rand(ids.shape, device=ids.device) < 0.15
        told = self.fill(self.narrow(self.words(ids.masked_fill(hidden, 0)))).float()
        guessed = F.cross_entropy(told.flatten(0, 1), ids.flatten(), reduction="none").view_as(hidden)
        with torch.no_grad():
            chance = -torch.empty_like(told).exponential_().log()
            filled = torch.where(hidden, (told + chance).argmax(2), ids)
        found = self.judge(self.words(filled)).squeeze(2).float()
        judged = F.binary_cross_entropy_with_logits(found, (filled != ids).float())
        return (guessed * hidden).sum() / hidden.sum().clamp(min=1) + 50 * judged


@case("adamw", "amp_fp16", 14, clip=True)
def filled_and_found_out() -> Spec:
    return Spec(_Replaced(), batch_of(integers(16000, 192)), lambda m, ids: m(ids))


def _moved_words(shop: StepParts) -> Callable[[], Tensor]:
    """After the slopes are known, words move a little where it hurts, and the slopes there count too (FGM)."""
    model = shop.model
    optimizer = shop.optimizer(model.parameters())
    words = model.get_input_embeddings().weight

    def step() -> Tensor:
        batch = shop.batch()
        optimizer.zero_grad()
        for moved in (False, True):
            if moved:
                kept = words.detach().clone()
                with torch.no_grad():
                    words.add_(words.grad / (words.grad.norm() + 1e-8))
            with shop.precision():
                loss = masked_text_loss(model, *batch)
            loss.backward()
        with torch.no_grad():
            words.copy_(kept)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


@case("adamw", "amp_bf16", 16)
def words_moved_to_hurt() -> Spec:
    """RoBERTa's base size with nine layers."""
    config = huggingface().RobertaConfig(vocab_size=50265, num_hidden_layers=9, max_position_embeddings=514, num_labels=4)  # fmt: skip
    model = huggingface().RobertaForSequenceClassification(config)
    return Spec(model, padded_to_longest((128, 110, 140), 50265, 4), no_loss, _moved_words)


# Preferences and several tasks.


@case("adamw", "bf16", 3, clip=True, accumulate=2)
def liked_without_an_older_copy() -> Spec:
    """Liked and disliked answers in one pass; odds take the place of an older copy (ORPO)."""
    sizes = transformer_sizes(768, 10, vocab_size=30000, intermediate_size=2048, num_key_value_heads=4)

    def loss(model: nn.Module, liked: Tensor, other: Tensor) -> Tensor:
        ids = torch.cat([liked, other])
        told = model(input_ids=ids).logits[:, :-1].float().log_softmax(2)
        each = told.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2).mean(1)
        odds = each - torch.log1p(-each.exp())
        good, bad = odds.chunk(2)
        return -each[: len(liked)].mean() - 0.1 * F.logsigmoid(good - bad).mean()

    return Spec(
        causal_lm("Llama", 400, **sizes).model, batch_of(integers(30000, 400), integers(30000, 400)), loss
    )


def _peaceful(shop: StepParts) -> Callable[[], Tensor]:
    """Each task's slopes lose what goes against another's (PCGrad)."""
    body, heads = shop.model["body"], shop.model["heads"]
    optimizer = shop.optimizer(shop.model.parameters())
    shared = list(body.parameters())

    def step() -> Tensor:
        x, *wanted = shop.batch()
        optimizer.zero_grad()
        seen = body(x)
        losses = [F.mse_loss(head(seen), y) for head, y in zip(heads, wanted, strict=True)]
        slopes = []
        for head, loss in zip(heads, losses, strict=True):
            own = list(head.parameters())
            found = torch.autograd.grad(loss, shared + own, retain_graph=True)
            for parameter, slope in zip(own, found[len(shared) :], strict=True):
                parameter.grad = slope
            slopes.append(torch.cat([slope.flatten() for slope in found[: len(shared)]]))
        kept = []
        for slope in slopes:
            for other in slopes:
                slope = slope - (slope @ other).clamp(max=0) / (other @ other + 1e-12) * other
            kept.append(slope)
        whole = torch.stack(kept).sum(0).split([parameter.numel() for parameter in shared])
        for parameter, slope in zip(shared, whole, strict=True):
            parameter.grad = slope.view_as(parameter)
        optimizer.step()
        return torch.stack(losses).sum().detach()

    return step


@case("adam", "fp32", 5000)
def tasks_in_peace() -> Spec:
    """Four questions about 240 numbers."""
    heads = nn.ModuleList(mlp(1024, 256, size) for size in (1, 3, 8, 20))
    model = nn.ModuleDict({"body": mlp(240, 1536, 1536, 1536, 1024, last=True), "heads": heads})
    batch = batch_of(normal(240), *(normal(size) for size in (1, 3, 8, 20)))
    return Spec(model, batch, no_loss, _peaceful)
