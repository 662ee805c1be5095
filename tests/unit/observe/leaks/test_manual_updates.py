"""Programs with manual updates, and which of several possible holders is reported."""

import queue
import random
from collections import defaultdict
from typing import Any

import pytest
import torch
from loops import leaks_of

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector

pytestmark = pytest.mark.slow


def _leaks_of_manual_updates(*, grad: bool, iterations: int = 16) -> list[DetectedLeak]:
    """Return the leaks of a loop that stores its losses and has neither an optimizer nor a loader."""
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(lambda leak: found.setdefault(leak.identity, leak) and None, fraction=1.0)
    weight, losses = torch.randn(4, 2, requires_grad=True), []
    detector.attach()
    try:
        for _ in range(iterations):
            loss = (torch.randn(5, 4) @ weight).square().mean()
            if grad:
                (weight.grad,) = torch.autograd.grad(loss, [weight])
            else:
                loss.backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None
            losses.append(loss)
    finally:
        detector.detach()
    assert detector.error == ""
    return list(found.values())


@pytest.mark.usefixtures("no_earlier_optimizers")
def test_without_an_optimizer_backward_passes_are_iterations_from_the_start() -> None:
    (leak,) = _leaks_of_manual_updates(grad=False)
    assert (leak.name, leak.kind) == ("losses", "graph")
    assert leak.step <= 8


@pytest.mark.usefixtures("no_earlier_optimizers")
def test_without_an_optimizer_calls_of_autograd_grad_are_iterations() -> None:
    (leak,) = _leaks_of_manual_updates(grad=True)
    assert (leak.name, leak.kind) == ("losses", "graph")


def test_detach_restores_grad_and_backward() -> None:
    before = torch.autograd.backward, torch.autograd.grad
    detector = LeakDetector(lambda leak: None)
    detector.attach()
    detector.detach()
    assert (torch.autograd.backward, torch.autograd.grad) == before


def test_a_queue_is_reported_by_its_name_in_the_user_code() -> None:
    pending: queue.Queue[Any] = queue.Queue()

    def put(step: int, loss: Any, output: Any) -> None:
        pending.put((step, loss))

    (leak,) = leaks_of(put)
    assert (leak.name, leak.function) == ("pending", "put")


def test_a_total_inside_a_small_dict_is_reported_instead_of_the_dict() -> None:
    class Meter:
        total: Any = 0.0

    meters: dict[str, Meter] = defaultdict(Meter)

    def add(step: int, loss: Any, output: Any) -> None:
        meters["loss"].total += loss

    (leak,) = leaks_of(add)
    assert leak.name == 'meters["loss"].total'


def test_the_storing_line_is_reported_not_the_shared_initialization() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.seen, self.losses = [], []  # type: ignore[var-annotated]

    trainer = Trainer()

    def keep(step: int, loss: Any, output: Any) -> None:
        trainer.losses.append(loss)

    (leak,) = leaks_of(keep)
    assert (leak.name, leak.function) == ("trainer.losses", "keep")


def test_a_sample_of_a_buffer_is_not_reported() -> None:
    buffer: list[Any] = []
    found = []
    detector = LeakDetector(found.append, fraction=1.0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    detector.attach()
    try:
        for step in range(14):
            output = model(torch.randn(4, 3))
            buffer.append(output)
            sample = random.sample(buffer, min(6, step + 1))
            loss = torch.stack([each.detach() for each in sample]).mean() + output.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        detector.detach()
    assert {leak.name for leak in found} == {"buffer"}
