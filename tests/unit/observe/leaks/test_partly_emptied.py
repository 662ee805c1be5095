"""Containers from which the program removes fewer items than it adds."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector


class _Activations:
    """Stores the input of each layer in the forward pass, and removes it in the backward pass."""

    def __init__(self, layers: Iterable[Any]) -> None:
        for layer in layers:
            layer.activations = []
            layer.register_forward_hook(self.store)
            layer.register_full_backward_hook(self.remove)

    def store(self, layer: Any, inputs: Any, output: Any) -> None:
        layer.activations.append(inputs[0].detach())

    def remove(self, layer: Any, grad_inputs: Any, grad_outputs: Any) -> None:
        layer.norm = layer.activations.pop().norm()

    def clear(self, layers: Iterable[Any]) -> None:
        for layer in layers:
            layer.activations = []


def _train(*, evaluates: bool, clears: bool) -> list[DetectedLeak]:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(lambda leak: found.setdefault(leak.identity, leak) and None, fraction=1e6)
    model = nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stored = _Activations(model)
    detector.attach()
    try:
        for step in range(60):
            optimizer.zero_grad()
            model(torch.randn(5, 6, requires_grad=True)).square().mean().backward()
            optimizer.step()
            if evaluates:
                with torch.no_grad():
                    model(torch.randn(7, 6))
            if clears and step % 20 == 0:
                stored.clear(model)
    finally:
        detector.detach()
    assert detector.error == ""
    return list(found.values())


def test_activations_that_only_a_backward_pass_removes_are_reported() -> None:
    leaks = _train(evaluates=True, clears=False)
    line = _Activations.store.__code__.co_firstlineno + 1
    assert {(leak.kind, leak.line) for leak in leaks} == {("tensor", line)}


@pytest.mark.parametrize("evaluates", [False, True])
def test_activations_that_are_removed_are_not_a_leak(evaluates: bool) -> None:
    assert _train(evaluates=evaluates, clears=evaluates) == []
