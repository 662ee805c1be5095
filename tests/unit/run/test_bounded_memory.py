"""The memory of the recorder does not grow with the number of steps."""

import gc
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest
import torch

from legroom.memory import ledger as ledger_module
from legroom.memory.capture.capture import CaptureWriter, read_capture
from legroom.memory.events import Event
from legroom.memory.ledger import Ledger
from legroom.observe.dispatch.allocations import HostMemory
from legroom.observe.dispatch.attribution import ForwardLocations
from legroom.observe.dispatch.recorder import Recorder
from legroom.run.event_buffer import EventBuffer
from legroom.units import MiB

STEPS = 400
EVENTS = 1_000


def reachable(roots: Iterable[Any]) -> int:
    """Return the number of objects reachable from `roots`, without code and modules."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        seen.add(id(value))
        stack.extend(gc.get_referents(value))
    return len(seen)


@pytest.mark.slow
def test_the_number_of_kept_records_does_not_grow_with_the_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "_MAX_STEPS", 40)
    monkeypatch.setattr(ledger_module, "_SPAN", EVENTS // 8)
    monkeypatch.setattr(ForwardLocations, "MAX_ENTRIES", 100)
    ledger = Ledger(keep_events=EVENTS)
    ledger._tags_to_keep = 100
    path = tmp_path / "run.legroom"
    writer = CaptureWriter(path, run={}, max_bytes=MiB)

    def record(events: list[Event]) -> None:
        writer.write_all(events)
        ledger.apply_all(events)

    buffer = EventBuffer(record)
    recorder = Recorder(buffer.add, [HostMemory()], host_only=True, eager=True)
    recorder.attach()
    try:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.rand(2, 4)

        def train(steps: int) -> int:
            for _ in range(steps):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                buffer.flush()
            return reachable([ledger, writer, buffer, recorder])

        train(STEPS)
        counts = [train(STEPS) for _ in range(4)]
    finally:
        recorder.detach()
        writer.close()
    # The number of kept records varies by less than one per step, because records are added and thinned out.
    assert max(counts) - min(counts) < STEPS / 2, counts
    assert counts[-1] < counts[0] + STEPS / 4, counts

    # The totals cover all steps.
    assert len(ledger) > 8 * EVENTS
    assert ledger.steps()[-1].step == 5 * STEPS - 1
    complete = Ledger(read_capture(path).events)
    assert [step.step for step in complete.steps()] == list(range(5 * STEPS))
    assert (complete.peak().index, complete.peak().bytes) == (ledger.peak().index, ledger.peak().bytes)
