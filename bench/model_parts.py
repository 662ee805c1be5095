"""What builders of models share: the `Spec` they return, libraries that may be missing, common batches and losses."""

import contextlib
from collections.abc import Callable
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


def vision(name: str, *, size: int = 224, classes: int = 1000) -> Spec:
    models = torchvision().models

    kwargs = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    model = getattr(models, name)(weights=None, num_classes=classes, **kwargs)

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, size, size, device=device),
            torch.randint(0, classes, (count,), device=device),
        ]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x), y))


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


def masked_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    return loss
