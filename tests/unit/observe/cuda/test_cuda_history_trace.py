"""Small handwritten histories: workspaces, earlier blocks, several devices, unusual entries."""

from itertools import count
from typing import Any

import pytest

from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Free, Oom, SegmentChange, Step, Tag
from legroom.observe.cuda.address_owners import OwnedAddresses
from legroom.observe.cuda.history_events import AllocationFailure, DeviceHistory, LoaderBatch, PendingEvent
from legroom.observe.cuda.markers import BACKWARD, FORWARD, INFERENCE, OPTIMIZER, OTHER, Markers
from legroom.observe.holders import autograd_graph
from legroom.observe.holders.holders import HolderSurvey
from legroom.units import MiB

STACK = [{"filename": "/home/me/train.py", "line": 7, "name": "main"}]
FRAME = Frame("/home/me/train.py", 7, "main")
FAILURE = AllocationFailure(0, 20 * MiB, 100 * MiB, 200 * MiB, 50 * MiB, MiB, 2 * MiB, 0, MiB, "", False, "")
WORKSPACE = 32 * MiB


class Program:
    """Creates the entries of a program on one device."""

    def __init__(self, **options: Any) -> None:
        self.stamp = ""
        self.markers = Markers()
        self.markers.start(self._set)
        self.trace: list[dict[str, Any]] = []
        self.history = DeviceHistory(0, self.markers, count(1), frozenset({WORKSPACE}))
        self._clock = 0

    def _set(self, text: str) -> None:
        self.stamp = text

    def note(self, action: str, address: int, size: int, *, engine: bool = False) -> None:
        self._clock += 1_000_000
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self._clock,
                "frames": [] if engine else STACK,
                "user_metadata": "" if engine else self.stamp,
            }
        )

    def alloc(self, address: int, size: int, *, engine: bool = False) -> None:
        self.note("alloc", address, size, engine=engine)

    def free(self, address: int, size: int, *, engine: bool = False) -> None:
        self.note("free_requested", address, size, engine=engine)

    def read(self, *blocks: tuple[int, int], reserved: int = 0, **options: Any) -> list[Event]:
        """Return the events of all entries so far. `blocks` are the address and size of each block in use."""
        segment = {
            "address": 0,
            "total_size": reserved,
            "stream": 0,
            "is_expandable": True,
            "blocks": [
                {
                    "address": address,
                    "size": size,
                    "requested_size": size,
                    "state": "active_allocated",
                    "frames": STACK,
                }
                for address, size in blocks
            ],
        }
        timed_events = self.history.read(self.trace, [segment] if reserved or blocks else [], **options)
        self.trace = []
        assert [time for time, _ in timed_events] == sorted(time for time, _ in timed_events)
        return [event for _, event in timed_events]


@pytest.fixture
def program() -> Program:
    return Program()


def categories(events: list[Event]) -> list[Category]:
    return [event.category for event in events if isinstance(event, Alloc)]


def test_a_block_of_workspace_size_that_is_not_freed_is_a_workspace(program: Program) -> None:
    program.markers.advance(FORWARD, "Net")
    program.alloc(MiB, WORKSPACE)
    program.alloc(100 * MiB, WORKSPACE, engine=True)
    events = program.read((MiB, WORKSPACE), (100 * MiB, WORKSPACE))
    assert categories(events) == [Category.WORKSPACE] * 2


def test_the_engine_has_its_own_workspace(program: Program) -> None:
    program.markers.advance(FORWARD, "Net")
    program.alloc(MiB, WORKSPACE)
    program.markers.enter_module(BACKWARD, "block")
    program.alloc(100 * MiB, WORKSPACE)
    events = program.read((MiB, WORKSPACE), (100 * MiB, WORKSPACE))
    assert categories(events) == [Category.WORKSPACE] * 2


def test_a_second_block_of_workspace_size_is_not_a_workspace(program: Program) -> None:
    program.markers.advance(FORWARD, "Net")
    program.alloc(MiB, WORKSPACE)
    program.alloc(100 * MiB, WORKSPACE)
    program.markers.advance(OTHER)
    program.alloc(900 * MiB, 512, engine=True)
    events = program.read((MiB, WORKSPACE), (100 * MiB, WORKSPACE))
    assert categories(events)[:2] == [Category.WORKSPACE, Category.TEMPORARY]


