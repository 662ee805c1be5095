"""When a turn ends: optimizers that come and go, evaluation over no loader, steps by hand."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from legroom.observe.leaks.iterations import Ticks


@pytest.fixture
def ticks() -> Iterator[Ticks]:
    made = Ticks(lambda: None)
    made.counted = 0  # type: ignore[attr-defined]

    def count() -> None:
        made.counted += 1  # type: ignore[attr-defined]

    made._on_tick = count
    made.attach()
    yield made
    made.detach()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_of_two_optimizers_one_ends_the_turns(ticks: Ticks) -> None:
    model = nn.Linear(2, 1)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    for _ in range(5):
        step(model, first)
        step(model, second)
    assert ticks.counted == 5  # type: ignore[attr-defined]


def test_another_optimizer_takes_over_where_the_first_has_stopped(ticks: Ticks) -> None:
    model = nn.Linear(2, 1)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    step(model, first)
    for _ in range(10):
        step(model, second)
    assert ticks.counted >= 8  # type: ignore[attr-defined]


def test_an_optimizer_for_each_task_makes_a_turn_of_each_task(ticks: Ticks) -> None:
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(8)]
    for optimizer in optimizers[:2]:
        for _ in range(4):
            step(model, optimizer)
    before = ticks.counted  # type: ignore[attr-defined]
    for optimizer in optimizers[2:]:
        for _ in range(4):
            step(model, optimizer)
    assert ticks.counted - before == 6  # type: ignore[attr-defined]


def test_calls_of_a_model_in_evaluation_are_turns_after_training_as_well(ticks: Ticks) -> None:
    model = nn.Linear(2, 1)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.eval()
    before = ticks.counted  # type: ignore[attr-defined]
    for _ in range(6):
        model(torch.ones(1, 2))
    assert ticks.counted - before >= 5  # type: ignore[attr-defined]


def test_they_are_not_while_training_goes_on(ticks: Ticks) -> None:
    model, frozen = nn.Linear(2, 1), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    frozen.eval()
    for _ in range(6):
        frozen(torch.ones(1, 2))
        step(model, optimizer)
    assert ticks.counted == 6  # type: ignore[attr-defined]


def test_train_and_eval_are_as_before_when_it_is_detached() -> None:
    before = nn.Module.train
    made = Ticks(lambda: None)
    made.attach()
    made.detach()
    assert nn.Module.train is before


def test_gradients_with_a_graph_are_turns_where_no_step_follows(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legroom.observe.leaks.iterations.has_optimizer", lambda: False)
    weight = torch.ones(2, requires_grad=True)
    for _ in range(12):
        torch.autograd.grad((weight**2).sum(), weight, create_graph=True)
    assert ticks.counted == 12 - Ticks.BACKWARDS_ALONE + 1  # type: ignore[attr-defined]
