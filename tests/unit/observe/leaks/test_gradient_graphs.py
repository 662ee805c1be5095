"""Gradients with a graph, which a backward pass with `create_graph=True` stores in `.grad`."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from legroom.diagnose.report.leaks import advice_on
from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_earlier_optimizers"),
    pytest.mark.filterwarnings("ignore:Using backward"),
]


def _leaks_of(step: Callable[[Any], None], iterations: int = 30) -> list[DetectedLeak]:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(lambda leak: found.setdefault(leak.identity, leak) and None, fraction=1e6)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    detector.attach()
    try:
        for _ in range(iterations):
            step(model)
    finally:
        detector.detach()
    assert detector.error == ""
    return list(found.values())


def _line_after(function: Callable[..., Any], lines: int) -> int:
    return function.__code__.co_firstlineno + lines


def test_gradients_of_models_without_a_variable_are_reported_at_the_backward_pass() -> None:
    def adapt(model: Any) -> None:
        learner = copy.deepcopy(model)
        learner(torch.randn(4, 3)).square().mean().backward(create_graph=True)

    (leak,) = _leaks_of(adapt)
    assert (leak.name, leak.how, leak.kind) == ("parameter.grad", "gradient", "graph")
    assert leak.line == _line_after(adapt, 2)
    code, advice = advice_on(leak)
    assert code == "LG109"
    assert advice == (
        "The backward pass with `create_graph=True` stores a gradient with a graph in `parameter.grad`. The gradient, "
        "its graph and the parameter refer to each other, so they are never freed. Remove `create_graph=True` if no later backward pass "
        "needs the graph of the gradient. Otherwise, use `torch.autograd.grad(…, create_graph=True)`."
    )


def test_gradients_of_inputs_are_reported_at_the_backward_pass() -> None:
    optimizers: list[torch.optim.Optimizer] = []

    def penalty(model: Any) -> None:
        optimizer = optimizers[0] if optimizers else torch.optim.SGD(model.parameters(), lr=0.1)
        optimizers[:] = [optimizer]
        x = torch.randn(4, 3).requires_grad_()
        model(x).sum().backward(create_graph=True)
        loss = x.grad.square().sum()  # type: ignore[union-attr]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    (leak,) = _leaks_of(penalty)
    assert (leak.how, leak.line) == ("gradient", _line_after(penalty, 4))


def test_gradients_that_add_up_with_their_graph_are_reported_with_the_model() -> None:
    def update(model: Any) -> None:
        model(torch.randn(4, 3)).square().mean().backward(create_graph=True)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad

    (leak,) = _leaks_of(update)
    assert leak.name.startswith("model.")
    assert leak.name.endswith(".grad")
    assert (leak.how, leak.line) == ("gradient", _line_after(update, 1))


def test_gradients_that_are_set_to_none_are_not_a_leak() -> None:
    def adapt(model: Any) -> None:
        learner = copy.deepcopy(model)
        learner(torch.randn(4, 3)).square().mean().backward(create_graph=True)
        for parameter in learner.parameters():
            parameter.grad = None

    assert _leaks_of(adapt) == []
