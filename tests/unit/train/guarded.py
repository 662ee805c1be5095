"""A small model, its batch and its Guard on a virtual GPU, for tests."""

import torch
import torch.nn.functional as F
from torch import nn

from legroom import Guard


def small_model(dropout: float = 0.0, width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 3))


def small_batch(batch_size: int = 10, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch_size, 6, generator=generator)
    y = torch.randint(0, 3, (batch_size,), generator=generator)
    return x.to(device), y.to(device)


def cross_entropy_of(model: nn.Module):
    return lambda x, y: F.cross_entropy(model(x), y)


def guarded(model: nn.Module, **options) -> Guard:
    options.setdefault("on_finding", lambda finding: None)
    return Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.detach().cpu().clone() for parameter in model.parameters()]
