"""Losses over several outputs: contrastive learning, distillation, adversarial text, preferences, multi-task learning."""

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


def _diagonal_loss(near: Tensor) -> Tensor:
    """Return the cross-entropy for a matrix in which column i is the correct class of row i."""
    return F.cross_entropy(near, torch.arange(len(near), device=near.device))


# Contrastive learning.


@case("adamw", "amp_fp16", 32)
def same_sentence_twice() -> Spec:
    """Build a BERT-base that embeds each sentence twice with different dropout (SimCSE)."""
    return Spec(
        SentenceEncoder(768, 12),
        batch_of(integers(30522, 40)),
        lambda m, ids: _diagonal_loss(m(ids) @ m(ids).T / 0.05),
    )


@case("adam", "fp32", 4000)
def rows_with_strange_values() -> Spec:
    """Build a contrastive model for tables. 60% of the values are replaced by values of other samples (SCARF)."""
    model = sequential(linear_norm(180, 1024, 1024, 1024, 1024, drop=0.1), mlp(1024, 512, 128))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        others = x.gather(0, torch.randint(len(x), x.shape, device=x.device))
        strange = torch.where(torch.rand_like(x) < 0.6, others, x)
        a, b = (F.normalize(model(rows), dim=1) for rows in (x, strange))
        return _diagonal_loss(a @ b.T)

    return Spec(model, unlabelled(180), loss)


def _grad_cache(parts: StepParts) -> Callable[[], Tensor]:
    """Return a GradCache step. The step computes embeddings without a graph and their gradients, and then
    backpropagates chunk by chunk."""
    model = parts.model
    optimizer = parts.optimizer(model.parameters())

    def read(ids: Tensor) -> Tensor:
        with parts.precision():
            found: Tensor = model(ids)
        return found

    def step() -> Tensor:
        optimizer.zero_grad()
        texts = [ids.split(40) for ids in parts.batch()]
        with torch.no_grad():
            known = [torch.cat([read(piece) for piece in pieces]) for pieces in texts]
        leaves = [found.detach().requires_grad_(True) for found in known]
        loss = _diagonal_loss(leaves[0] @ leaves[1].T * 20)
        loss.backward()
        for pieces, leaf in zip(texts, leaves, strict=True):
            for piece, gradient in zip(pieces, leaf.grad.split(40), strict=True):
                (read(piece) * gradient).sum().backward()
        optimizer.step()
        return loss.detach()

    return step


@case("adamw", "amp_bf16", 120)
def large_batches_in_pieces() -> Spec:
    return Spec(
        SentenceEncoder(512, 4), batch_of(integers(30522, 24), integers(30522, 128)), no_loss, _grad_cache
    )


# Distillation.


class _Distillation(nn.Module):
    """A frozen large encoder, and a small encoder that learns the embeddings and similarities of the large one."""

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
            target = self.large(ids)
        found = F.normalize(self.wide(self.small(ids)).float(), dim=1)
        alike = F.kl_div(
            (found @ found.T * 20).log_softmax(1), (target @ target.T * 20).softmax(1), reduction="batchmean"
        )
        return F.mse_loss(found, target) + alike


@case("adamw", "tf32", 48, evaluate=True)
def larger_reader_teaches() -> Spec:
    return Spec(_Distillation(), batch_of(integers(30522, 72)), lambda m, ids: m(ids))


class _ProjectedViT(nn.Module):
    """A vision transformer over all or some patches that returns the projected class token."""

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


def _dino_step(parts: StepParts) -> Callable[[], Tensor]:
    """Return a self-distillation step. An EMA teacher sees two views, and the student sees both views and four crops
    (DINO)."""
    model = parts.model
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = parts.optimizer(model.parameters())
    centre = torch.zeros(8192, device=next(model.parameters()).device)

    def step() -> Tensor:
        views = parts.batch()
        with parts.precision():
            with torch.no_grad():
                output = [slow(view).float() for view in views]
                target = [((one - centre) / 0.04).softmax(1) for one in output]
            found = [model(view) for view in views]
            quarters = [torch.randperm(144, device=centre.device)[:36] for _ in range(4)]
            found += [model(views[0], places) for places in quarters]
            pairs = [(a, b) for i, a in enumerate(target) for j, b in enumerate(found) if i != j]
            loss = -torch.stack(
                [(a * (b.float() / 0.1).log_softmax(1)).sum(1).mean() for a, b in pairs]
            ).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        with torch.no_grad():
            centre.lerp_(torch.cat(output).mean(0), 0.1)
        ema_update(slow.parameters(), model.parameters(), 0.004)
        return loss.detach()

    return step


@case("adamw", "amp_bf16", 20)
def parts_and_wholes() -> Spec:
    return Spec(_ProjectedViT(), batch_of(uniform(3, 144, 144), uniform(3, 144, 144)), no_loss, _dino_step)


# Adversarial text.


