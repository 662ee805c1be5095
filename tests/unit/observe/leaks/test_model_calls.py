"""Loops in which only a model is called: those of an evaluation are watched, the parts of one training step are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from legroom.memory.annotations import DetectedLeak
from legroom.observe.leaks.watcher import Watcher


def _watched(loop: Callable[[], None]) -> tuple[list[DetectedLeak], Watcher]:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    watcher = Watcher(lambda kept: found.setdefault(kept.identity, kept) and None, share=1.0)
    watcher.attach()
    try:
        loop()
    finally:
        watcher.detach()
    assert watcher.trouble == ""
    return list(found.values()), watcher


def test_an_evaluation_over_a_plain_range_that_keeps_graphs_is_told() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    outputs = []

    def loop() -> None:
        for _ in range(14):
            outputs.append(model(torch.randn(5, 6)))

    (leak,), _ = _watched(loop)
    assert (leak.name, leak.kind, leak.evaluation) == ("outputs", "graph", True)
    assert leak.step <= 6


def test_results_written_one_by_one_under_no_grad_are_no_leak() -> None:
    model = nn.Linear(4, 4).eval()

    def loop() -> None:
        tokens = [torch.zeros(1, 4)]
        text = tokens[0]
        with torch.no_grad():
            for _ in range(20):
                tokens.append(model(tokens[-1]))
                text = torch.cat([text, tokens[-1]])

    assert _watched(loop)[0] == []


@pytest.mark.usefixtures("no_earlier_optimizers")
def test_a_model_left_in_training_mode_that_nothing_trains_is_watched_as_well() -> None:
    model, outputs = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)), []

    def loop() -> None:
        for _ in range(30):
            outputs.append(model(torch.randn(5, 6)))

    (leak,), _ = _watched(loop)
    assert (leak.name, leak.kind, leak.evaluation) == ("outputs", "graph", True)


def test_the_steps_of_an_episode_before_the_first_backward_pass_are_no_leak() -> None:
    policy = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    def loop() -> None:
        kept = [policy(torch.randn(4)).log_softmax(-1)[0] for _ in range(60)]
        torch.stack(kept).sum().backward()
        optimizer.step()

    assert _watched(loop)[0] == []


def test_a_network_unrolled_before_its_first_backward_pass_is_no_leak() -> None:
    cell = nn.GRUCell(3, 3)

    def loop() -> None:
        state, states = torch.zeros(2, 3), []
        for _ in range(40):
            state = cell(torch.randn(2, 3), state)
            states.append(state)
        torch.stack(states).mean().backward()

    assert _watched(loop)[0] == []


def test_the_hooks_are_gone_once_an_optimizer_has_stepped() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before: list[Any] = list(torch_module._global_forward_pre_hooks)
    during: list[Any] = []

    def loop() -> None:
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        during.extend(torch_module._global_forward_pre_hooks)

    _watched(loop)
    assert during == before
