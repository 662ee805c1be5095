"""What a step function works on is copied; what cannot be is left alone."""

import threading

import torch
from torch import nn

import legroom

MODEL = nn.Linear(64, 64)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1, momentum=0.9)
LOCKS = {"log": threading.Lock()}


def step(x: torch.Tensor) -> None:
    with LOCKS["log"]:
        MODEL(x).sum().backward()
    OPTIMIZER.step()


def test_a_lock_among_the_globals_is_no_hindrance_and_the_model_there_is_copied() -> None:
    told = legroom.estimate(step, torch.zeros(8, 64), gpu="1GiB", search=False)

    assert told.by_category["optimizer state"] >= 64 * 64 * 4
    assert MODEL.weight.grad is None
    assert not OPTIMIZER.state
