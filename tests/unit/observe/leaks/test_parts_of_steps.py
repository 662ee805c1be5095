"""Backward passes and calls to `torch.autograd.grad` that are only parts of a step are not iterations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_earlier_optimizers")]


def _leaks_of_steps(step: Callable[[], None], steps: int = 8) -> list[DetectedLeak]:
    """Return the leaks that have not ended after a number of steps."""
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(lambda leak: found.__setitem__(leak.identity, leak), fraction=1e6)
    detector.attach()
    try:
        for _ in range(steps):
            step()
    finally:
        detector.detach()
    assert detector.error == ""
    return [each for each in found.values() if not each.ended]


def _task_loss(weights: Any) -> Any:
    return (torch.randn(5, 8) @ weights).square().mean()


def _adapt(weights: Any, losses_q: list[Any], updates: int = 5) -> None:
    """Run the inner loop of MAML for one task."""
    with torch.no_grad():
        losses_q[0] += _task_loss(weights)
    for k in range(1, updates):
        (gradient,) = torch.autograd.grad(_task_loss(weights), [weights])
        weights = weights - 0.01 * gradient
        losses_q[k] += _task_loss(weights)


def test_inner_updates_of_maml_are_parts_of_the_optimizer_step() -> None:
    model = nn.Linear(4, 8, bias=False)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        losses_q = [0 for _ in range(5)]
        for _ in range(6):
            _adapt(model.weight, losses_q)
        optimizer.zero_grad()
        (losses_q[-1] / 6).backward()  # type: ignore[attr-defined]
        optimizer.step()

    assert _leaks_of_steps(step) == []


def test_inner_updates_of_maml_without_an_optimizer_are_parts_of_the_backward_pass() -> None:
    weights = torch.randn(8, 4, requires_grad=True)

    def step() -> None:
        losses_q = [0 for _ in range(5)]
        for _ in range(6):
            _adapt(weights, losses_q)
        (losses_q[-1] / 6).backward()  # type: ignore[attr-defined]
        with torch.no_grad():
            weights.sub_(0.01 * weights.grad)
        weights.grad = None

    assert _leaks_of_steps(step) == []


@pytest.mark.parametrize("is_leak", [False, True])
def test_losses_of_the_tasks_of_the_first_step_are_a_leak_only_if_they_outlive_the_step(
    is_leak: bool,
) -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history: list[Any] = []

    def step() -> None:
        losses = history if is_leak else []
        for _ in range(32):
            loss = model(torch.randn(5, 8)).square().mean()
            loss.backward()
            losses.append(loss)
        optimizer.step()
        optimizer.zero_grad()

    assert [each.kind for each in _leaks_of_steps(step)] == ["graph"] * is_leak


def test_a_line_without_gradients_is_not_reported_for_a_graph() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    totals: list[Any] = [0.0, 0.0]

    def step() -> None:
        loss = model(torch.randn(5, 8)).square().mean()
        with torch.no_grad():
            totals[0] += model(torch.randn(5, 8)).mean()
        totals[1] += loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    (leak,) = _leaks_of_steps(step, steps=14)
    assert (leak.name, leak.kind) == ("totals", "graph")
    assert leak.line == step.__code__.co_firstlineno + 4