def test_a_freed_block_is_not_a_workspace(program: Program) -> None:
    program.alloc(MiB, WORKSPACE)
    program.free(MiB, WORKSPACE)
    program.alloc(MiB, WORKSPACE)
    assert categories(program.read((MiB, WORKSPACE))) == [Category.TEMPORARY, Category.WORKSPACE]


def test_a_workspace_that_is_freed_later_is_retagged(program: Program) -> None:
    program.alloc(MiB, WORKSPACE)
    (alloc,) = program.read((MiB, WORKSPACE))
    program.free(MiB, WORKSPACE)
    events = program.read()
    assert events == [Tag(alloc.id, Category.TEMPORARY), Free(2.0, alloc.id)]


def test_a_parameter_of_workspace_size_is_a_parameter(program: Program) -> None:
    program.alloc(MiB, WORKSPACE)
    seen = OwnedAddresses(program.markers.tick + 1, Category.PARAMETER, [MiB], [(WORKSPACE, "Net")])
    assert categories(program.read((MiB, WORKSPACE), records=[seen])) == [Category.PARAMETER]


def test_blocks_from_before_the_history_come_first(program: Program) -> None:
    program.free(4096, 1000)
    program.alloc(8192, 512)
    events = program.read((8192, 512), (16384, 700))
    assert [(type(event).__name__, event.bytes) for event in events if isinstance(event, Alloc)] == [
        ("Alloc", 700),
        ("Alloc", 1000),
        ("Alloc", 512),
    ]
    assert isinstance(events[2], Free)


def test_events_are_sent_once(program: Program) -> None:
    program.alloc(4096, 1000)
    program.read((4096, 1000), reserved=2 * MiB)
    program.alloc(8192, 512)
    assert [type(event) for event in program.read((4096, 1000), (8192, 512), reserved=2 * MiB)] == [Alloc]


def test_blocks_are_corrected_after_a_gap(program: Program) -> None:
    program.alloc(4096, 1000)
    program.read((4096, 1000))
    program.alloc(8192, 512)
    events = program.read((8192, 512), (16384, 4000), after_gap=True)
    assert [type(event).__name__ for event in events] == ["Free", "Alloc", "GapEnded", "Alloc"]


def test_the_address_of_a_lost_gradient_does_not_affect_a_new_block(program: Program) -> None:
    stale = OwnedAddresses(program.markers.advance(OPTIMIZER), Category.GRADIENT, [4096], [(512, "Net")])
    program.markers.advance(OTHER)
    program.alloc(8192, 512)
    events = program.read((4096, 512), (8192, 512), records=[stale], after_gap=True)
    assert Category.GRADIENT not in categories(events)


def test_segment_changes_sum_to_the_reserved_memory(program: Program) -> None:
    program.note("segment_alloc", 0, 2 * MiB)
    program.note("segment_free", 0, 2 * MiB)
    program.note("segment_map", 0, 20 * MiB)
    events = program.read(reserved=20 * MiB)
    assert [event.bytes for event in events if isinstance(event, SegmentChange)] == [
        2 * MiB,
        -2 * MiB,
        20 * MiB,
    ]


def test_memory_reserved_before_the_history_is_sent(program: Program) -> None:
    assert [event.bytes for event in program.read(reserved=6 * MiB) if isinstance(event, SegmentChange)] == [
        6 * MiB
    ]


def test_a_step_comes_after_its_last_entry(program: Program) -> None:
    program.markers.advance(FORWARD)
    program.alloc(4096, 512)
    program.markers.step = 1
    tick = program.markers.advance(OTHER)
    program.alloc(8192, 512)
    step = Step(0.5, 0, 0.1, 0, 0, 0, 0, 0)
    events = program.read((4096, 512), (8192, 512), records=[PendingEvent(tick, step)])
    assert [type(event).__name__ for event in events] == ["Alloc", "Step", "Alloc"]
    assert [event.step for event in events] == [0, 0, 1]


def test_a_recorded_address_applies_to_the_block_at_that_tick(program: Program) -> None:
    """Three blocks have the same address, one after another."""
    program.alloc(4096, 512)
    program.free(4096, 512)
    program.markers.advance(OTHER)
    program.alloc(4096, 512)
    seen = OwnedAddresses(program.markers.advance(OPTIMIZER), Category.GRADIENT, [4096], [(512, "Net")])
    program.free(4096, 512)
    program.alloc(4096, 512)
    events = program.read((4096, 512), records=[seen])
    assert categories(events) == [Category.TEMPORARY, Category.GRADIENT, Category.TEMPORARY]


