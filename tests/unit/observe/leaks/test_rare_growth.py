"""What a loop keeps only now and then is found as well; what it keeps on purpose, or for a while, is not."""

import copy
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.annotations import DetectedLeak
from legroom.observe.leaks import counters
from legroom.observe.leaks.watcher import Watcher


@pytest.mark.parametrize("every", [2, 5])
def test_a_tensor_every_so_many_turns(every: int) -> None:
    kept = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % every == 1:
            kept.append(output.detach().clone())

    (leak,) = leaks_of(keep, turns=8 * every + 8)
    assert (leak.kind, leak.name) == ("tensor", "kept")


def test_a_graph_every_so_many_turns() -> None:
    logged = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % 6 == 1:
            logged.append(loss)

    (leak,) = leaks_of(keep, turns=42)
    assert (leak.kind, leak.name) == ("graph", "logged")


def test_a_verdict_on_what_is_added_seldom_comes_with_the_fifth_addition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The heap of a process in which other tests' threads are at work rises by itself.
    monkeypatch.setattr(counters, "_heap_in_use", lambda: None)
    kept: list[torch.Tensor] = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step >= 20 and step % 5 == 0:
            kept.append(output.detach().clone())

    (leak,) = leaks_of(keep, turns=70, allocated=lambda: sum(each.nbytes for each in kept))
    assert 30 <= leak.step <= 20 + 5 * 5 + 1


def test_snapshots_of_every_epoch_are_told() -> None:
    model = nn.Linear(6, 4)
    snapshots = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % 4 == 3:
            snapshots.append(copy.deepcopy(model.state_dict()))

    (leak,) = leaks_of(keep, turns=50)
    assert leak.name == "snapshots"


def test_a_tensor_joined_once_in_an_epoch_is_told() -> None:
    class Rows:
        joined: Any = None

    rows = Rows()

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % 3 == 2:
            rows.joined = (
                output.detach() if rows.joined is None else torch.cat([rows.joined, output.detach()])
            )

    (leak,) = leaks_of(keep, turns=40)
    assert (leak.kind, leak.name) == ("larger", "rows.joined")


def test_models_that_were_trained_may_gather() -> None:
    told: list[DetectedLeak] = []
    watcher, members = Watcher(told.append), []
    watcher.attach()
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
        watcher.detach()
    assert told == []


def test_the_last_few_of_many_epochs_are_no_leak() -> None:
    snapshots = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step % 4 == 3:
            snapshots.append(output.detach().clone())
            if len(snapshots) > 8:
                snapshots.pop(0)

    assert leaks_of(keep, turns=60) == []
