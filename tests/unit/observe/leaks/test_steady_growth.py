"""Leaks that are certain only at the end of the run, and growth that stops."""

import collections
import dataclasses
import gc
import itertools
import linecache
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks import detector
from legroom.observe.leaks.detector import LeakDetector


class _Buffer:
    """A buffer that is emptied only when the run fails."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def emit(self, record: Any, *, failed: bool) -> None:
        self.records.append(record)
        if failed:
            self.records.clear()


def test_code_that_would_empty_the_container_but_never_runs_does_not_hide_the_leak() -> None:
    buffer = _Buffer()
    (leak,) = leaks_of(
        lambda step, loss, output: buffer.emit(output.detach().clone(), failed=False), iterations=44
    )
    assert leak.name == "buffer.records"


def test_a_queue_with_a_limit_that_is_full_only_at_the_end_is_not_a_leak() -> None:
    replay: Any = collections.deque(maxlen=40)
    leaks = leaks_of(lambda step, loss, output: replay.append((step, output.detach().clone())), iterations=44)
    assert leaks == []


@pytest.mark.parametrize(("length", "is_leak"), [(50, False), (5000, True)])
def test_steady_growth_of_a_few_bytes_on_the_host_is_not_a_leak_if_there_is_a_device(
    length: int, is_leak: bool
) -> None:
    buffer = _Buffer()
    leaks = leaks_of(
        lambda step, loss, output: buffer.emit(torch.ones(length), failed=False),
        iterations=44,
        on_device=lambda tensor: isinstance(tensor, nn.Parameter),
    )
    assert [(each.name, each.on_host) for each in leaks] == [("buffer.records", True)] * is_leak


def test_a_search_of_any_duration_does_not_hide_steady_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "MAX_STEADY_SECONDS", 0.0)
    monkeypatch.setattr(detector, "MAX_SCAN_FRACTION", 0.0)
    test_code_that_would_empty_the_container_but_never_runs_does_not_hide_the_leak()


@dataclasses.dataclass(frozen=True)
class _State:
    output: Any
    previous: Any


def test_states_linked_to_their_predecessors_are_reported_at_the_line_that_links_them() -> None:
    state = None

    def link(step: int, loss: Any, output: Any) -> None:
        nonlocal state
        state = _State(output.detach().clone(), previous=state)

    (leak,) = leaks_of(link, iterations=44)
    assert leak.name in ("state", "_State.previous")
    assert "previous=state" in linecache.getline(__file__, leak.line or 0)


def test_an_unread_branch_of_tee_is_reported_at_the_line_that_calls_tee() -> None:
    def stream() -> Iterator[Any]:
        while True:
            yield torch.randn(4)

    used, unread = itertools.tee(stream())
    (leak,) = _train_on(used)
    assert "itertools.tee" in linecache.getline(__file__, leak.line or 0)
    assert next(unread) is not None


def _train_on(batches: Iterator[Any]) -> list[DetectedLeak]:
    return leaks_of(lambda step, loss, output: _read(batches), iterations=44)


def _read(values: Iterator[Any]) -> None:
    next(values)


def test_growth_that_stops_early_is_marked_as_ended() -> None:
    kept: dict[int, Any] = {}
    found = _watched(lambda step, value: kept.setdefault(step % 24, value) is None, kept, iterations=120)
    assert [leak for leak in found if not leak.ended] == []


def test_a_list_that_the_loop_recreates_is_marked_as_ended() -> None:
    session: list[Any] = []

    def keep(step: int, value: Any) -> None:
        if step % 20 == 19:
            session.clear()
        _add(session, value)

    assert [leak for leak in _watched(keep, session, iterations=70) if not leak.ended] == []


@pytest.mark.parametrize(
    ("bytes_per_step", "growth", "ended"),
    [
        (100_000, 0, True),  # the mean of a `deque(maxlen=8)`, which is full
        (100_000, 100_000, False),
        (800, 0, False),  # only nodes
    ],
)
def test_a_graph_ends_only_if_its_device_memory_stopped_growing(
    bytes_per_step: int, growth: int, ended: bool
) -> None:
    found: list[DetectedLeak] = []
    watched = LeakDetector(found.append)
    for iteration in range(64):
        watched._trends[True].add(iteration, 1_000_000 + growth * iteration)
    leak = DetectedLeak(
        kind="graph", how="variable", name="mean", described="tensor", file=__file__, line=1, function="smooth",
        bytes_per_step=bytes_per_step, nodes_per_step=12, storages_per_step=3, step=8, steps=4,
    )  # fmt: skip
    watched._report(leak)
    watched.finish()
    assert found[-1].ended is ended


def _add(session: list[Any], value: Any) -> None:
    session.append(value)


def _watched(body: Any, kept: Any, *, iterations: int) -> list[DetectedLeak]:
    """Return the latest report of each leak of a loop. The device memory of the loop is proportional to the length of
    `kept`."""
    found: dict[tuple[object, ...], DetectedLeak] = {}
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def report(leak: DetectedLeak) -> None:
        found[leak.identity] = leak

    detector = LeakDetector(report, allocated=lambda: 1000 + 400 * len(kept), fraction=1e6)
    gc.collect()
    detector.attach()
    try:
        for step in range(iterations):
            loss = model(torch.randn(5, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            body(step, torch.randn(100))
    finally:
        detector.detach()
    assert detector.error == ""
    return list(found.values())


def test_a_sliding_window_of_tensors_is_not_a_leak() -> None:
    recent: list[Any] = []

    def keep(step: int, loss: Any, output: Any) -> None:
        recent.append(output.detach().clone())
        while len(recent) > 24:
            recent.pop(0)

    assert leaks_of(keep, iterations=80) == []
