"""Memory for the optimizer state is reserved before the first forward pass, without changing the optimizer."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import legroom
from legroom.train.guarding.reserving import future_state_sizes
from legroom.units import MiB

WIDTH = 1024
"""The width of a layer with 4 MiB of weights. Adam's state needs another 8 MiB."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("legroom")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(torch.optim.SGD, {}, id="SGD"),
        pytest.param(torch.optim.SGD, {"momentum": 0.9}, id="SGD with momentum"),
        pytest.param(torch.optim.Adam, {"lr": torch.tensor(0.1)}, id="Adam with a tensor lr"),
        pytest.param(torch.optim.AdamW, {"amsgrad": True}, id="AdamW with amsgrad"),
        pytest.param(torch.optim.RMSprop, {"centered": True, "momentum": 0.5}, id="centered RMSprop"),
        pytest.param(torch.optim.ASGD, {}, id="ASGD"),
        pytest.param(torch.optim.Adafactor, {}, id="Adafactor"),
    ],
)
def test_state_sizes_are_predicted_before_the_first_step(kind: Any, options: dict[str, Any]) -> None:
    model = nn.Linear(5, 3)
    optimizer = kind(model.parameters(), **options)
    predicted = future_state_sizes(optimizer)
    assert not optimizer.state
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    created = [value for state in optimizer.state.values() for value in state.values()]
    assert predicted == [
        value.nbytes for value in created if isinstance(value, torch.Tensor) and value.numel() > 1
    ]
    assert future_state_sizes(optimizer) == []


def test_the_prediction_does_not_trigger_optimizer_hooks() -> None:
    hooked: list[object] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: hooked.append(optimizer))
    try:
        assert future_state_sizes(torch.optim.Adam(nn.Linear(5, 3).parameters()))
    finally:
        hook.remove()
    assert not hooked


def test_frozen_parameters_have_no_state() -> None:
    model = nn.Linear(5, 3)
    model.bias.requires_grad_(False)
    assert future_state_sizes(torch.optim.Adam(model.parameters())) == [60, 60]


def trained(capacity: str, batch_size: int) -> tuple[list[tuple[int, ...]], list[int], list[torch.Tensor]]:
    """Return the splits, the attempts and all tensors of two guarded steps."""
    with legroom.VirtualGPU(capacity):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        guard = legroom.Guard(model, optimizer, cache_sizes=False)
        splits, attempts = [], []
        for _ in range(2):
            guard.step(lambda x: model(x).square().mean(), torch.randn(batch_size, WIDTH, device="cuda"))
            assert guard.last_step is not None
            splits.append(guard.last_step.split)
            attempts.append(guard.last_step.attempts)
        state = [value for each in optimizer.state.values() for value in each.values()]
        numbers = [tensor.detach().cpu().clone() for tensor in [*model.parameters(), *state]]
    return splits, attempts, numbers


@pytest.mark.slow
def test_a_batch_that_does_not_fit_next_to_the_state_is_split_in_the_first_step() -> None:
    """Without the reservation, the first step would run unsplit and the second one would fail."""
    splits, attempts, _ = trained("44MiB", 2048)
    assert len(splits[0]) > 1
    assert attempts[1] == 1


def test_values_and_counters_are_those_of_a_plain_run() -> None:
    _, _, ours = trained("1GiB", 8)
    torch.manual_seed(0)
    with legroom.VirtualGPU("1GiB"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.randn(8, WIDTH, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        state = [value for each in optimizer.state.values() for value in each.values()]
        plain = [tensor.detach().cpu().clone() for tensor in [*model.parameters(), *state]]
    assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True))


def test_the_reservation_is_released_before_the_optimizer_step() -> None:
    with legroom.VirtualGPU("256MiB"):
        model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
        guard = legroom.Guard(model, torch.optim.Adam(model.parameters()), cache_sizes=False)
        x = torch.randn(8, WIDTH, device="cuda")
        guard.backward(lambda x: model(x).square().mean(), x)
        before = torch.cuda.memory_allocated()
        guard.optimizer_step()
        after = torch.cuda.memory_allocated()
    assert before - after == WIDTH * WIDTH * 4  # only the gradient: the state uses the reserved memory


@pytest.mark.parametrize("capacity", ["40MiB", "60MiB"])
def test_nothing_is_reserved_if_splitting_could_not_help(capacity: str) -> None:
    """If state and gradients do not fit together, the optimizer step recovers without a reservation."""
    with legroom.VirtualGPU(capacity):
        model = nn.Linear(2 * WIDTH, 2 * WIDTH, bias=False).cuda()
        guard = legroom.Guard(model, torch.optim.Adam(model.parameters()), cache_sizes=False)
        guard.backward(lambda x: model(x).square().mean(), torch.randn(8, 2 * WIDTH, device="cuda"))
        assert torch.cuda.memory_allocated() < 33 * MiB  # the parameter and its gradient
        assert guard.last_step is not None
        assert (guard.last_step.split, guard.last_step.attempts) == ((8,), 1)


def test_the_reservation_is_released_if_a_single_sample_does_not_fit() -> None:
    with legroom.VirtualGPU("76MiB"):
        model = nn.Linear(2 * WIDTH, 2 * WIDTH, bias=False).cuda()
        guard = legroom.Guard(model, torch.optim.Adam(model.parameters()), cache_sizes=False, fallbacks=())

        def loss_fn(x: torch.Tensor) -> torch.Tensor:
            temporary = torch.zeros(34 * MiB // 4, device="cuda")
            return model(x).square().mean() + temporary.sum()

        guard.backward(loss_fn, torch.randn(2, 2 * WIDTH, device="cuda"))
        assert guard.last_step is not None
        assert guard.last_step.split == (2,)
