"""Small training loops under a watcher, for tests."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from legroom.memory.annotations import DetectedLeak
from legroom.observe.leaks.watcher import Watcher


def leaks_of(
    turn: Callable[[int, Any, Any], None], turns: int = 14, *, allocated: Callable[[], int] | None = None
) -> list[DetectedLeak]:
    """What a watcher tells of a loop that calls `turn(step, loss, output)` after each optimizer step. `allocated`: a device's bytes."""
    found: dict[tuple[object, ...], DetectedLeak] = {}
    watcher = Watcher(
        lambda kept: found.setdefault(kept.identity, kept) and None, allocated=allocated, share=1e6
    )  # every turn is attended, however busy the machine
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    watcher.attach()
    try:
        for step in range(turns):
            output = model(torch.randn(5, 6))
            loss = output.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            turn(step, loss, output)
    finally:
        watcher.detach()
    assert watcher.trouble == ""
    return list(found.values())
