"""Histories recorded on a real GPU (the scripts of tests/gpu on an H200 with torch 2.11)."""

from itertools import count
from pathlib import Path

import pytest
from tests.gpu import history_snapshots

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event
from legroom.memory.ledger import Ledger
from legroom.observe.cuda.history_events import DeviceHistory
from legroom.observe.cuda.torch_api import workspace_sizes
from legroom.units import MiB

FOLDER = Path(__file__).parents[3] / "data" / "cuda_history_snapshots"
SCRIPTS = Path(__file__).parents[3] / "gpu" / "scripts"


def events_of(name: str) -> list[Event]:
    snapshot = history_snapshots.load(FOLDER / f"h200_{name}.json.gz")
    history = DeviceHistory(0, snapshot.new_markers(), count(1), workspace_sizes((9, 0), {}))
    events = history.read(
        snapshot.trace,
        snapshot.segments,
        started=snapshot.started,
        records=snapshot.records,
        settings=AllocatorSettings.from_dict(snapshot.settings),
        after_gap=snapshot.after_gap,
    )
    return [event for _, event in events]


def line(script: str, text: str) -> int:
    lines = (SCRIPTS / f"{script}.py").read_text().splitlines()
    return next(number for number, code in enumerate(lines, 1) if text in code)


@pytest.fixture(scope="module")
def healthy() -> Ledger:
    return Ledger(events_of("healthy"))


@pytest.mark.parametrize("name", ["healthy", "leak", "checkpointed"])
def test_recorded_events_agree_with_the_allocator_statistics(name: str) -> None:
    ledger = Ledger(events_of(name))
    steps = ledger.steps(0)
    assert ledger.peak().bytes == max(step.peak_allocated for step in steps)
    assert ledger.peak(of="reserved").bytes == max(step.peak_reserved for step in steps)
    for step in steps:
        assert ledger.at_step(step.step).allocated == step.allocated


@pytest.mark.parametrize("name", ["healthy", "leak", "checkpointed"])
def test_every_byte_at_the_peak_has_a_line(name: str) -> None:
    ledger = Ledger(events_of(name))
    assert ledger.at(ledger.peak().index).coverage() == 1.0


def test_the_state_of_a_step_matches_the_model(healthy: Ledger) -> None:
    sizes = healthy.at_step(11).by_category()
    assert 45 * MiB < sizes[Category.PARAMETER] < 46 * MiB
    assert sizes[Category.GRADIENT] == sizes[Category.PARAMETER]
    assert sizes[Category.OPTIMIZER_STATE] == pytest.approx(2 * sizes[Category.PARAMETER], rel=0.01)
    assert sizes[Category.WORKSPACE] == 65 * MiB


def test_activations_dominate_the_peak(healthy: Ledger) -> None:
    peak = healthy.at(healthy.peak().index)
    assert next(iter(peak.by_category())) is Category.ACTIVATION


def test_gradients_have_the_line_of_their_module(healthy: Ledger) -> None:
    gradients = [alloc for alloc in healthy.at_step(5).live if alloc.category is Category.GRADIENT]
    lines = {alloc.module: alloc.frame.line for alloc in gradients if alloc.frame is not None}
    assert lines["blocks.3.convolution"] == line("healthy", "self.norm(self.convolution(x))")
    assert lines["head"] == line("healthy", "self.head(x)")


def test_batches_of_the_loader_are_inputs(healthy: Ledger) -> None:
    peak = healthy.at(healthy.peak().index)
    inputs = [alloc for alloc in peak.live if alloc.category is Category.INPUT]
    assert sorted(alloc.bytes for alloc in inputs) == [64 * 8, 64 * 3 * 64 * 64 * 4]


def test_a_leak_is_found_at_its_line() -> None:
    growing = Ledger(events_of("leak")).growth()
    assert [(row.line, row.bytes_per_step) for row in growing] == [(line("leak", "# <- allocates"), 2 * MiB)]


def test_recomputed_blocks_have_their_module() -> None:
    again = [
        event
        for event in events_of("checkpointed")
        if isinstance(event, Alloc)
        and event.phase is Phase.BACKWARD
        and event.category is Category.ACTIVATION
    ]
    assert {event.module.split(".")[0] for event in again} == {"layers"}
