"""A recording inside a run that already records the history of the CUDA allocator."""

import pytest
import torch
from simulated_cuda import SimulatedCuda, Simulation
from torch import nn

from legroom.memory.event_base import BEFORE_RECORDING, Category
from legroom.memory.events import Alloc, Event
from legroom.memory.ledger import Ledger
from legroom.observe.cuda import torch_api
from legroom.observe.cuda.history import CudaHistory, active_history
from legroom.observe.cuda.step_peaks import StepPeaks
from legroom.observe.following import FollowedHistory


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    for _ in range(number):
        model(torch.randn(64, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_inner_recording_has_the_memory_at_its_start_and_its_own_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner: list[Event] = []
    simulation = Simulation(monkeypatch)
    with simulation:
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        steps(model, optimizer, 4)
        assert active_history() is simulation.history
        followed = FollowedHistory(simulation.history, inner.append)
        with followed:
            before = simulation.cuda.statistics_now["allocated_bytes"].current
            steps(model, optimizer, 3)
            assert followed.progress[0] == 3
        steps(model, optimizer, 2)
    assert active_history() is None
    ledger = Ledger(inner)
    assert [step.step for step in ledger.steps()] == [0, 1, 2]
    assert ledger.peak().bytes == max(step.peak_allocated for step in ledger.steps())
    assert ledger.now().allocated == before
    assert ledger.at_step(2).by_category()[Category.PARAMETER] > 0
    outer = Ledger(simulation.events)
    assert [step.step for step in outer.steps()] == list(range(9))
    assert outer.peak().bytes == ledger.peak().bytes


def test_blocks_that_existed_before_the_history_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    existing = torch.empty(1000)
    simulation.cuda.live[existing.data_ptr()] = existing.nbytes, []
    with simulation:
        torch.empty(500)
    frames = {event.bytes: event.frame for event in simulation.events if isinstance(event, Alloc)}
    assert frames[existing.nbytes] == BEFORE_RECORDING
    assert frames[2000] is not None
    assert frames[2000].file == __file__


def test_observers_of_failed_allocations_are_attached_once_and_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached: list[object] = []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attached.append, raising=False)
    monkeypatch.setattr(torch_api, "_is_attached", False)
    calls: list[str] = []
    api = torch_api.CudaApi()
    removals = [
        api.on_failed_allocation(lambda *_, name=name: calls.append(name)) for name in ("first", "second")
    ]
    assert attached == [torch_api._call_observers]
    torch_api._call_observers(0, 1, 2, 3)
    removals[0]()
    removals[0]()
    torch_api._call_observers(0, 1, 2, 3)
    removals[1]()
    assert calls == ["first", "second", "second"]


def test_many_histories_leave_nothing_behind() -> None:
    cuda = SimulatedCuda()
    for _ in range(3):
        with CudaHistory([].append, cuda, StepPeaks(cuda)):
            pass
    assert active_history() is None
