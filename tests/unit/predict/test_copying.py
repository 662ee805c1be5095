"""What a step function works on is copied; what cannot be is left alone."""

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


def test_a_lock_among_the_globals_is_no_hindrance_and_the_model_there_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monkeypatch.setitem(globals(), "MODEL", model)
    monkeypatch.setitem(globals(), "OPTIMIZER", optimizer)

    told = legroom.estimate(step, torch.zeros(8, 64), gpu="1GiB", search=False)

    assert told.by_category["optimizer state"] >= 64 * 64 * 4
    assert model.weight.grad is None
    assert not optimizer.state
