"""Categories and code locations of blocks, from simulated histories of real programs."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_cuda import SimulatedCuda, Simulation
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from legroom.memory.annotations import RecordingFailed
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Step
from legroom.memory.ledger import Ledger
from legroom.observe.cuda.history import CudaHistory
from legroom.observe.cuda.step_peaks import StepPeaks


class Net(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.second = nn.Linear(width, 8)
        self.register_buffer("scale", torch.ones(77))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)  # first
        hidden = torch.relu(hidden)  # relu
        return self.second(hidden)  # second


def train(simulation: Simulation, steps: int = 3) -> Net:
    with simulation:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            x = torch.randn(32, 64)  # input
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def line(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def allocs(events: list[Event], **wanted: Any) -> list[Alloc]:
    return [
        event
        for event in events
        if isinstance(event, Alloc) and all(getattr(event, name) == value for name, value in wanted.items())
    ]


def lines_of(found: list[Alloc]) -> set[int]:
    return {event.frame.line for event in found if isinstance(event.frame, Frame)}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    simulation = Simulation(monkeypatch)
    train(simulation)
    return simulation.events


def sizes_of_parameters() -> list[int]:
    return sorted(parameter.nbytes for parameter in Net().parameters())


def test_parameters_are_recognized(events: list[Event]) -> None:
    assert (
        sorted(event.bytes for event in allocs(events, category=Category.PARAMETER)) == sizes_of_parameters()
    )


def test_buffers_are_recognized(events: list[Event]) -> None:
    assert [event.bytes for event in allocs(events, category=Category.BUFFER)] == [77 * 4]


def test_gradients_of_every_step_are_recognized(events: list[Event]) -> None:
    for step in range(3):
        found = allocs(events, category=Category.GRADIENT, step=step)
        assert sorted(event.bytes for event in found) == sizes_of_parameters()


def test_optimizer_state_is_recognized(events: list[Event]) -> None:
    found = allocs(events, category=Category.OPTIMIZER_STATE)
    counters = [event for event in found if event.bytes == 4]
    assert sum(event.bytes for event in found if event not in counters) == 2 * sum(sizes_of_parameters())


def test_arguments_of_the_root_module_are_inputs(events: list[Event]) -> None:
    found = allocs(events, category=Category.INPUT)
    assert [event.bytes for event in found] == [32 * 64 * 4] * 3
    assert lines_of(found) == {line("input")}


def test_blocks_alive_until_the_backward_pass_are_activations(events: list[Event]) -> None:
    found = [
        event for event in allocs(events, category=Category.ACTIVATION, step=1) if event.bytes == 32 * 256 * 4
    ]
    assert lines_of(found) == {line("relu")}


def test_blocks_freed_in_the_forward_pass_are_temporary(events: list[Event]) -> None:
    found = [
        event for event in allocs(events, phase=Phase.FORWARD, step=1) if event.frame.line == line("first")
    ]
    assert {event.category for event in found} == {Category.TEMPORARY}


def test_phases_match_the_training_loop(events: list[Event]) -> None:
    phases = [event.phase for event in allocs(events, step=2)]
    order = [
        phase for position, phase in enumerate(phases) if position == 0 or phases[position - 1] is not phase
    ]
    assert order == [Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_a_gradient_has_the_module_and_line_of_its_parameter(events: list[Event]) -> None:
    by_module = {
        event.module: event.frame.line for event in allocs(events, category=Category.GRADIENT, step=1)
    }
    assert by_module == {"first": line("first"), "second": line("second")}


def test_gradients_of_a_plain_sequential_have_the_line_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    with simulation:
        model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            output = model(torch.randn(32, 64))  # sequential
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = allocs(simulation.events, category=Category.GRADIENT, step=1)
    assert {event.module for event in found} == {"Linear (0)", "Linear (1)"}
    assert lines_of(found) == {line("sequential")}
    assert all(event.frame is not None for event in found)


def test_backward_blocks_have_forward_lines(events: list[Event]) -> None:
    found = allocs(events, phase=Phase.BACKWARD)
    forward = {line("first"), line("relu"), line("second")}
    assert all(event.frame is not None for event in found)
    assert sum(event.bytes for event in found if event.frame.line in forward) > 0.99 * sum(
        e.bytes for e in found
    )


def test_backward_blocks_of_relu_have_its_line(events: list[Event]) -> None:
    found = [
        e
        for e in allocs(events, phase=Phase.BACKWARD, step=1, category=Category.TEMPORARY)
        if e.bytes == 32 * 256 * 4
    ]
    assert line("relu") in lines_of(found)


def test_forward_blocks_have_the_running_module(events: list[Event]) -> None:
    found = allocs(events, phase=Phase.FORWARD, step=1)
    assert {event.module for event in found if event.frame.line == line("first")} == {"first"}
    assert {event.module for event in found if event.frame.line == line("relu")} == {"Net"}


def test_events_agree_with_the_allocator_statistics(events: list[Event]) -> None:
    ledger = Ledger(events)
    steps = ledger.steps(0)
    assert [step.step for step in steps] == [0, 1, 2]
    assert ledger.peak().bytes == max(step.peak_allocated for step in steps)
    assert ledger.peak(of="reserved").bytes == max(step.peak_reserved for step in steps)
    for step in steps:
        assert ledger.at_step(step.step).allocated == step.allocated


def test_without_stamps_categories_are_found_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, can_stamp=False)
    train(simulation)
    for step in range(3):
        found = allocs(simulation.events, category=Category.GRADIENT, step=step)
        assert sorted(event.bytes for event in found) == sizes_of_parameters()
    assert lines_of(allocs(simulation.events, category=Category.INPUT)) == {line("input")}
    activations = allocs(simulation.events, category=Category.ACTIVATION, step=1)
    assert line("relu") in lines_of(activations)


def test_keyword_arguments_of_the_model_are_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, *, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    simulation = Simulation(monkeypatch)
    with simulation:
        model = Keyword()
        for _ in range(2):
            model(x=torch.randn(16, 64)).sum().backward()
    assert [event.bytes for event in allocs(simulation.events, category=Category.INPUT)] == [16 * 64 * 4] * 2


def test_a_copy_of_a_tensor_in_the_batch_is_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    data = TensorDataset(torch.randn(64, 64), torch.randn(64, 333))
    with simulation:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, other in DataLoader(data, batch_size=16):
            brought = other.clone()
            model(x.clone()).sum().backward()
            optimizer.step()
            del brought
    found = [
        event for event in allocs(simulation.events, category=Category.INPUT) if event.bytes == 16 * 333 * 4
    ]
    assert len(found) >= 4


def test_a_forward_pass_without_gradients_has_no_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    kept = []
    with simulation:
        model = Net()
        with torch.no_grad():
            for _ in range(3):
                kept.append(model(torch.randn(33, 64)))
        model(torch.randn(4, 64)).sum().backward()
    found = allocs(simulation.events, bytes=33 * 8 * 4)
    assert [event.category for event in found] == [Category.TEMPORARY] * 3


def test_a_result_retained_over_steps_is_not_an_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    history = []
    with simulation:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            out = model(torch.randn(32, 64))
            loss = out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(out)
    ledger = Ledger(simulation.events)
    growing = ledger.growth()
    assert [row.line for row in growing if row.bytes_per_step >= 1024] == [line("second")]
    kept = [
        event
        for event in allocs(simulation.events, phase=Phase.FORWARD)
        if event.frame.line == line("second")
    ]
    assert {event.category for event in kept} == {Category.TEMPORARY}


def test_recomputed_blocks_of_a_checkpoint_are_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(64, 999), nn.Tanh(), nn.Linear(999, 64)) for _ in range(2)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    simulation = Simulation(monkeypatch)
    with simulation:
        model = Checkpointed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(32, 64)).sum().backward()
            optimizer.step()
    again = allocs(simulation.events, phase=Phase.BACKWARD, bytes=32 * 999 * 4, category=Category.ACTIVATION)
    assert {event.module.rpartition(".")[0] for event in again} >= {"layers.0", "layers.1"}


def test_a_bucket_with_gradients_is_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In distributed training, gradients are views of one block."""
    simulation = Simulation(monkeypatch)
    with simulation:
        layer = nn.Linear(128, 128, bias=False)
        bucket = torch.zeros(2 * 128 * 128)
        layer.weight.grad = bucket[128 * 128 :].view(128, 128)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(torch.randn(4, 128)).sum().backward()
        optimizer.step()
    assert [event.category for event in allocs(simulation.events, bytes=bucket.nbytes)] == [Category.GRADIENT]


