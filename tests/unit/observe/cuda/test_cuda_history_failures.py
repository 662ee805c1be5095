"""Failed allocations: which of them become `Oom` events, and the location and holders of each event."""

import linecache
from pathlib import Path

import pytest
import torch
from simulated_cuda import CAPACITY, SimulatedCuda, Simulation
from torch import nn

from legroom.memory.annotations import HistoryUnavailable, LibraryRetries, RecordingFailed
from legroom.memory.event_base import Annotation, Category, Phase
from legroom.memory.events import Event, Oom
from legroom.memory.ledger import Ledger
from legroom.observe.cuda import failures
from legroom.observe.cuda.failures import operation_at
from legroom.observe.cuda.history import CudaHistory
from legroom.observe.cuda.step_peaks import StepPeaks

MiB = 1 << 20


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))  # layer
        return x


def line(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def run_out(simulation: Simulation, rows: int, optimizer: str = "SGD") -> Ledger:
    """Run a step that fails because the device is too small, and return its ledger."""
    with simulation:
        model = Wide()
        stepper = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            step(model, stepper, rows)
    return Ledger(simulation.events)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int) -> None:
    batch = torch.randn(rows, 512)
    model(batch).sum().backward()
    optimizer.step()  # step


def test_a_failure_in_the_forward_pass_has_its_phase_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = run_out(Simulation(monkeypatch, limit=24 * MiB), rows=2048)
    (oom,) = ledger.ooms()
    assert (oom.phase, oom.frame.line, oom.requested) == (Phase.FORWARD, line("layer"), 4 * MiB)
    assert oom.module == "Wide"
    sizes = ledger.at_oom().by_category()
    assert sizes[Category.ACTIVATION] == 12 * MiB
    assert sizes[Category.PARAMETER] == 4 * MiB


def test_a_failure_in_the_backward_pass_has_the_forward_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = run_out(Simulation(monkeypatch, limit=6 * MiB + MiB // 2), rows=64)
    (oom,) = ledger.ooms()
    assert (oom.phase, oom.frame.line) == (Phase.BACKWARD, line("layer"))
    assert oom.module == "layers.2"
    assert oom.op == "MmBackward0"
    assert ledger.at_oom().by_category()[Category.GRADIENT] == MiB


def test_a_failure_in_the_optimizer_has_its_phase_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = run_out(Simulation(monkeypatch, limit=12 * MiB), rows=64, optimizer="Adam")
    (oom,) = ledger.ooms()
    assert (oom.phase, oom.frame.line) == (Phase.OPTIMIZER, line("step"))
    sizes = ledger.at_oom().by_category()
    assert sizes[Category.GRADIENT] == 4 * MiB
    assert sizes[Category.OPTIMIZER_STATE] >= 3 * MiB


def test_a_failure_has_the_statistics_at_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = run_out(Simulation(monkeypatch, limit=24 * MiB), rows=2048)
    (oom,) = ledger.ooms()
    assert (oom.capacity, oom.limit) == (CAPACITY, 24 * MiB)
    assert ledger.at_oom().allocated == oom.allocated == oom.reserved - oom.cached - oom.fragmented
    assert oom.message == f"CUDA out of memory. Tried to allocate {4 * MiB} bytes."


def test_variables_that_retain_memory_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = run_out(Simulation(monkeypatch, limit=24 * MiB), rows=2048)
    held = {holder.path.split(" ")[0]: holder.bytes for holder in ledger.holders()}
    assert held["batch"] == 4 * MiB
    assert held["model"] == 4 * MiB


@pytest.mark.slow
def test_the_output_of_the_previous_step_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, limit=32 * MiB)

    def train() -> None:
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in (1024, 4096):
            out = model(torch.randn(rows, 512))
            out.square().sum().backward()
            optimizer.step()

    with simulation, pytest.raises(torch.OutOfMemoryError):
        train()
    ledger = Ledger(simulation.events)
    assert ledger.ooms()[0].step == 1
    earlier = [each for each in ledger.at_oom().live if each.step == 0 and each.phase is Phase.FORWARD]
    assert [(each.bytes, each.category) for each in earlier] == [(2 * MiB, Category.RESULT)]


def test_a_variable_outside_the_model_retains_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, limit=24 * MiB)

    def measure() -> None:
        points = torch.randn(1024, 8)
        distances = torch.cdist(points, points)
        Wide()(torch.randn(4096, 512)).sum().backward()
        assert distances.shape

    with simulation, pytest.raises(torch.OutOfMemoryError):
        measure()
    live = {(each.bytes, each.category) for each in Ledger(simulation.events).at_oom().live}
    assert (4 * MiB, Category.RESULT) in live


