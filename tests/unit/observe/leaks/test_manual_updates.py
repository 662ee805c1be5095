"""Programs that step by hand, and holders that only look like one: what is watched, named, and left alone."""

import queue
import random
from collections import defaultdict
from typing import Any

import pytest
import torch
from loops import leaks_of

from legroom.memory.annotations import DetectedLeak
from legroom.observe.leaks.watcher import Watcher


def _watched_by_hand(*, grad: bool, turns: int = 16) -> list[DetectedLeak]:
    """A loop without optimizer and loader that keeps its losses."""
    found: dict[tuple[object, ...], DetectedLeak] = {}
    watcher = Watcher(lambda kept: found.setdefault(kept.identity, kept) and None, share=1.0)
    weight, losses = torch.randn(4, 2, requires_grad=True), []
    watcher.attach()
    try:
        for _ in range(turns):
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
        watcher.detach()
    assert watcher.trouble == ""
    return list(found.values())


@pytest.mark.usefixtures("no_earlier_optimizers")
def test_backward_passes_are_turns_at_once_where_no_optimizer_exists() -> None:
    (leak,) = _watched_by_hand(grad=False)
    assert (leak.name, leak.kind) == ("losses", "graph")
    assert leak.step <= 8


@pytest.mark.usefixtures("no_earlier_optimizers")
def test_so_are_calls_of_autograd_grad() -> None:
    (leak,) = _watched_by_hand(grad=True)
    assert (leak.name, leak.kind) == ("losses", "graph")


def test_grad_and_backward_are_put_back() -> None:
    before = torch.autograd.backward, torch.autograd.grad
    watcher = Watcher(lambda kept: None)
    watcher.attach()
    watcher.detach()
    assert (torch.autograd.backward, torch.autograd.grad) == before


def test_a_queue_is_named_by_the_user_s_name_and_line() -> None:
    pending: queue.Queue[Any] = queue.Queue()

    def put(step: int, loss: Any, output: Any) -> None:
        pending.put((step, loss))

    (leak,) = leaks_of(put)
    assert (leak.name, leak.function) == ("pending", "put")


def test_a_total_inside_a_small_dict_is_named_rather_than_the_dict() -> None:
    class Meter:
        total: Any = 0.0

    meters: dict[str, Meter] = defaultdict(Meter)

    def add(step: int, loss: Any, output: Any) -> None:
        meters["loss"].total += loss

    (leak,) = leaks_of(add)
    assert leak.name == 'meters["loss"].total'


def test_containers_made_together_are_named_where_things_are_put_into_them() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.seen, self.losses = [], []  # type: ignore[var-annotated]

    trainer = Trainer()

    def keep(step: int, loss: Any, output: Any) -> None:
        trainer.losses.append(loss)

    (leak,) = leaks_of(keep)
    assert (leak.name, leak.function) == ("trainer.losses", "keep")


def test_a_sample_of_a_buffer_is_not_named_beside_the_buffer() -> None:
    buffer: list[Any] = []
    found = []
    watcher = Watcher(found.append, share=1.0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher.attach()
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
        watcher.detach()
    assert {leak.name for leak in found} == {"buffer"}
