"""The ring buffer: when it is read, and the information that remains about overwritten entries."""

import os

import pytest
import torch
from simulated_cuda import SimulatedCuda, Simulation
from torch import nn

from legroom.memory.event_base import Annotation, Category
from legroom.memory.events import Alloc, Event, Step
from legroom.memory.ledger import Ledger
from legroom.observe.cuda.history import CudaHistory
from legroom.observe.cuda.step_peaks import StepPeaks


def train(simulation: Simulation, rows: list[int]) -> None:
    """Run one step for each batch size."""
    with simulation:
        loop(rows)


def loop(rows: list[int]) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in rows:
        model(torch.randn(number, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def entries_of_a_step(monkeypatch: pytest.MonkeyPatch) -> int:
    simulation = Simulation(monkeypatch)
    train(simulation, [8, 8, 8])
    return sum(isinstance(event, Alloc) and event.step == 1 for event in simulation.events) * 2


def notes(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events if isinstance(event, Annotation)]


def test_a_short_run_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    train(simulation, [8] * 5)
    assert simulation.cuda.snapshots == 1
    assert notes(simulation.events) == []


def test_the_peak_is_read_before_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    length = entries_of_a_step(monkeypatch)
    simulation = Simulation(monkeypatch, entries=length * 8)
    train(simulation, [8, 8, 500, *[8] * 60])
    ledger = Ledger(simulation.events)
    assert ledger.peak().step == 2
    assert ledger.peak().bytes == max(step.peak_allocated for step in ledger.steps(0))
    assert ledger.at(ledger.peak().index).by_category()[Category.PARAMETER] > 0
    assert simulation.cuda.snapshots == 2


def test_overwritten_steps_keep_their_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    length = entries_of_a_step(monkeypatch)
    simulation = Simulation(monkeypatch, entries=length * 8)
    train(simulation, [8, 8, 500, *[8] * 60])
    assert [event.step for event in simulation.events if isinstance(event, Step)] == list(range(63))
    gaps = notes(simulation.events)
    assert gaps == ["GapStarted", "GapEnded"] * (len(gaps) // 2)
    assert gaps


def test_events_agree_with_the_statistics_after_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    length = entries_of_a_step(monkeypatch)
    simulation = Simulation(monkeypatch, entries=length * 8)
    kept = []
    with simulation:
        loop([8, 500])
        kept.append(torch.zeros(5000))
        loop([8] * 50)
        kept.append(torch.zeros(6000))
        loop([8] * 20)
    ledger = Ledger(simulation.events)
    last = ledger.steps(0)[-1]
    assert ledger.at_step(last.step).allocated == last.allocated
    assert {20_000, 24_000} <= {alloc.bytes for alloc in ledger.now().live}


def test_overwritten_steps_are_sent_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """This way, the capture contains them even if the run is killed."""
    length = entries_of_a_step(monkeypatch)
    simulation = Simulation(monkeypatch, entries=length * 8)
    with simulation:
        loop([500, *[8] * 60])
        steps = [event.step for event in simulation.events if isinstance(event, Step)]
        assert steps == list(range(len(steps)))
        assert len(steps) > 45


def test_if_every_step_is_the_highest_the_ring_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    length = entries_of_a_step(monkeypatch)
    simulation = Simulation(monkeypatch, entries=length * 8)
    train(simulation, [8 + 8 * number for number in range(40)])
    assert simulation.cuda.snapshots == 1
    ledger = Ledger(simulation.events)
    assert ledger.peak().bytes == max(step.peak_allocated for step in ledger.steps(0))


def test_the_ring_grows_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring has room for five steps at first, and later for at least eight."""
    length = entries_of_a_step(monkeypatch)
    simulation = Simulation(monkeypatch, entries=length * 5)
    monkeypatch.setattr("legroom.observe.cuda.history.MAX_ENTRIES", length * 100)
    train(simulation, [8] * 30)
    read = {event.step for event in simulation.events if isinstance(event, Alloc)}
    assert set(range(23, 30)) <= read
    assert simulation.cuda.snapshots == 2


def test_the_peak_of_inference_without_steps_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, entries=80)
    monkeypatch.setattr("legroom.observe.cuda.history.CHECK_SECONDS", -1)
    with simulation, torch.no_grad():
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
        for rows in (8, 5000, *[8] * 200):
            model(torch.randn(rows, 32))
    ledger = Ledger(simulation.events)
    assert ledger.peak().bytes > 5000 * 64 * 4


def test_progress_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    with simulation:
        loop([8, 8, 8])
        steps, seconds = simulation.history.progress
        assert steps == 3
        assert seconds > 0
        allocated, reserved, peak_allocated, peak_reserved = simulation.history.memory_stats(0)
        assert 0 <= allocated <= peak_allocated <= peak_reserved
        assert reserved == peak_reserved


def test_finishing_twice_sends_events_once(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    with simulation:
        loop([8])
        simulation.history.finish()
        count = len(simulation.events)
        simulation.history.finish()
    assert len(simulation.events) == count


def test_cuda_is_not_used_before_it_is_initialized() -> None:
    class Untouched(SimulatedCuda):
        def when_ready(self, callback: object) -> None:
            """The script never uses CUDA."""

        def snapshot(self, entries: int = 0) -> dict[str, object]:
            raise AssertionError("CUDA was touched")

        statistics = capacity = stop = snapshot  # type: ignore[assignment]

    events: list[Event] = []
    cuda = Untouched()
    with CudaHistory(events.append, cuda, StepPeaks(cuda)) as history:
        loop([8, 8])
        assert history.memory_stats(0) == (0, 0, 0, 0)
    assert [event.step for event in events if isinstance(event, Step)] == [0, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_sends_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    with simulation:
        loop([8])
        child = os.fork()
        if child == 0:
            loop([8, 8])
            simulation.history.finish()
            os._exit(len(simulation.events))
        _, status = os.waitpid(child, 0)
        loop([8])
    assert os.waitstatus_to_exitcode(status) == 0
    assert [event.step for event in simulation.events if isinstance(event, Step)] == [0, 1]