def test_blocks_without_a_variable_belong_to_the_running_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_measure", lambda tensor: None)
    ledger = run_out(Simulation(monkeypatch, limit=24 * MiB), rows=2048)
    (call,) = ledger.holders()
    assert (call.path, call.bytes, call.frame.line) == (
        "(intermediate in a running call)",
        16 * MiB,
        line("layer"),
    )


def test_recording_continues_after_a_caught_error(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, limit=24 * MiB)
    with simulation:
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in (64, 2048, 64, 64):
            caught = False
            try:
                step(model, optimizer, rows)
            except torch.OutOfMemoryError:
                caught = True
            if caught:
                model.zero_grad()
    ledger = Ledger(simulation.events)
    assert [oom.step for oom in ledger.ooms()] == [1]
    assert [end.step for end in ledger.steps(0)] == [0, 1, 2]
    for end in ledger.steps(0):
        assert ledger.at_step(end.step).allocated == end.allocated


def test_the_optimizer_phase_ends_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, limit=12 * MiB)
    with simulation:
        model = Wide()
        optimizer = torch.optim.Adam(model.parameters())
        with pytest.raises(torch.OutOfMemoryError):
            step(model, optimizer, 64)
        optimizer.state.clear()
        model.zero_grad()
        later = torch.zeros(1234)  # later
        del later
    found = [event for event in simulation.events if getattr(event, "bytes", 0) == 4 * 1234]
    assert [event.phase for event in found] == [Phase.OTHER]


def test_a_failure_hidden_by_a_library_is_not_an_oom(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    with simulation:
        simulation.cuda.fail(MiB)
        simulation.cuda.fail(2 * MiB)
        torch.zeros(5)
    assert not [event for event in simulation.events if isinstance(event, Oom)]
    (retries,) = [event for event in simulation.events if isinstance(event, Annotation)]
    assert isinstance(retries, LibraryRetries)
    assert retries.count == 2


def test_an_error_without_a_failed_allocation_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    with simulation:
        torch.zeros(5)
        with pytest.raises(torch.OutOfMemoryError):
            raise torch.OutOfMemoryError("made by hand")
    assert not [event for event in simulation.events if isinstance(event, Oom)]


def test_hidden_failures_before_an_error_are_counted_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, limit=MiB)
    with simulation:
        simulation.cuda.fail(7 * MiB)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(MiB)
    ledger = Ledger(simulation.events)
    assert [oom.requested for oom in ledger.ooms()] == [4 * MiB]
    assert [event.count for event in simulation.events if isinstance(event, LibraryRetries)] == [1]


def test_the_error_class_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.OutOfMemoryError.__init__
    simulation = Simulation(monkeypatch)
    with simulation:
        assert torch.OutOfMemoryError.__init__ is not before
        torch.zeros(5)
    assert torch.OutOfMemoryError.__init__ is before
    assert "__init__" not in vars(torch.OutOfMemoryError)


def test_an_internal_error_stops_recording_but_not_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)

    def broken(*args: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(simulation.history._owners, "root_called", broken)
    with simulation:
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer, 8)
    (failed,) = [event for event in simulation.events if isinstance(event, Annotation)]
    assert isinstance(failed, RecordingFailed)
    assert "ZeroDivisionError: ours" in failed.message


def test_without_a_history_steps_are_recorded() -> None:
    class NoHistory(SimulatedCuda):
        def start(self, entries: int) -> str | None:
            return "cudaMallocAsync keeps none"

    cuda, events = NoHistory(), list[Event]()
    with CudaHistory(events.append, cuda, StepPeaks(cuda)):
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer, 8)
        assert len(events) == 4
    assert [type(event).__name__ for event in events] == [
        "HistoryUnavailable",
        "Step",
        "Step",
        "Step",
    ]
    assert isinstance(events[0], HistoryUnavailable)
    assert events[0].reason == "cudaMallocAsync keeps none"


def calling(source: str) -> str:
    """Return the operation that is found for a line of source whose call raises in C code."""
    namespace = {"torch": torch, "x": torch.zeros(2, 3), "y": torch.zeros(2, 3)}
    file = f"<test {source}>"
    linecache.cache[file] = (len(source), None, [source + "\n"], file)
    try:
        exec(compile(source, file, "exec"), namespace)
    except RuntimeError as error:
        traceback = error.__traceback__
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        return operation_at(traceback.tb_frame)
    raise AssertionError("nothing failed")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("torch.mm(x, y)", "mm"),
        ("print(x.relu().mm (y.relu()))", "mm"),
        ("é = [1]; x.view(len(é), -7)", "view"),
        ("x @ y", ""),
        ("x.mm(\n y)", ""),
    ],
)
def test_the_failed_operation_is_named_as_in_the_source(source: str, name: str) -> None:
    assert calling(source) == name
