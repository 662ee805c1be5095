"""Several leaks in one loop are all named, each with its own figures."""

from typing import Any

import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.annotations import DetectedLeak
from legroom.observe.leaks.watcher import Watcher


def test_a_graph_carried_on_is_named_beside_a_list() -> None:
    class Total:
        value: Any = 0.0

    total, outputs = Total(), []

    def keep(step: int, loss: Any, output: Any) -> None:
        total.value += loss
        outputs.append(output)

    assert {leak.name for leak in leaks_of(keep)} == {"total.value", "outputs"}


def test_plain_tensors_are_named_beside_a_graph_that_is_seen_sooner() -> None:
    losses, features = [], []

    def keep(step: int, loss: Any, output: Any) -> None:
        losses.append(loss)
        features.append(output.detach().clone())

    found = {leak.name: leak for leak in leaks_of(keep)}
    assert set(found) == {"losses", "features"}
    assert (found["losses"].kind, found["features"].kind) == ("graph", "tensor")
    assert found["features"].bytes_per_step == 5 * 2 * 4
    assert found["features"].nodes_per_step == 0


def test_labels_gathered_on_the_host_beside_a_leak_of_an_evaluation_are_no_leak() -> None:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    # the host's tensors are those of whole numbers, for this test
    watcher = Watcher(lambda kept: found.setdefault(kept.identity, kept) and None,
                      on_device=lambda tensor: tensor.is_floating_point(), share=1.0)  # fmt: skip
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    outputs, labels = [], []
    watcher.attach()
    try:
        for _ in range(16):
            watcher.ticks.batch()
            outputs.append(model(torch.randn(5, 6)))
            labels.append(torch.zeros(5, dtype=torch.int64))
    finally:
        watcher.detach()
    (leak,) = found.values()
    assert (leak.name, leak.bytes_per_step > 5 * 2 * 4) == ("outputs", True)
