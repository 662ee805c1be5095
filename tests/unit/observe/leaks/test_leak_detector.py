"""Leaks of a training loop are found within a few iterations; loops without a leak are not reported."""

import gc
import weakref
from collections import deque
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.observe.leaks import window
from legroom.observe.leaks.detector import LeakDetector

pytestmark = pytest.mark.slow


def test_a_list_of_losses_is_reported_with_variable_and_line() -> None:
    losses = []

    def keep(step: int, loss: Any, output: Any) -> None:
        losses.append(loss)  # the line

    (leak,) = leaks_of(keep)
    assert (leak.kind, leak.name, leak.nodes_per_step > 0) == ("graph", "losses", True)
    assert leak.file == __file__
    assert leak.line is not None
    assert "# the line" in open(__file__).read().splitlines()[leak.line - 1]  # noqa: SIM115


def test_a_leak_is_reported_within_five_iterations() -> None:
    losses = []
    (leak,) = leaks_of(lambda step, loss, output: losses.append(loss))
    assert leak.step <= 5


def test_fake_tensors_of_torch_compile_are_not_holders() -> None:
    compiled = torch.compile(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), backend="aot_eager")
    compiled(torch.randn(3, 6)).sum().backward()
    losses = []
    (leak,) = leaks_of(lambda step, loss, output: losses.append(loss))
    assert leak.name == "losses"


def test_growth_that_starts_late_is_found_within_six_iterations() -> None:
    kept = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step >= 30:
            kept.append(output.detach().clone())

    (leak,) = leaks_of(keep, iterations=60)
    assert leak.kind == "tensor"
    assert 30 <= leak.step <= 36


def test_a_list_of_floats_does_not_hide_a_graph_that_starts_late() -> None:
    floats, losses = [], []

    def keep(step: int, loss: Any, output: Any) -> None:
        floats.extend([loss.item() + n for n in range(50)])
        if step >= 40:
            losses.append(loss)

    (leak,) = leaks_of(keep, iterations=60)
    assert (leak.name, leak.step <= 46) == ("losses", True)


def test_a_leak_of_one_graph_node_per_step_is_reported() -> None:
    class Total:
        value: Any = 0.0

    total = Total()

    def add(step: int, loss: Any, output: Any) -> None:
        total.value = total.value + loss

    (leak,) = leaks_of(add)
    assert (leak.kind, leak.name) == ("graph", "total.value")


def test_a_single_growing_tensor_is_reported() -> None:
    class Store:
        history = torch.zeros(0, 2)

    store = Store()

    def concatenate(step: int, loss: Any, output: Any) -> None:
        store.history = torch.cat([store.history, output.detach()])

    (leak,) = leaks_of(concatenate)
    assert (leak.kind, leak.name, leak.bytes_per_step) == ("larger", "store.history", 40)


def test_a_list_that_is_cleared_is_not_a_leak() -> None:
    outputs = []

    def keep(step: int, loss: Any, output: Any) -> None:
        outputs.append(output)
        if step % 3 == 2:
            outputs.clear()

    assert leaks_of(keep) == []


def test_a_bounded_queue_is_not_a_leak_while_it_fills() -> None:
    recent: Any = deque(maxlen=100)
    assert leaks_of(lambda step, loss, output: recent.append(output.detach().clone())) == []


def test_a_list_of_floats_is_not_a_leak() -> None:
    losses = []
    assert leaks_of(lambda step, loss, output: losses.append(loss.item()), iterations=40) == []


def test_filling_preallocated_slots_is_not_a_leak() -> None:
    slots: list[Any] = [None] * 30

    def keep(step: int, loss: Any, output: Any) -> None:
        free = slots.index(None)
        slots[free] = output.detach().clone()

    assert leaks_of(keep) == []


def test_the_detector_never_runs_the_garbage_collector() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    gc.collect()
    gc.disable()
    try:
        cycle = Cycle()
        alive = weakref.ref(cycle)
        del cycle
        losses = []
        leaks_of(lambda step, loss, output: losses.append(loss))
        # `leaks_of` collects once before its loop, so the cycles are created afterwards.
        cycles = [weakref.ref(Cycle()) for _ in range(3)]
        detector = LeakDetector(lambda leak: None)
        for _ in range(12):
            detector._iteration_ended()
        assert all(each() is not None for each in cycles)
        del alive
    finally:
        gc.enable()
        gc.collect()


def test_scans_keep_no_tensor_alive() -> None:
    losses = []
    gc.disable()
    try:
        leaks_of(lambda step, loss, output: losses.append(loss))
        references = [weakref.ref(loss) for loss in losses]
        losses.clear()
        assert (
            sum(reference() is not None for reference in references) <= 1
        )  # the last one is still a variable of the loop
    finally:
        gc.enable()


def test_an_error_in_a_scan_does_not_reach_the_loop(monkeypatch: Any) -> None:
    def fails(self: Any, iteration: int) -> Any:
        raise RuntimeError("scan failed")

    monkeypatch.setattr(window.ScanWindow, "scan", fails)
    detector = LeakDetector(lambda leak: None)
    detector.attach()
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(5):
        parameter.grad = torch.ones(2)
        optimizer.step()
    assert detector.error == "RuntimeError: scan failed"


def test_without_a_window_an_iteration_only_reads_counters() -> None:
    detector = LeakDetector(lambda leak: None)
    detector._next_scheduled = 10**9
    detector._not_before = dict.fromkeys(detector._not_before, 10**9)
    for _ in range(50):
        detector._iteration_ended()
    assert detector.scan_seconds == 0.0


def test_an_attribute_is_found_from_a_comprehension_in_a_method() -> None:
    """In the comprehension, `self` is a closure variable, but the variable does not belong to a call that ends."""

    class Server:
        def __init__(self) -> None:
            self.archive: dict[int, Any] = {}
            self.weights = {"weight": torch.zeros(4)}

        def train(self) -> dict[str, torch.Tensor]:
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(2, 4) + self.weights["weight"]).sum().backward()
            optimizer.step()
            return model.state_dict()

        def run_round(self, number: int) -> None:
            updates = {client: self.train() for client in range(3)}
            self.archive[number] = updates

    leaks: list[Any] = []
    detector = LeakDetector(leaks.append, fraction=1e6)
    detector.attach()
    try:
        server = Server()
        for number in range(14):
            server.run_round(number)
    finally:
        detector.detach()
    assert {leak.name.rpartition(".")[2] for leak in leaks} == {"archive"}


def _leaks_of_search(trials: int) -> set[str]:
    """Return the variables reported for a search that keeps the model of every trial."""
    leaks: list[Any] = []
    detector = LeakDetector(leaks.append, fraction=1e6)
    detector.attach()
    try:
        results = []
        for _ in range(trials):
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            results.append({"model": model})
    finally:
        detector.detach()
    return {leak.name for leak in leaks}


def test_a_few_trained_models_are_not_a_leak_but_many_are() -> None:
    assert _leaks_of_search(6) == set()
    assert _leaks_of_search(24) == {"results"}
