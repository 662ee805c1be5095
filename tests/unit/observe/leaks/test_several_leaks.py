"""All leaks of a loop are reported, each with its own sizes."""

from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.holders import autograd_graph
from legroom.observe.leaks.detector import LeakDetector

pytestmark = pytest.mark.slow


def test_a_running_total_and_a_list_are_both_reported() -> None:
    class Total:
        value: Any = 0.0

    total, outputs = Total(), []

    def keep(step: int, loss: Any, output: Any) -> None:
        total.value += loss
        outputs.append(output)

    assert {leak.name for leak in leaks_of(keep)} == {"total.value", "outputs"}


def test_two_running_totals_with_different_graphs_are_both_reported_with_their_own_size() -> None:
    class Totals:
        loss: Any = 0.0
        valid_loss: Any = 0.0

    totals, model = Totals(), nn.Sequential(nn.Linear(6, 1000), nn.ReLU(), nn.Linear(1000, 2))

    def keep(step: int, loss: Any, output: Any) -> None:
        totals.loss += loss
        totals.valid_loss += model(torch.randn(5, 6)).mean()  # no backward pass frees the activations

    found = {leak.name: leak for leak in leaks_of(keep)}
    assert set(found) == {"totals.loss", "totals.valid_loss"}
    assert found["totals.valid_loss"].bytes_per_step >= 5 * 1000 * 4 > found["totals.loss"].bytes_per_step


def test_the_size_of_a_graph_leak_includes_the_tensors_in_the_container() -> None:
    sums = []

    def keep(step: int, loss: Any, output: Any) -> None:
        sums.append(output + output)  # saves nothing, but the result itself has 5 × 2 floats
        if step == 0:
            sums.extend(output + output for _ in range(5))

    (leak,) = leaks_of(keep, on_device=lambda tensor: True)
    assert (leak.name, leak.kind, leak.bytes_per_step) == ("sums", "graph", 5 * 2 * 4)


def test_detached_tensors_are_reported_in_addition_to_a_graph() -> None:
    losses, features = [], []

    def keep(step: int, loss: Any, output: Any) -> None:
        losses.append(loss)
        features.append(output.detach().clone())

    found = {leak.name: leak for leak in leaks_of(keep)}
    assert set(found) == {"losses", "features"}
    assert (found["losses"].kind, found["features"].kind) == ("graph", "tensor")
    assert found["features"].bytes_per_step == 5 * 2 * 4
    assert found["features"].nodes_per_step == 0


def test_labels_collected_on_the_host_in_an_evaluation_are_not_a_leak() -> None:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    # In this test, integer tensors are on the host.
    detector = LeakDetector(lambda leak: found.setdefault(leak.identity, leak) and None,
                      on_device=lambda tensor: tensor.is_floating_point(), fraction=1.0)  # fmt: skip
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    outputs, labels = [], []
    detector.attach()
    try:
        with autograd_graph.unpack_until_packed():
            for _ in range(16):
                detector.iterations.next_batch()
                outputs.append(model(torch.randn(5, 6)))
                labels.append(torch.zeros(5, dtype=torch.int64))
    finally:
        detector.detach()
    (leak,) = found.values()
    assert (leak.name, leak.bytes_per_step > 5 * 2 * 4) == ("outputs", True)
