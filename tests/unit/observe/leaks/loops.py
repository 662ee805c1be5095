"""A small training loop with the leak detector attached."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector


def leaks_of(
    body: Callable[[int, Any, Any], None],
    iterations: int = 14,
    *,
    allocated: Callable[[], int] | None = None,
    on_device: Callable[[torch.Tensor], bool] | None = None,
) -> list[DetectedLeak]:
    """Return the leaks found in a loop that calls `body(step, loss, output)` after each optimizer step. `allocated`
    returns the allocated device bytes. `on_device` returns whether a tensor counts as device memory."""
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(
        lambda leak: found.setdefault(leak.identity, leak) and None,
        allocated=allocated,
        on_device=on_device,
        fraction=1e6,
    )  # every iteration is sampled, regardless of the load of the machine
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    detector.attach()
    try:
        for step in range(iterations):
            output = model(torch.randn(5, 6))
            loss = output.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            body(step, loss, output)
    finally:
        detector.detach()
    assert detector.error == ""
    assert not detector.several_threads, "a thread of another test still trains"
    return list(found.values())
