"""The end of an iteration: several optimizers, evaluation without a loader, manual updates."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from legroom.observe.leaks.iterations import IterationTracker


@pytest.fixture
def tracker() -> Iterator[IterationTracker]:
    tracker = IterationTracker(lambda: None)
    tracker.counted = 0  # type: ignore[attr-defined]

    def count() -> None:
        tracker.counted += 1  # type: ignore[attr-defined]

    tracker._on_iteration = count
    tracker.attach()
    yield tracker
    tracker.detach()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_one_of_two_optimizers_ends_the_iterations(tracker: IterationTracker) -> None:
    model = nn.Linear(2, 1)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    for _ in range(5):
        step(model, first)
        step(model, second)
    assert tracker.counted == 5  # type: ignore[attr-defined]


def test_another_optimizer_ends_the_iterations_after_the_first_stops(tracker: IterationTracker) -> None:
    model = nn.Linear(2, 1)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    step(model, first)
    for _ in range(10):
        step(model, second)
    assert tracker.counted >= 8  # type: ignore[attr-defined]


def test_with_one_optimizer_per_task_each_task_is_an_iteration(tracker: IterationTracker) -> None:
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(8)]
    for optimizer in optimizers[:2]:
        for _ in range(4):
            step(model, optimizer)
    before = tracker.counted  # type: ignore[attr-defined]
    for optimizer in optimizers[2:]:
        for _ in range(4):
            step(model, optimizer)
    assert tracker.counted - before == 6  # type: ignore[attr-defined]


def test_calls_of_a_model_in_eval_mode_are_iterations_after_training(tracker: IterationTracker) -> None:
    model = nn.Linear(2, 1)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.eval()
    before = tracker.counted  # type: ignore[attr-defined]
    for _ in range(6):
        model(torch.ones(1, 2))
    assert tracker.counted - before >= 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_calls_of_a_model_in_training_mode_without_gradients_are_iterations_after_training(
    tracker: IterationTracker, context: Any
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())  # disables gradients in each step
    for _ in range(3):
        step(model, optimizer)
    with context():
        for _ in range(6):
            model(torch.ones(1, 2))
    assert tracker.counted - 3 >= 5  # type: ignore[attr-defined]


def test_calls_of_a_teacher_without_gradients_are_not_iterations_during_training(
    tracker: IterationTracker,
) -> None:
    model, teacher = nn.Linear(2, 1), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.no_grad():
            teacher(torch.ones(1, 2))
        step(model, optimizer)
    before = tracker.counted  # type: ignore[attr-defined]
    for _ in range(6):
        with torch.no_grad():
            teacher(torch.ones(1, 2))
        step(model, optimizer)
    assert tracker.counted - before == 6  # type: ignore[attr-defined]
    assert not tracker._calls._handles  # the hooks would slow down every module


def test_calls_of_a_frozen_model_during_training_are_not_iterations(tracker: IterationTracker) -> None:
    model, frozen = nn.Linear(2, 1), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    frozen.eval()
    for _ in range(6):
        frozen(torch.ones(1, 2))
        step(model, optimizer)
    assert tracker.counted == 6  # type: ignore[attr-defined]


def test_detach_restores_the_wrapped_functions() -> None:
    before = nn.Module.train, torch.no_grad.__enter__, torch.inference_mode.__enter__
    tracker = IterationTracker(lambda: None)
    tracker.attach()
    tracker.detach()
    assert (nn.Module.train, torch.no_grad.__enter__, torch.inference_mode.__enter__) == before


def test_gradients_with_a_graph_are_iterations_if_no_step_follows(
    tracker: IterationTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legroom.observe.leaks.iterations.has_optimizer", lambda: False)
    weight = torch.ones(2, requires_grad=True)
    for _ in range(12):
        torch.autograd.grad((weight**2).sum(), weight, create_graph=True)
    assert tracker.counted == 12 - IterationTracker.BACKWARDS_ALONE + 1  # type: ignore[attr-defined]