class _Electra(nn.Module):
    """A small generator fills masked tokens, and a larger discriminator detects the generated tokens (ELECTRA)."""

    def __init__(self, words: int = 16000, width: int = 384) -> None:
        super().__init__()
        self.words = TokenEmbedding(words, width, 192)
        self.narrow = sequential(nn.Linear(width, 128), *(transformer_layer(128, 2) for _ in range(6)))
        self.fill = sequential(nn.LayerNorm(128), nn.Linear(128, words))
        self.discriminator = sequential(
            *(transformer_layer(width, 6, drop=0.1) for _ in range(8)), nn.Linear(width, 1)
        )

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.rand(ids.shape, device=ids.device) < 0.15
        output = self.fill(self.narrow(self.words(ids.masked_fill(hidden, 0)))).float()
        guessed = F.cross_entropy(output.flatten(0, 1), ids.flatten(), reduction="none").view_as(hidden)
        with torch.no_grad():
            chance = -torch.empty_like(output).exponential_().log()
            filled = torch.where(hidden, (output + chance).argmax(2), ids)
        found = self.discriminator(self.words(filled)).squeeze(2).float()
        discriminator_loss = F.binary_cross_entropy_with_logits(found, (filled != ids).float())
        return (guessed * hidden).sum() / hidden.sum().clamp(min=1) + 50 * discriminator_loss


@case("adamw", "amp_fp16", 14, clip=True)
def filled_and_found_out() -> Spec:
    return Spec(_Electra(), batch_of(integers(16000, 192)), lambda m, ids: m(ids))


def _fgm_step(parts: StepParts) -> Callable[[], Tensor]:
    """Return an adversarial training step. Embeddings are perturbed along their gradient, and gradients accumulate (FGM)."""
    model = parts.model
    optimizer = parts.optimizer(model.parameters())
    words = model.get_input_embeddings().weight

    def step() -> Tensor:
        batch = parts.batch()
        optimizer.zero_grad()
        for moved in (False, True):
            if moved:
                kept = words.detach().clone()
                with torch.no_grad():
                    words.add_(words.grad / (words.grad.norm() + 1e-8))
            with parts.precision():
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
    """Build RoBERTa-base with nine layers."""
    config = huggingface().RobertaConfig(vocab_size=50265, num_hidden_layers=9, max_position_embeddings=514, num_labels=4)  # fmt: skip
    model = huggingface().RobertaForSequenceClassification(config)
    return Spec(model, padded_to_longest((128, 110, 140), 50265, 4), no_loss, _fgm_step)


# Preferences and multi-task learning.


@case("adamw", "bf16", 3, clip=True, accumulate=2)
def liked_without_an_older_copy() -> Spec:
    """Build a model for preference tuning with odds ratios of chosen and rejected answers, without a reference model
    (ORPO)."""
    sizes = transformer_sizes(768, 10, vocab_size=30000, intermediate_size=2048, num_key_value_heads=4)

    def loss(model: nn.Module, liked: Tensor, other: Tensor) -> Tensor:
        ids = torch.cat([liked, other])
        output = model(input_ids=ids).logits[:, :-1].float().log_softmax(2)
        each = output.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2).mean(1)
        odds = each - torch.log1p(-each.exp())
        good, bad = odds.chunk(2)
        return -each[: len(liked)].mean() - 0.1 * F.logsigmoid(good - bad).mean()

    return Spec(
        causal_lm("Llama", 400, **sizes).model, batch_of(integers(30000, 400), integers(30000, 400)), loss
    )


def _pcgrad_step(parts: StepParts) -> Callable[[], Tensor]:
    """Return a gradient surgery step, which removes conflicting components of the tasks' gradients (PCGrad)."""
    body, heads = parts.model["body"], parts.model["heads"]
    optimizer = parts.optimizer(parts.model.parameters())
    shared = list(body.parameters())

    def step() -> Tensor:
        x, *target = parts.batch()
        optimizer.zero_grad()
        seen = body(x)
        losses = [F.mse_loss(head(seen), y) for head, y in zip(heads, target, strict=True)]
        gradients = []
        for head, loss in zip(heads, losses, strict=True):
            own = list(head.parameters())
            found = torch.autograd.grad(loss, shared + own, retain_graph=True)
            for parameter, gradient in zip(own, found[len(shared) :], strict=True):
                parameter.grad = gradient
            gradients.append(torch.cat([gradient.flatten() for gradient in found[: len(shared)]]))
        kept = []
        for gradient in gradients:
            for other in gradients:
                gradient = gradient - (gradient @ other).clamp(max=0) / (other @ other + 1e-12) * other
            kept.append(gradient)
        whole = torch.stack(kept).sum(0).split([parameter.numel() for parameter in shared])
        for parameter, gradient in zip(shared, whole, strict=True):
            parameter.grad = gradient.view_as(parameter)
        optimizer.step()
        return torch.stack(losses).sum().detach()

    return step


@case("adam", "fp32", 5000)
def tasks_in_peace() -> Spec:
    """Build a model with four regression tasks on 240 columns."""
    heads = nn.ModuleList(mlp(1024, 256, size) for size in (1, 3, 8, 20))
    model = nn.ModuleDict({"body": mlp(240, 1536, 1536, 1536, 1024, last=True), "heads": heads})
    batch = batch_of(normal(240), *(normal(size) for size in (1, 3, 8, 20)))
    return Spec(model, batch, no_loss, _pcgrad_step)