def test_the_sizes_of_a_batch_apply_until_the_next_batch(program: Program) -> None:
    batches = [LoaderBatch(program.markers.advance(OTHER), frozenset({1000}))]
    program.alloc(4096, 1000)
    batches.append(LoaderBatch(program.markers.advance(OTHER), frozenset({2000})))
    program.alloc(8192, 1000)
    events = program.read((4096, 1000), (8192, 1000), records=batches)
    assert categories(events) == [Category.INPUT, Category.TEMPORARY]


def test_an_old_stamp_of_an_engine_thread_is_ignored(program: Program) -> None:
    """The stamp remained from a checkpoint in an earlier step."""
    program.markers.advance(OTHER)
    program.markers.enter_module("b", "")
    old = program.stamp
    program.markers.step = 5
    program.markers.advance(FORWARD, "Net")
    program.alloc(4096, 512)
    fresh, program.stamp = program.stamp, old
    program.alloc(8192, 512)
    program.stamp = fresh
    program.alloc(12288, 512)
    events = program.read((4096, 512), (8192, 512), (12288, 512))
    assert [event.step for event in events] == [5, 5, 5]
    assert [event.phase for event in events] == [Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD]


def test_a_failure_without_an_entry_is_an_oom(program: Program) -> None:
    (oom,) = program.read(failure=FAILURE._replace(message="no memory"))
    assert isinstance(oom, Oom)
    assert (oom.requested, oom.limit, oom.other, oom.message) == (20 * MiB, 100 * MiB, 148 * MiB, "no memory")


def test_the_holder_of_a_block_at_a_failure_determines_its_category(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autograd_graph, "saved_tensors_are_readable", lambda: True)
    program.markers.advance(FORWARD, "Net")
    for address in (4096, 8192, 12288, 16384, 20480):
        program.alloc(address, 512)
    program.note("oom", 0, 20 * MiB)
    program.free(20480, 512)  # a temporary of the failed operation
    held = HolderSurvey([], {4096: 512, 8192: 512}, {FRAME: {12288: 512}}, [FRAME], None, frozenset({4096}))
    alive = ((address, 512) for address in (4096, 8192, 12288, 16384))
    assert categories(program.read(*alive, failure=FAILURE._replace(survey=held))) == [
        Category.ACTIVATION,
        Category.RESULT,
        Category.TEMPORARY,
        Category.ACTIVATION,  # without a known holder: a graph in C++
        Category.TEMPORARY,
    ]


def test_blocks_freed_by_the_exception_keep_their_category(program: Program) -> None:
    program.markers.advance(FORWARD, "Net")
    program.alloc(4096, 512)
    program.note("oom", 0, 20 * MiB)
    (born, _) = program.read((4096, 512), failure=FAILURE)
    assert born.category is Category.ACTIVATION
    program.free(4096, 512)
    (end,) = program.read()
    assert end == Free(3.0, born.id)


def test_a_workspace_is_recognized_at_a_failure(program: Program) -> None:
    program.markers.advance(FORWARD, "Net")
    program.alloc(MiB, WORKSPACE)
    program.note("oom", 0, 20 * MiB)
    assert categories(program.read((MiB, WORKSPACE), failure=FAILURE)) == [Category.WORKSPACE]


def test_blocks_of_a_pass_without_gradients_are_not_activations_at_a_failure(program: Program) -> None:
    program.markers.advance(INFERENCE, "Net")
    program.alloc(4096, 512)
    program.note("oom", 0, 20 * MiB)
    assert categories(program.read((4096, 512), failure=FAILURE)) == [Category.TEMPORARY]


def test_a_block_freed_after_its_backward_pass_is_a_result(program: Program) -> None:
    program.markers.advance(FORWARD, "Net")
    program.alloc(4096, 512)
    program.alloc(8192, 512, engine=True)
    program.markers.advance(OTHER)
    program.free(4096, 512)
    assert categories(program.read((8192, 512)))[0] is Category.RESULT


def test_a_missing_free_is_added(program: Program) -> None:
    program.alloc(4096, 512)
    program.alloc(4096, 1024)
    events = program.read((4096, 1024))
    assert [type(event).__name__ for event in events] == ["Alloc", "Free", "Alloc"]
