"""Leaks that grow rarely are found; models kept on purpose and bounded containers are not reported."""

import copy
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks import counters
from legroom.observe.leaks.detector import LeakDetector

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("every", [2, 5])
def test_a_tensor_every_few_iterations_is_reported(every: int) -> None:
    kept = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % every == 1:
            kept.append(output.detach().clone())

    (leak,) = leaks_of(keep, iterations=8 * every + 8)
    assert (leak.kind, leak.name) == ("tensor", "kept")


def test_a_graph_every_few_iterations_is_reported() -> None:
    logged = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % 6 == 1:
            logged.append(loss)

    (leak,) = leaks_of(keep, iterations=42)
    assert (leak.kind, leak.name) == ("graph", "logged")


def test_rare_growth_is_reported_after_the_fifth_addition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Threads of other tests may grow the heap of this process.
    monkeypatch.setattr(counters, "_heap_counter", lambda: None)
    kept: list[torch.Tensor] = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step >= 20 and step % 5 == 0:
            kept.append(output.detach().clone())

    (leak,) = leaks_of(keep, iterations=70, allocated=lambda: sum(each.nbytes for each in kept))
    assert 30 <= leak.step <= 20 + 5 * 5 + 1
    assert leak.bytes_per_step <= kept[0].nbytes / 4  # one tensor in five iterations


def test_snapshots_of_every_epoch_are_reported() -> None:
    model = nn.Linear(6, 4)
    snapshots = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % 4 == 3:
            snapshots.append(copy.deepcopy(model.state_dict()))

    (leak,) = leaks_of(keep, iterations=50)
    assert leak.name == "snapshots"


def test_a_tensor_concatenated_once_per_epoch_is_reported() -> None:
    class Store:
        outputs: Any = None

    store = Store()

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % 3 == 2:
            store.outputs = (
                output.detach() if store.outputs is None else torch.cat([store.outputs, output.detach()])
            )

    (leak,) = leaks_of(keep, iterations=40)
    assert (leak.kind, leak.name) == ("larger", "store.outputs")


def test_trained_models_are_not_a_leak() -> None:
    leaks: list[DetectedLeak] = []
    detector, members = LeakDetector(leaks.append), []
    detector.attach()
    try:
        for _ in range(9):
            member = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
            optimizer = torch.optim.SGD(member.parameters(), lr=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                member(torch.randn(4, 6)).sum().backward()
                optimizer.step()
            members.append(member)
    finally:
        detector.detach()
    assert leaks == []


def test_a_list_of_the_last_few_snapshots_is_not_a_leak() -> None:
    snapshots = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % 4 == 3:
            snapshots.append(output.detach().clone())
            if len(snapshots) > 8:
                snapshots.pop(0)

    assert leaks_of(keep, iterations=60) == []


def _items(count: int, allocated: Callable[[], int], found: list[DetectedLeak]) -> Iterator[int]:
    """Yield numbers as `legroom.watch` would. `allocated` returns the bytes that the GPU allocator reports."""
    detector = LeakDetector(found.append, allocated=allocated, on_device=lambda tensor: True, fraction=1e6)
    detector.attach()
    try:
        for item in range(count):
            detector.iterations.next_batch()
            yield item
    finally:
        detector.detach()
    assert detector.error == ""


def test_rare_growth_in_a_watched_loop_that_calls_no_model_is_reported() -> None:
    tried, found = list[torch.Tensor](), list[DetectedLeak]()
    for item in _items(60, lambda: 48 * len(tried), found):
        candidate = torch.randn(3, 4)
        if item % 4 == 0:
            tried.append(candidate)
    assert {leak.name for leak in found} == {"tried"}


def test_the_best_candidates_of_a_watched_loop_are_not_a_leak() -> None:
    best, found = list[tuple[float, int, torch.Tensor]](), list[DetectedLeak]()
    rising = count(48, 48)  # grows in every iteration, so that every iteration is a reason to scan
    for item in _items(60, lambda: next(rising), found):
        candidate = torch.randn(3, 4)
        if item % 4 == 0:
            best = sorted([*best, (float(candidate.sum()), item, candidate)])[-8:]
    assert found == []
