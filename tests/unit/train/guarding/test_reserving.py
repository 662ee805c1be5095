"""The optimizer's state has its room before the first forward pass, and the optimizer notices nothing of it."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import legroom
from legroom.train.guarding.reserving import state_to_come
from legroom.units import MiB

WIDTH = 1024
"""A layer of 4 MiB; Adam's state takes 8 MiB more."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("legroom")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(torch.optim.SGD, {}, id="SGD"),
        pytest.param(torch.optim.SGD, {"momentum": 0.9}, id="SGD with momentum"),
        pytest.param(torch.optim.Adam, {"lr": torch.tensor(0.1)}, id="Adam, its rate a tensor"),
        pytest.param(torch.optim.AdamW, {"amsgrad": True}, id="AdamW with amsgrad"),
        pytest.param(torch.optim.RMSprop, {"centered": True, "momentum": 0.5}, id="RMSprop, centered"),
        pytest.param(torch.optim.ASGD, {}, id="ASGD"),
        pytest.param(torch.optim.Adafactor, {}, id="Adafactor"),
    ],
)
def test_what_a_first_step_will_make_is_known_beforehand(kind: Any, options: dict[str, Any]) -> None:
    model = nn.Linear(5, 3)
    optimizer = kind(model.parameters(), **options)
    told = state_to_come(optimizer)
    assert not optimizer.state
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    made = [value for state in optimizer.state.values() for value in state.values()]
    assert told == [value.nbytes for value in made if isinstance(value, torch.Tensor) and value.numel() > 1]
    assert state_to_come(optimizer) == []


def test_nobody_who_watches_optimizers_hears_of_it() -> None:
    heard: list[object] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: heard.append(optimizer))
    try:
        assert state_to_come(torch.optim.Adam(nn.Linear(5, 3).parameters()))
    finally:
        hook.remove()
    assert not heard


def test_what_is_not_trained_will_have_no_state() -> None:
    model = nn.Linear(5, 3)
    model.bias.requires_grad_(False)
    assert state_to_come(torch.optim.Adam(model.parameters())) == [60, 60]


def trained(capacity: str, rows: int) -> tuple[list[tuple[int, ...]], list[int], list[torch.Tensor]]:
    """Splits, attempts and all numbers of two guarded steps."""
    with legroom.VirtualGPU(capacity):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        guard = legroom.Guard(model, optimizer, remember=False)
        splits, attempts = [], []
        for _ in range(2):
            guard.step(lambda x: model(x).square().mean(), torch.randn(rows, WIDTH, device="cuda"))
            assert guard.last is not None
            splits.append(guard.last.split)
            attempts.append(guard.last.attempts)
        state = [value for each in optimizer.state.values() for value in each.values()]
        numbers = [tensor.detach().cpu().clone() for tensor in [*model.parameters(), *state]]
    return splits, attempts, numbers


def test_a_batch_that_state_leaves_no_room_for_is_split_in_the_first_step_already() -> None:
    """Without room for the state, the first step would run whole and the second one fail."""
    splits, attempts, _ = trained("44MiB", 2048)
    assert len(splits[0]) > 1
    assert attempts[1] == 1


def test_numbers_and_counters_are_those_of_a_plain_run() -> None:
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


def test_the_room_is_given_back_before_the_optimizer_asks_for_it() -> None:
    with legroom.VirtualGPU("256MiB"):
        model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
        guard = legroom.Guard(model, torch.optim.Adam(model.parameters()), remember=False)
        x = torch.randn(8, WIDTH, device="cuda")
        guard.backward(lambda x: model(x).square().mean(), x)
        before = torch.cuda.memory_allocated()
        guard.update()
        after = torch.cuda.memory_allocated()
    assert before - after == WIDTH * WIDTH * 4  # the gradient alone: the state lies where its room was


@pytest.mark.parametrize("capacity", ["40MiB", "60MiB"])
def test_no_room_is_kept_where_splitting_could_make_none(capacity: str) -> None:
    """No room for the state, or none for state and gradients together: the optimizer is carried through instead."""
    with legroom.VirtualGPU(capacity):
        model = nn.Linear(2 * WIDTH, 2 * WIDTH, bias=False).cuda()
        guard = legroom.Guard(model, torch.optim.Adam(model.parameters()), remember=False)
        guard.backward(lambda x: model(x).square().mean(), torch.randn(8, 2 * WIDTH, device="cuda"))
        assert torch.cuda.memory_allocated() < 33 * MiB  # the parameter and its gradient
        assert guard.last is not None
        assert (guard.last.split, guard.last.attempts) == ((8,), 1)


def test_room_for_state_gives_way_where_one_row_does_not_fit() -> None:
    with legroom.VirtualGPU("76MiB"):
        model = nn.Linear(2 * WIDTH, 2 * WIDTH, bias=False).cuda()
        guard = legroom.Guard(model, torch.optim.Adam(model.parameters()), remember=False, ladder=())

        def greedy(x: torch.Tensor) -> torch.Tensor:
            held = torch.zeros(34 * MiB // 4, device="cuda")
            return model(x).square().mean() + held.sum()

        guard.backward(greedy, torch.randn(2, 2 * WIDTH, device="cuda"))
        assert guard.last is not None
        assert guard.last.split == (2,)
