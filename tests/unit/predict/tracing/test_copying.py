"""The objects that a step function uses are copied, if they can be."""

import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError
from legroom.predict.tracing.copying import loss_of

LOCKS = {"log": threading.Lock()}
MODEL: nn.Module = nn.Identity()
OPTIMIZER: torch.optim.Optimizer | None = None


def step(x: torch.Tensor) -> None:
    with LOCKS["log"]:
        MODEL(x).sum().backward()
    assert OPTIMIZER is not None
    OPTIMIZER.step()


def test_a_global_model_is_copied_and_a_global_lock_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monkeypatch.setitem(globals(), "MODEL", model)
    monkeypatch.setitem(globals(), "OPTIMIZER", optimizer)

    result = legroom.estimate(step, torch.zeros(8, 64), gpu="1GiB", search=False)

    assert result.by_category["optimizer state"] >= 64 * 64 * 4
    assert model.weight.grad is None
    assert not optimizer.state


@dataclass
class Scores:
    scores: torch.Tensor


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (lambda x: {"loss": x.mean(), "logits": x}, lambda x, y: x.mean()),
        (lambda x: SimpleNamespace(loss=x.mean()), lambda x, y: x.mean()),
        (lambda x: {"boxes": x.mean(), "classes": x.sum()}, lambda x, y: x.mean() + x.sum()),
        (lambda x: {"name": "a", "scores": [x]}, nn.functional.cross_entropy),
        (lambda x: Scores(x), nn.functional.cross_entropy),
        (lambda x: (x, x.sum()), nn.functional.cross_entropy),
    ],
)
def test_the_loss_is_found_in_any_output(output: Any, expected: Any) -> None:
    x, y = torch.randn(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.long)
    assert torch.allclose(loss_of(output, (x, y)), expected(x, y))


def test_an_output_without_a_tensor_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"output \(dict\) contains no floating-point tensor"):
        loss_of(lambda x: {"count": 3}, (torch.zeros(1), torch.zeros(1)))
