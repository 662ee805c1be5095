"""Converts the CUDA allocator's history of one device to events.

First, the state at the start of the history is compared with the events sent so far, and events for the difference are
sent. The events are therefore consistent even if entries were lost. Each block is followed through the history. At the
end, the categories and code locations of all blocks are determined (`block_lifetimes`).
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.annotations import GapEnded, HolderCoverage, OtherProcesses
from legroom.memory.event_base import BEFORE_RECORDING, Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Free, Oom, SegmentChange, Tag
from legroom.observe.cuda.address_owners import OwnedAddresses
from legroom.observe.cuda.block_lifetimes import (
    BlockLifetime,
    LibraryWorkspaces,
    ModuleLines,
    apply_holder_categories,
    category_of,
    locate_backward_blocks,
    phase_of,
)
from legroom.observe.cuda.block_sizes import BlocksInUse
from legroom.observe.cuda.initial_state import (
    SEGMENT_ACTIONS,
    Entry,
    InitialState,
    initial_state,
    largest_free_block,
)
from legroom.observe.cuda.markers import BACKWARD, FORWARD, INFERENCE, OPTIMIZER, OTHER, Marker, Markers
from legroom.observe.cuda.stacks import NO_STACK, Stack, Stacks
from legroom.observe.holders.holders import HolderSurvey, StepStorage


class LoaderBatch(NamedTuple):
    """A loader returned a batch with tensors of these sizes."""

    tick: int
    sizes: frozenset[int]


class PendingEvent(NamedTuple):
    """An event to send before the first history entry with the same tick."""

    tick: int
    event: Event


TickRecord = OwnedAddresses | LoaderBatch | PendingEvent
"""A record of what happened at a tick (see `markers`), to be merged with the history entries."""


class AllocationFailure(NamedTuple):
    device: int
    wanted: int
    """The number of bytes that PyTorch requested from the device. PyTorch requests whole segments, which may be larger
    than the block.
    """
    limit: int
    capacity: int
    free: int
    allocated: int
    reserved: int
    cached: int
    fragmented: int
    module: str
    in_backward: bool
    op: str
    """The running autograd node or the called function, or "" if neither is known."""
    message: str = ""
    survey: HolderSurvey | None = None
    other_processes: str = ""


TimedEvent = tuple[float, Event]
"""A time and an event. The events of several devices are sorted by this time."""


class DeviceHistory:
    """The state of one device after the events sent so far. `read` converts new entries to events."""

    def __init__(
        self,
        device: int,
        markers: Markers,
        numbers: "count[int]",
        workspace_sizes: frozenset[int] = frozenset(),
    ) -> None:
        self.device = device
        self.markers = markers
        self.numbers = numbers
        self.workspaces = LibraryWorkspaces(workspace_sizes)
        self.lines = ModuleLines()
        self.blocks_by_address: dict[int, BlockLifetime] = {}
        """The blocks that are alive after the last event that was sent."""
        self.reserved = 0
        self.passes = 0

    def current_state(self) -> list[Event]:
        reserved = [SegmentChange(0.0, self.device, self.reserved)] if self.reserved else []
        return [*reserved, *map(self.alloc_event, self.blocks_by_address.values())]

    def alloc_event(self, block: BlockLifetime) -> Alloc:
        frame = block.frame or self.lines.find(block.module)
        if frame is None and block.existed_before:
            frame = BEFORE_RECORDING
        return Alloc(
            block.time, block.id, block.requested, block.block_size, self.device, block.stream, block.category,
            block.phase, block.step, block.module, frame, block.op,
        )  # fmt: skip

    def read(
        self,
        trace: Sequence[Entry],
        segments: Sequence[Mapping[str, Any]],
        *,
        started: float = 0.0,
        records: Sequence[TickRecord] = (),
        settings: AllocatorSettings | None = None,
        failure: AllocationFailure | None = None,
        after_gap: bool = False,
    ) -> list[TimedEvent]:
        """Return the events since the last reading.

        `trace` and `segments` of this device come from a snapshot. `started` is the start of the run in Unix seconds.
        `records` is sorted by tick. `failure` belongs to the last `oom` entry. All earlier failures were handled inside
        a library. `after_gap` means that entries before `trace` are missing.
        """
        reading = _Reading(self, trace, segments, started, records, settings)
        reading.start_from(initial_state(trace, segments), after_gap)
        reading.process_entries(trace, failure)
        return reading.events()


class _Reading:
    def __init__(
        self,
        history: DeviceHistory,
        trace: Sequence[Entry],
        segments: Sequence[Mapping[str, Any]],
        started: float,
        records: Sequence[TickRecord],
        settings: AllocatorSettings | None,
    ) -> None:
        self._history = history
        self._markers = history.markers
        self._segments = segments
        self._started = started
        self._records_by_tick = list(reversed(records))
        self._stacks = Stacks()
        self._blocks = BlocksInUse(settings)
        self._events: list[tuple[float, Event | BlockLifetime]] = []
        """The events in order. A block is a placeholder for its `Alloc` event, which is created only when the category
        of the block is known.
        """
        self._earlier = list(history.blocks_by_address.values())
        self._passes: list[list[tuple[BlockLifetime, bool]]] = []
        self._time = self._seconds(trace[0]) if trace else 0.0
        self._marker = self._first_marker(trace)
        self._batch: frozenset[int] = frozenset()
        self._in_pass = False
        self._graph_open = False
        """True if a forward pass with gradients has started and no backward pass has followed."""
        self._failed_in: Phase | None = None
        self._survey: HolderSurvey | None = None

    # --- the state before the first entry

    def start_from(self, start: InitialState, after_gap: bool) -> None:
        history = self._history
        for address, block in list(history.blocks_by_address.items()):
            found = start.blocks.get(address)
            if found is None or found.requested != block.requested:
                del history.blocks_by_address[address]
                self._emit(Free(self._time, block.id))
        if start.reserved != history.reserved:
            self._emit(SegmentChange(self._time, history.device, start.reserved - history.reserved))
            history.reserved = start.reserved
        for address, size in start.segments.items():
            self._blocks.add_segment(address, size)
        for address in sorted(start.blocks, reverse=True):
            found = start.blocks[address]
            known = history.blocks_by_address.get(address)
            block_size = known.block_size if known is not None else found.block_size
            block_size = self._blocks.add_initial(address, found.requested, block_size)
            if known is None:
                stack = self._stacks.read(found.frames)
                block = self._add_block(
                    address, found.requested, block_size, found.stream, stack, OTHER, Phase.OTHER
                )
                block.existed_before = not after_gap
        if after_gap:
            self._records_by_tick = [record for record in self._records_by_tick if not self._is_stale(record)]
        self._process_records(self._marker.tick)
        if after_gap:
            self._emit(GapEnded(self._time))

    def _is_stale(self, record: TickRecord) -> bool:
        """Return whether a record refers to blocks whose allocation and free are both missing from the history."""
        transient = isinstance(record, OwnedAddresses) and record.category in (
            Category.GRADIENT,
            Category.INPUT,
        )
        return transient and record.tick < self._marker.tick

    def _first_marker(self, trace: Sequence[Entry]) -> Marker:
        for entry in trace:
            mark = self._markers.read(entry.get("user_metadata") or "", entry["time_us"])
            if mark is not None:
                return mark
        return self._markers.at(self._markers.tick)

    # --- processing the entries

    def process_entries(self, trace: Sequence[Entry], failure: AllocationFailure | None) -> None:
        last_failure = max((i for i, entry in enumerate(trace) if entry["action"] == "oom"), default=-1)
        for position, entry in enumerate(trace):
            action = entry["action"]
            self._time = max(self._time, self._seconds(entry))
            mark = self._markers.read(entry.get("user_metadata") or "", entry["time_us"])
            if mark is not None and mark.activity != BACKWARD:
                self._advance_to(mark)
            if action == "alloc":
                self._allocated(entry, mark)
            elif action == "free_requested":
                self._freed(entry["addr"], mark)
            elif action in SEGMENT_ACTIONS:
                self._segment(entry)
            elif position == last_failure and failure is not None:
                self._failed(failure, entry["size"], self._stacks.read(entry.get("frames")))
        self._process_records(sys.maxsize)
        if failure is not None and last_failure < 0:
            self._failed(failure, failure.wanted, NO_STACK)

    def _advance_to(self, mark: Marker) -> None:
        # Other threads may still mark entries with an older tick.
        if mark.tick > self._marker.tick:
            self._process_records(mark.tick)
            if mark.step != self._marker.step:
                self._graph_open = False
        if mark.tick >= self._marker.tick:
            self._marker = mark

    def _process_records(self, tick: int) -> None:
        while self._records_by_tick and self._records_by_tick[-1].tick <= tick:
            record = self._records_by_tick.pop()
            if isinstance(record, OwnedAddresses):
                self._see(record)
            elif isinstance(record, LoaderBatch):
                self._batch = record.sizes
            else:
                self._emit(record.event)

    def _see(self, owned: OwnedAddresses) -> None:
        for address, (size, module) in zip(owned.addresses, owned.details, strict=False):
            start = self._blocks.block_at(address) if address else None
            block = self._history.blocks_by_address.get(start) if start is not None else None
            if block is not None and address + size <= block.address + block.block_size:
                block.see(owned.category, module)

    def _allocated(self, entry: Entry, mark: Marker | None) -> None:
        stack = self._stacks.read(entry.get("frames"))
        by_engine = self._is_by_engine(mark, stack)
        activity = BACKWARD if by_engine or stack.in_backward else self._marker.activity
        if activity == BACKWARD:
            if not self._in_pass:
                self._begin_pass()
        else:
            self._in_pass = False
            self._graph_open = activity == FORWARD or (self._graph_open and activity != OPTIMIZER)
        requested = entry["size"]
        block_size = self._blocks.add(entry["addr"], requested)
        while self._blocks.corrected:
            address, corrected = self._blocks.corrected.popitem()
            self._history.blocks_by_address[address].block_size = corrected
        phase = phase_of(activity, self._graph_open)
        block = self._add_block(entry["addr"], requested, block_size, entry["stream"], stack, activity, phase)
        block.is_batch_sized = requested in self._batch
        block.passes_at_allocation = self._history.passes
        if activity == BACKWARD:
            block.module = mark.module if mark is not None and mark.activity == BACKWARD else ""
            block.from_engine = by_engine and not block.module
            self._passes[-1].append((block, False))
        elif activity in (FORWARD, INFERENCE):
            block.module = self._marker.module
            self._history.lines.note(block.module, stack.frame)

    def _is_by_engine(self, mark: Marker | None, stack: Stack) -> bool:
        if mark is None or not self._markers.identifies_threads:
            return stack.from_engine
        return mark.activity == BACKWARD

    def _begin_pass(self) -> None:
        self._in_pass, self._graph_open = True, False
        self._history.passes += 1
        self._passes.append([])

    def _add_block(
        self,
        address: int,
        requested: int,
        block_size: int,
        stream: int,
        stack: Stack,
        activity: str,
        phase: Phase,
    ) -> BlockLifetime:
        history = self._history
        block = BlockLifetime(next(history.numbers), address, requested, block_size, stream, self._time)
        block.step, block.activity, block.phase = self._marker.step, activity, phase
        block.frame, block.op = stack.frame, stack.op
        replaced = history.blocks_by_address.get(address)
        if replaced is not None:  # the entry that frees the previous block is missing in the history
            self._emit(Free(self._time, replaced.id))
        history.blocks_by_address[address] = block
        self._events.append((self._time, block))
        return block

    def _freed(self, address: int, mark: Marker | None) -> None:
        self._blocks.remove(address)
        block = self._history.blocks_by_address.pop(address, None)
        if block is None:
            return
        unstamped = mark is None or mark.activity == BACKWARD
        by_engine = unstamped if self._markers.identifies_threads else self._in_pass
        block.freed_in = BACKWARD if by_engine else self._marker.activity
        block.freed_by_module = mark is not None and mark.module != ""
        block.passes_since = self._history.passes - block.passes_at_allocation
        if by_engine and self._in_pass:
            self._passes[-1].append((block, True))
        self._emit(Free(self._time, block.id))

    def _segment(self, entry: Entry) -> None:
        change = SEGMENT_ACTIONS[entry["action"]] * entry["size"]
        self._history.reserved += change
        if entry["action"] == "segment_alloc":
            self._blocks.add_segment(entry["addr"], entry["size"])
        elif entry["action"] == "segment_free":
            self._blocks.remove_segment(entry["addr"])
        self._emit(SegmentChange(self._time, self._history.device, change))

    def _failed(self, failure: AllocationFailure, requested: int, stack: Stack) -> None:
        """Record that memory ran out at this entry. If the allocation failed in a backward operation, `events` later
        sets the line.
        """
        in_backward = failure.in_backward or stack.in_backward
        oom = Oom(
            self._time, failure.device, requested, failure.capacity, failure.limit, failure.allocated,
            failure.reserved, failure.cached, failure.fragmented,
            max(self._blocks.largest_gap(), largest_free_block([s for s in self._segments if s.get("is_expandable")])),
            max(failure.capacity - failure.free - failure.reserved, 0), self._marker.step,
            Phase.BACKWARD if in_backward else phase_of(self._marker.activity, self._graph_open),
            failure.module if in_backward else self._marker.module, stack.frame, failure.op or stack.op, failure.message,
        )  # fmt: skip
        self._emit(oom)
        self._failed_in, self._survey = oom.phase, failure.survey
        if failure.survey is not None:
            made = [
                StepStorage(block.address, block.block_size, block.frame, block.activity == BACKWARD)
                for block in self._history.blocks_by_address.values()
                if block.step == self._marker.step
            ]
            holders = failure.survey.holders(made, oom.module)
            for holder in holders.largest:
                self._emit(holder)
            self._emit(HolderCoverage(self._time, holders.total_bytes))
        if failure.other_processes:
            self._emit(OtherProcesses(self._time, failure.other_processes))

    # --- categories and locations

    def events(self) -> list[TimedEvent]:
        history = self._history
        for block in history.blocks_by_address.values():
            block.passes_since = history.passes - block.passes_at_allocation
        if self._failed_in is not None:
            apply_holder_categories(
                history.blocks_by_address.values(),
                history.workspaces,
                {} if self._survey is None else self._survey.categories(),
                in_backward=self._failed_in is Phase.BACKWARD,
            )
        locate_backward_blocks(self._passes, history.lines)
        events: list[TimedEvent] = []
        for block in self._earlier:
            self._categorize(block)
            if block.category is not block.sent_category:
                block.sent_category = block.category
                events.append(
                    (self._events[0][0] if self._events else self._time, Tag(block.id, block.category))
                )
        for time, item in self._events:
            if isinstance(item, BlockLifetime):
                self._categorize(item)
                events.append((time, self._alloc(item)))
            elif isinstance(item, Oom) and item.frame is None:
                events.append((time, item._replace(frame=self._failed_line(item))))
            else:
                events.append((time, item))
        return events

    def _categorize(self, block: BlockLifetime) -> None:
        if block.category is Category.WORKSPACE and block.freed_in is not None:
            self._history.workspaces.release(block)
        block.category = category_of(block, self._history.workspaces)

    def _alloc(self, block: BlockLifetime) -> Alloc:
        block.sent_category = block.category
        return self._history.alloc_event(block)

    def _failed_line(self, oom: Oom) -> Frame | None:
        """Return the line of the module whose backward operation failed. If this line is unknown, return the line of
        the last block in the pass whose location is known.
        """
        line = self._history.lines.find(oom.module)
        if line is None and oom.phase is Phase.BACKWARD and self._passes:
            lines = (block.frame for block, _ in reversed(self._passes[-1]) if block.frame is not None)
            line = next(lines, None)
        return line

    def _emit(self, event: Event) -> None:
        self._events.append((self._time, event))

    def _seconds(self, entry: Entry) -> float:
        return max(float(entry["time_us"]) / 1e6 - self._started, 0.0)
