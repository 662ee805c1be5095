"""What builders of models share: the `Spec` they return, libraries that may be missing, common batches and losses."""

import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Spec:
    """What a training step needs to know of a model."""

    model: Any
    batch: Callable[[int, str], list[Tensor]]
    loss: Callable[..., Tensor]
    training: Callable[["StepParts"], Any] | None = None
    """Makes the step where it is not the common one (gradients cleared, loss, backward, one optimizer's step): adversaries
    that take turns, rollouts before an update, gradients of gradients."""


@dataclass
class StepParts:
    """What a step of its own is made from."""

    model: Any
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    """The case's kind of optimizer, for these parameters."""
    batch: Callable[[], list[Tensor]]
    precision: Callable[[], contextlib.AbstractContextManager[Any]]
    """The case's autocast, or nothing."""


_definitions: list[Any] = []


def torchvision() -> Any:
    """torchvision, of which only models are needed: it imports beside a torch that its own operations were not built for
    once two of those are declared."""
    try:
        import torchvision as found
    except RuntimeError:
        declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        _definitions.append(declared)  # what is declared lives as long as this
        import torchvision as found
    return found


with contextlib.suppress(ImportError):  # transformers imports it too, so it is made importable first
    torchvision()


def image_classifier(name: str, *, size: int = 224, classes: int = 1000) -> Spec:
    models = torchvision().models

    kwargs = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    model = getattr(models, name)(weights=None, num_classes=classes, **kwargs)

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, size, size, device=device),
            torch.randint(0, classes, (count,), device=device),
        ]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x), y))


def labelled(*shape: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    """Pictures (or other arrays) and a class for each, made on the host as a DataLoader does."""

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, *shape).to(device), torch.randint(0, classes, (count,)).to(device)]

    return batch


def with_targets(*shape: int, outputs: tuple[int, ...]) -> Callable[[int, str], list[Tensor]]:
    """Arrays and numbers between 0 and 1 to be told for each."""
    return lambda count, device: [
        torch.randn(count, *shape).to(device),
        torch.rand(count, *outputs).to(device),
    ]


def unlabelled(*shape: int) -> Callable[[int, str], list[Tensor]]:
    """Arrays without labels, between 0 and 1."""
    return lambda count, device: [torch.rand(count, *shape).to(device)]


def classification_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def mse_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x).float(), y)


@torch.no_grad()
def ema_update(slow: Iterable[Tensor], fast: Iterable[Tensor], share: float) -> None:
    """Slow parameters come nearer to the fast ones by a share of the way."""
    for old, new in zip(slow, fast, strict=True):
        old.lerp_(new, share)


def no_loss(*_: object) -> Tensor:
    """For models with a step of their own."""
    raise NotImplementedError("this model has a step of its own")


def mlp(*widths: int, last: bool = False, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A perceptron; what bends stands after the last layer too where asked for."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), act()]
    return nn.Sequential(*(layers if last else layers[:-1]))


def torchvision_model(name: str) -> Any:
    """A classifier of torchvision's, before its head is exchanged."""
    return getattr(torchvision().models, name)(weights=None)


def freeze(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def huggingface() -> Any:
    """transformers, which takes seconds to import."""
    import transformers

    return transformers


def padded_texts(vocabulary: int, length: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    """Texts padded with zeros at the end, and a class for each."""

    def batch(count: int, device: str) -> list[Tensor]:
        used = torch.arange(length) < torch.randint(length // 4, length + 1, (count, 1))
        ids = torch.randint(1, vocabulary, (count, length)) * used
        return [ids.to(device), torch.randint(0, classes, (count,)).to(device)]

    return batch


def padded_to_longest(
    lengths: tuple[int, ...], vocabulary: int, classes: int, *, per_token: bool = False
) -> Callable[[int, str], list[Tensor]]:
    """Texts, their masks and labels. Every batch is as long as its longest text: `lengths`, one batch after another."""
    longest = itertools.cycle(lengths)

    def batch(count: int, device: str) -> list[Tensor]:
        length = next(longest)
        mask = (torch.arange(length) < torch.randint(length // 3, length + 1, (count, 1))).long()
        mask[0] = 1
        ids = torch.randint(5, vocabulary, (count, length)) * mask
        labels = torch.randint(0, classes, (count, length) if per_token else (count,))
        if per_token:
            labels = labels.masked_fill(mask == 0, -100)
        return [ids.to(device), mask.to(device), labels.to(device)]

    return batch


def masked_text_loss(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    return loss


def tokens(vocabulary: int, length: int) -> Callable[[int, str], list[Tensor]]:
    """Token ids that are their own labels."""

    def batch(count: int, device: str) -> list[Tensor]:
        ids = torch.randint(0, vocabulary, (count, length), device=device)
        return [ids, ids]

    return batch


def tokens_and_class(vocabulary: int, length: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randint(0, vocabulary, (count, length), device=device),
            torch.randint(0, classes, (count,), device=device),
        ]

    return batch


def language_model_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, labels=labels).loss
    return loss


def causal_lm(family: str, length: int, **sizes: Any) -> Spec:
    """A language model of one of transformers' families, which learns the next word of texts of one length."""
    config = getattr(huggingface(), f"{family}Config")(use_cache=False, **sizes)
    model = getattr(huggingface(), f"{family}ForCausalLM")(config)
    return Spec(model, tokens(config.vocab_size, length), language_model_loss)


def masked_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    return loss


def batch_of(*makers: Callable[[int], Tensor]) -> Callable[[int, str], list[Tensor]]:
    """A batch of several tensors, each made on the host for so many examples."""
    return lambda count, device: [maker(count).to(device) for maker in makers]


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def uniform(*shape: int) -> Callable[[int], Tensor]:
    """Numbers between 0 and 1."""
    return lambda count: torch.rand(count, *shape)


def integers(classes: int, *shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(0, classes, (count, *shape))


def zeros_or_ones(*shape: int) -> Callable[[int], Tensor]:
    """Yes or no as 1.0 or 0.0."""
    return lambda count: torch.randint(0, 2, (count, *shape)).float()


def segmentation(channels: int, height: int, width: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    return batch_of(normal(channels, height, width), integers(classes, height, width))


def source_and_target(
    vocabulary: int, lengths: tuple[tuple[int, int], ...]
) -> Callable[[int, str], list[Tensor]]:
    """Padded texts and what is to be written for each, in batches of these lengths."""
    sizes = itertools.cycle(lengths)

    def batch(count: int, device: str) -> list[Tensor]:
        source, target = next(sizes)
        mask = (torch.arange(source) < torch.randint(source // 2, source + 1, (count, 1))).long()
        mask[0] = 1
        ids, labels = (
            torch.randint(3, vocabulary, (count, source)) * mask,
            torch.randint(3, vocabulary, (count, target)),
        )
        labels[1:, target // 2 :] = -100
        return [one.to(device) for one in (ids, mask, labels)]

    return batch


def dice_loss(told: Tensor, wanted: Tensor) -> Tensor:
    """One minus the share that both have in common."""
    told = told.float().sigmoid().flatten(1)
    wanted = wanted.flatten(1)
    return 1 - ((2 * (told * wanted).sum(1) + 1) / (told.sum(1) + wanted.sum(1) + 1)).mean()


def image_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = model(pixel_values=x, labels=y).loss
    return loss


def transformer_sizes(width: int, layers: int, **more: Any) -> dict[str, Any]:
    """What most configurations call their sizes."""
    return {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64, "intermediate_size": 4 * width, **more,
    }  # fmt: skip


def token_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy over every token."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())