def test_a_deleted_model_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    with simulation:

        def short_life() -> None:
            model = Net()
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.randn(32, 64)).sum().backward()
            optimizer.step()

        short_life()
        gc.collect()
    found = allocs(simulation.events, category=Category.PARAMETER)
    assert sorted(event.bytes for event in found) == sizes_of_parameters()
    assert allocs(simulation.events, category=Category.OPTIMIZER_STATE)


def test_nothing_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    with simulation:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(32, 64)
        out = model(x)
        out.sum().backward()
        optimizer.step()
        watched = [weakref.ref(thing) for thing in (model, optimizer, x, out, model.first.weight.grad)]
        optimizer.zero_grad()
        del model, optimizer, x, out
        gc.collect()
        assert [reference() for reference in watched] == [None] * 5


def test_two_runs_in_one_process_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    train(Simulation(monkeypatch))
    second = Simulation(monkeypatch)
    train(second)
    assert len([event for event in second.events if isinstance(event, Step)]) == 3


@pytest.mark.slow
def test_a_compiled_step_has_no_graph_break() -> None:
    cuda, events = SimulatedCuda(), list[Event]()
    with CudaHistory(events.append, cuda, StepPeaks(cuda)):
        model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend="eager", fullgraph=True)
        for _ in range(3):
            F.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 8)).backward()
    assert not [event for event in events if isinstance(event, RecordingFailed)]


def test_module_calls_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = nn.Module._call_impl
    simulation = Simulation(monkeypatch)
    with simulation:
        assert nn.Module._call_impl is not before
        nn.Linear(2, 2)(torch.zeros(1, 2))
    assert nn.Module._call_impl is before


def test_a_later_patch_of_module_calls_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = nn.Module._call_impl
    simulation = Simulation(monkeypatch)
    try:
        with simulation:
            ours = nn.Module._call_impl

            def theirs(module: nn.Module, *args: Any) -> Any:
                return ours(module, *args)

            nn.Module._call_impl = theirs  # type: ignore[method-assign]
            simulation.history.finish()
            assert nn.Module._call_impl is theirs
            nn.Linear(2, 2)(torch.zeros(1, 2))
    finally:
        nn.Module._call_impl = before  # type: ignore[method-assign]


def test_steps_are_counted_without_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    original = torch.autograd.backward
    with simulation:
        model = nn.Linear(256, 256)
        for _ in range(4):
            model.zero_grad()
            model(torch.ones(8, 256)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)
    assert torch.autograd.backward is original
    assert [each.step for each in simulation.events if isinstance(each, Step)] == [0, 1, 2]
