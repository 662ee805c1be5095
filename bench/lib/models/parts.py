"""Common parts of model builders: the `Spec` that they return, optional libraries, common batches and losses."""

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
    """A model, a function that makes a batch, and a loss."""

    model: Any
    batch: Callable[[int, str], list[Tensor]]
    loss: Callable[..., Tensor]
    training: Callable[["StepParts"], Any] | None = None
    """A function that builds a custom step, for example for adversarial training, rollouts before an update, or
    second-order gradients. The usual step clears gradients and runs the loss, backward and one optimizer step.
    """


@dataclass
class StepParts:
    """The parts from which a custom step is built."""

    model: Any
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    """A function that creates the case's optimizer for these parameters."""
    batch: Callable[[], list[Tensor]]
    precision: Callable[[], contextlib.AbstractContextManager[Any]]
    """The case's autocast context, or a null context."""


_definitions: list[Any] = []


def torchvision() -> Any:
    """Import torchvision for its models. If torchvision was built for another torch version, declare the two operators
    that the import needs."""
    try:
        import torchvision as found
    except RuntimeError:
        declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        _definitions.append(declared)  # keep the declaration alive
        import torchvision as found
    return found


with contextlib.suppress(ImportError):  # transformers imports torchvision too, so make it importable first
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
    """Return images or other arrays with one class each. The arrays are created on the host, as by a DataLoader."""

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, *shape).to(device), torch.randint(0, classes, (count,)).to(device)]

    return batch


def with_targets(*shape: int, outputs: tuple[int, ...]) -> Callable[[int, str], list[Tensor]]:
    """Return arrays with regression targets between 0 and 1."""
    return lambda count, device: [
        torch.randn(count, *shape).to(device),
        torch.rand(count, *outputs).to(device),
    ]


def unlabelled(*shape: int) -> Callable[[int, str], list[Tensor]]:
    """Return arrays between 0 and 1 without labels."""
    return lambda count, device: [torch.rand(count, *shape).to(device)]


def classification_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def mse_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x).float(), y)


@torch.no_grad()
def ema_update(slow: Iterable[Tensor], fast: Iterable[Tensor], share: float) -> None:
    """Update an exponential moving average. `share` is the weight of `fast` in the new value of `slow`."""
    for old, new in zip(slow, fast, strict=True):
        old.lerp_(new, share)


def no_loss(*_: object) -> Tensor:
    """Return a placeholder loss for models with a custom step."""
    raise NotImplementedError("this model has a custom step")


def mlp(*widths: int, last: bool = False, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Build a multilayer perceptron. With `last`, an activation also follows the last layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), act()]
    return nn.Sequential(*(layers if last else layers[:-1]))


def torchvision_model(name: str) -> Any:
    """Return a torchvision classifier with random weights."""
    return getattr(torchvision().models, name)(weights=None)


def freeze(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def huggingface() -> Any:
    """Import transformers only when needed, because the import takes seconds."""
    import transformers

    return transformers


def padded_texts(vocabulary: int, length: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    """Return texts padded with zeros at the end, with one class each."""

    def batch(count: int, device: str) -> list[Tensor]:
        used = torch.arange(length) < torch.randint(length // 4, length + 1, (count, 1))
        ids = torch.randint(1, vocabulary, (count, length)) * used
        return [ids.to(device), torch.randint(0, classes, (count,)).to(device)]

    return batch


def padded_to_longest(
    lengths: tuple[int, ...], vocabulary: int, classes: int, *, per_token: bool = False
) -> Callable[[int, str], list[Tensor]]:
    """Return texts, attention masks and labels. Batches cycle through `lengths`, which are the lengths of their
    longest texts."""
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
    """Return token IDs that are also the labels."""

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
    """Build a causal language model of a transformers family."""
    config = getattr(huggingface(), f"{family}Config")(use_cache=False, **sizes)
    model = getattr(huggingface(), f"{family}ForCausalLM")(config)
    return Spec(model, tokens(config.vocab_size, length), language_model_loss)


def masked_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    return loss


def batch_of(*makers: Callable[[int], Tensor]) -> Callable[[int, str], list[Tensor]]:
    """Return a batch of several tensors, each created on the host."""
    return lambda count, device: [maker(count).to(device) for maker in makers]


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def uniform(*shape: int) -> Callable[[int], Tensor]:
    """Return a function that creates uniform values between 0 and 1."""
    return lambda count: torch.rand(count, *shape)


def integers(classes: int, *shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(0, classes, (count, *shape))


def zeros_or_ones(*shape: int) -> Callable[[int], Tensor]:
    """Return a function that creates random values 0.0 and 1.0."""
    return lambda count: torch.randint(0, 2, (count, *shape)).float()


def segmentation(channels: int, height: int, width: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    return batch_of(normal(channels, height, width), integers(classes, height, width))


def source_and_target(
    vocabulary: int, lengths: tuple[tuple[int, int], ...]
) -> Callable[[int, str], list[Tensor]]:
    """Return padded source texts, masks and target texts. Batches cycle through `lengths`."""
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


def dice_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the Dice loss, which is one minus the overlap of prediction and target."""
    output = output.float().sigmoid().flatten(1)
    target = target.flatten(1)
    return 1 - ((2 * (output * target).sum(1) + 1) / (output.sum(1) + target.sum(1) + 1)).mean()


def image_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = model(pixel_values=x, labels=y).loss
    return loss


def transformer_sizes(width: int, layers: int, **more: Any) -> dict[str, Any]:
    """Return the common arguments of a transformers configuration."""
    return {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64, "intermediate_size": 4 * width, **more,
    }  # fmt: skip


def token_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy over every token."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())
