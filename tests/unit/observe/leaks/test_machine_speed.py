"""The result does not depend on the speed of the machine: the same loop with slower and faster iterations."""

import gc
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks import detector as detector_module
from legroom.observe.leaks import sampling_budget
from legroom.observe.leaks.detector import LeakDetector

SPEEDS = (100.0, 0.0001)
"""The seconds per iteration on a slow and on a fast machine."""
SECONDS_PER_MEASUREMENT = 0.5
"""The CPU time of each sample and each scan, as measured by the simulated clock."""
ITERATIONS = 340
"""The number of iterations. Only the first `FREE_ITERATIONS` are always sampled."""


class _Loop:
    """Has one method for each loop body. Each body stores tensors in its own list."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.some: list[Any] = []
        self.losses: list[Any] = []
        self.records: list[Any] = []
        self.flushed: list[Any] = []
        self.recent: list[Any] = []

    @property
    def length(self) -> int:
        return sum(map(len, vars(self).values()))

    def every_iteration(self, step: int, loss: Any, output: Any) -> None:
        self.outputs.append(output.detach())

    def every_seventh_iteration(self, step: int, loss: Any, output: Any) -> None:
        if step % 7 == 3:
            self.some.append(output.detach())

    def graphs_after_the_first_iterations(self, step: int, loss: Any, output: Any) -> None:
        if step > 270:
            self.losses.append(loss)

    def emptied_only_on_failure(self, step: int, loss: Any, output: Any) -> None:
        self.emit(output.detach(), failed=False)

    def emit(self, record: Any, *, failed: bool) -> None:
        self.records.append(record)
        if failed:
            self.records.clear()

    def emptied_regularly(self, step: int, loss: Any, output: Any) -> None:
        self.flushed.append(output.detach())
        if step % 40 == 39:
            self.flushed.clear()

    def full_after_a_third_of_the_run(self, step: int, loss: Any, output: Any) -> None:
        self.recent.append(output.detach())
        if len(self.recent) > ITERATIONS // 3:
            self.recent.pop(0)


LEAKING = {
    "every_iteration": "outputs",
    "every_seventh_iteration": "some",
    "graphs_after_the_first_iterations": "losses",
    "emptied_only_on_failure": "records",
}
HEALTHY = ["emptied_regularly", "full_after_a_third_of_the_run"]


@pytest.mark.parametrize("seconds", SPEEDS)
@pytest.mark.parametrize("body", LEAKING)
def test_a_leak_is_found_at_any_speed(body: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    (leak,) = _leaks_of(body, seconds, monkeypatch)
    assert leak.name == f"loop.{LEAKING[body]}"


@pytest.mark.parametrize("seconds", SPEEDS)
@pytest.mark.parametrize("body", HEALTHY)
def test_a_healthy_loop_has_no_leak_at_any_speed(
    body: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _leaks_of(body, seconds, monkeypatch) == []


def _leaks_of(body: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[DetectedLeak]:
    """Return the leaks of a loop whose iterations take `seconds` each."""
    now, used = [0.0], (tick * SECONDS_PER_MEASUREMENT for tick in count())
    clock = SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: next(used))
    for module in (detector_module, sampling_budget):
        monkeypatch.setattr(module, "time", clock)
    found: dict[tuple[object, ...], DetectedLeak] = {}

    def report(leak: DetectedLeak) -> None:
        found[leak.identity] = leak

    loop = _Loop()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    detector = LeakDetector(report, allocated=lambda: 1000 + 40 * loop.length)
    gc.collect()
    detector.attach()
    try:
        for step in range(ITERATIONS):
            now[0] += seconds
            output = model(torch.ones(5, 6))
            loss = output.square().mean()
            loss.backward()
            optimizer.step()
            getattr(loop, body)(step, loss, output)
    finally:
        detector.detach()
    assert detector.error == ""
    return [leak for leak in found.values() if not leak.ended]
