"""Loops that only call a model: evaluations are checked for leaks, parts of one training step are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.leaks.search import suspects

pytestmark = pytest.mark.slow


def _run(loop: Callable[[], None]) -> tuple[list[DetectedLeak], LeakDetector]:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(lambda leak: found.setdefault(leak.identity, leak) and None, fraction=1.0)
    detector.attach()
    try:
        loop()
    finally:
        detector.detach()
    assert detector.error == ""
    return list(found.values()), detector


def test_an_evaluation_over_a_range_that_retains_graphs_is_reported() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    outputs = []

    def loop() -> None:
        for _ in range(14):
            outputs.append(model(torch.randn(5, 6)))

    (leak,), _ = _run(loop)
    assert (leak.name, leak.kind, leak.evaluation) == ("outputs", "graph", True)
    assert leak.step <= 6


def test_results_generated_under_no_grad_are_not_a_leak() -> None:
    model = nn.Linear(4, 4).eval()

    def loop() -> None:
        tokens = [torch.zeros(1, 4)]
        text = tokens[0]
        with torch.no_grad():
            for _ in range(20):
                tokens.append(model(tokens[-1]))
                text = torch.cat([text, tokens[-1]])

    assert _run(loop)[0] == []


@pytest.mark.usefixtures("no_earlier_optimizers")
def test_a_model_in_training_mode_without_an_optimizer_is_reported() -> None:
    model, outputs = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)), []

    def loop() -> None:
        for _ in range(30):
            outputs.append(model(torch.randn(5, 6)))

    (leak,), _ = _run(loop)
    assert (leak.name, leak.kind, leak.evaluation) == ("outputs", "graph", True)


def test_an_episode_before_the_first_backward_pass_is_not_a_leak() -> None:
    policy = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    def loop() -> None:
        log_probs = [policy(torch.randn(4)).log_softmax(-1)[0] for _ in range(60)]
        torch.stack(log_probs).sum().backward()
        optimizer.step()

    assert _run(loop)[0] == []


def test_an_unrolled_network_before_its_first_backward_pass_is_not_a_leak() -> None:
    cell = nn.GRUCell(3, 3)

    def loop() -> None:
        state, states = torch.zeros(2, 3), []
        for _ in range(40):
            state = cell(torch.randn(2, 3), state)
            states.append(state)
        torch.stack(states).mean().backward()

    assert _run(loop)[0] == []


def test_the_hooks_are_removed_after_an_optimizer_step() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before: list[Any] = list(torch_module._global_forward_pre_hooks)
    during: list[Any] = []

    def loop() -> None:
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        during.extend(torch_module._global_forward_pre_hooks)

    _run(loop)
    assert during == before


@pytest.mark.usefixtures("no_earlier_optimizers")
@pytest.mark.parametrize("trains", [False, True])
def test_a_sum_of_losses_is_reported_early_if_the_program_has_no_backward_pass(
    trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "may_train", lambda: trains)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))

    def loop() -> None:
        total: Any = 0.0
        for _ in range(40):
            total += model(torch.randn(5, 6)).square().mean()

    assert [leak.name for leak in _run(loop)[0]] == ([] if trains else ["total"])


@pytest.mark.usefixtures("no_earlier_optimizers")
def test_a_state_that_the_next_call_reads_may_be_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "may_train", lambda: False)
    cell = nn.Linear(6, 6)

    def loop() -> None:
        state = torch.zeros(1, 6)
        for _ in range(40):
            state = cell(state)

    assert _run(loop)[0] == []
