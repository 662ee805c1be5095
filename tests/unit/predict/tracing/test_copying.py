"""The objects that a step function uses are copied, if they can be."""

import threading

import pytest
import torch
from torch import nn

import legroom

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
