"""The CUDA allocator's history of one device, turned into events.

The state at its beginning is compared with what the sink has been told so far, and the difference told first; so the
sink's picture is whole at any time, even after entries were lost. Then one pass forwards follows every block, and
a second one over the lives so found says what they were and where they belong (`cuda_lives`).
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.annotations import GapEnded, HolderCoverage, OtherProcesses
from legroom.memory.events import Alloc, Category, Event, Frame, Free, Oom, Phase, SegmentChange, Tag
from legroom.observe.cuda.address_owners import Sighting
from legroom.observe.cuda.block_lifetimes import (
    Life,
    ModuleLines,
    Workspaces,
    category_of,
    phase_of,
    place_backward,
    see_holders,
)
from legroom.observe.cuda.block_sizes import Blocks
from legroom.observe.cuda.initial_state import (
    GROWTH,
    Beginning,
    Entry,
    beginning,
    largest_free_block,
)
from legroom.observe.cuda.markers import BACKWARD, FORWARD, INFERENCE, OPTIMIZER, OTHER, Mark, Marks
from legroom.observe.cuda.stacks import NO_STACK, Stack, Stacks
from legroom.observe.holders.holders import HolderSurvey, StepStorage


class Batch(NamedTuple):
    """A loader gave a batch with tensors of these sizes."""

    tick: int
    sizes: frozenset[int]


class Pending(NamedTuple):
    """An event that stands before the first entry of its tick."""

    tick: int
    event: Event


Moment = Sighting | Batch | Pending
"""What is known to have happened at a tick, and has to find its place among the entries."""


class Failure(NamedTuple):
    """What was seen of a failed allocation: the figures when it failed, and the error that came of it."""

    device: int
    wanted: int
    """From the device: a whole segment."""
    limit: int
    capacity: int
    free: int
    allocated: int
    reserved: int
    cached: int
    fragmented: int
    module: str
    """Of the backward operation that failed, as far as its graph tells."""
    in_backward: bool
    """Whether an operation of the backward pass failed."""
    op: str
    """The autograd node at work, or the function called; "" where unknown."""
    message: str = ""
    survey: HolderSurvey | None = None
    """Who held what; None where it was not asked any more."""
    others: str = ""
    """Which other processes are on the device, in a sentence."""


Timed = tuple[float, Event]
"""An event, and the time by which those of several devices are put in order."""


class DeviceHistory:
    """What the sink knows of one device, and how to tell it the rest."""

    def __init__(
        self, device: int, marks: Marks, numbers: "count[int]", workspace_sizes: frozenset[int] = frozenset()
    ) -> None:
        """`numbers`: gives every block of every device a number of its own."""
        self.device = device
        self.marks = marks
        self.numbers = numbers
        self.workspaces = Workspaces(workspace_sizes)
        self.lines = ModuleLines()
        self.lives: dict[int, Life] = {}
        """By address, those that the sink holds for alive."""
        self.reserved = 0
        self.passes = 0
        """Backward passes begun."""

    def read(
        self,
        trace: Sequence[Entry],
        segments: Sequence[Mapping[str, Any]],
        *,
        began: float = 0.0,
        moments: Sequence[Moment] = (),
        settings: AllocatorSettings | None = None,
        failure: Failure | None = None,
        after_gap: bool = False,
    ) -> list[Timed]:
        """The events since the last reading.

        `trace` and `segments` are this device's, as a snapshot gives them; `began` is the run's beginning in Unix
        seconds; `moments` come in the order of their ticks. `failure` is what the last `oom` entry was (the earlier
        ones a library swallowed). `after_gap`: entries are missing before the first of these; the sink has been told so.
        """
        reading = _Reading(self, trace, segments, began, moments, settings)
        reading.start_from(beginning(trace, segments), after_gap)
        reading.follow(trace, failure)
        return reading.told()


class _Reading:
    """One reading of a device's history."""

    def __init__(
        self,
        history: DeviceHistory,
        trace: Sequence[Entry],
        segments: Sequence[Mapping[str, Any]],
        began: float,
        moments: Sequence[Moment],
        settings: AllocatorSettings | None,
    ) -> None:
        self._history = history
        self._marks = history.marks
        self._segments = segments
        self._began = began
        self._moments = list(reversed(moments))
        self._stacks = Stacks()
        self._blocks = Blocks(settings)
        self._told: list[tuple[float, Event | Life]] = []
        """In order; a life stands for its Alloc until everything is known of it."""
        self._earlier = list(history.lives.values())
        self._passes: list[list[tuple[Life, bool]]] = []
        self._time = self._seconds(trace[0]) if trace else 0.0
        self._mark = self._first_mark(trace)
        self._batch: frozenset[int] = frozenset()
        self._in_pass = False
        """Whether the last allocation was the autograd engine's."""
        self._graph_open = False
        """Whether a forward pass with gradients has begun, and no backward pass since."""
        self._failed_in: Phase | None = None
        """Where memory ran out, if it did."""
        self._survey: HolderSurvey | None = None
        """Who held what then."""

    # --- the state before the first entry

    def start_from(self, start: Beginning, after_gap: bool) -> None:
        history = self._history
        for address, life in list(history.lives.items()):
            found = start.blocks.get(address)
            if found is None or found.requested != life.requested:
                del history.lives[address]
                self._tell(Free(self._time, life.id))
        if start.reserved != history.reserved:
            self._tell(SegmentChange(self._time, history.device, start.reserved - history.reserved))
            history.reserved = start.reserved
        for address, size in start.segments.items():
            self._blocks.add_segment(address, size)
        for address in sorted(start.blocks, reverse=True):
            found = start.blocks[address]
            known = history.lives.get(address)
            charged = known.charged if known is not None else found.charged
            charged = self._blocks.add_earlier(address, found.requested, charged)
            if known is None:
                stack = self._stacks.read(found.frames)
                self._born(address, found.requested, charged, found.stream, stack, OTHER, Phase.OTHER)
        if after_gap:
            self._moments = [moment for moment in self._moments if not self._is_stale(moment)]
        self._pass_moments(self._mark.tick)
        if after_gap:
            self._tell(GapEnded(self._time))

    def _is_stale(self, moment: Moment) -> bool:
        """Whether it is about blocks that came and went among the lost entries."""
        passing = isinstance(moment, Sighting) and moment.category in (Category.GRADIENT, Category.INPUT)
        return passing and moment.tick < self._mark.tick

    def _first_mark(self, trace: Sequence[Entry]) -> Mark:
        for entry in trace:
            mark = self._marks.read(entry.get("user_metadata") or "", entry["time_us"])
            if mark is not None:
                return mark
        return self._marks.at(self._marks.tick)

    # --- forwards through the entries

    def follow(self, trace: Sequence[Entry], failure: Failure | None) -> None:
        last_failure = max((i for i, entry in enumerate(trace) if entry["action"] == "oom"), default=-1)
        for position, entry in enumerate(trace):
            action = entry["action"]
            self._time = max(self._time, self._seconds(entry))
            mark = self._marks.read(entry.get("user_metadata") or "", entry["time_us"])
            if mark is not None and mark.activity != BACKWARD:
                self._reach(mark)
            if action == "alloc":
                self._allocated(entry, mark)
            elif action == "free_requested":
                self._freed(entry["addr"], mark)
            elif action in GROWTH:
                self._segment(entry)
            elif position == last_failure and failure is not None:
                self._failed(failure, entry["size"], self._stacks.read(entry.get("frames")))
        self._pass_moments(sys.maxsize)
        if failure is not None and last_failure < 0:
            self._failed(failure, failure.wanted, NO_STACK)

    def _reach(self, mark: Mark) -> None:
        """The program went on to `mark`. (A thread that has not been told of a new tick still stamps an old one.)"""
        if mark.tick > self._mark.tick:
            self._pass_moments(mark.tick)
            if mark.step != self._mark.step:
                self._graph_open = False
        if mark.tick >= self._mark.tick:
            self._mark = mark

    def _pass_moments(self, tick: int) -> None:
        while self._moments and self._moments[-1].tick <= tick:
            moment = self._moments.pop()
            if isinstance(moment, Sighting):
                self._see(moment)
            elif isinstance(moment, Batch):
                self._batch = moment.sizes
            else:
                self._tell(moment.event)

    def _see(self, sighting: Sighting) -> None:
        for address, (size, module) in zip(sighting.addresses, sighting.about, strict=False):
            start = self._blocks.holding(address) if address else None
            life = self._history.lives.get(start) if start is not None else None
            if life is not None and address + size <= life.address + life.charged:
                life.see(sighting.category, module)

    def _allocated(self, entry: Entry, mark: Mark | None) -> None:
        stack = self._stacks.read(entry.get("frames"))
        by_engine = self._is_by_engine(mark, stack)
        activity = BACKWARD if by_engine or stack.in_backward else self._mark.activity
        if activity == BACKWARD:
            if not self._in_pass:
                self._begin_pass()
        else:
            self._in_pass = False
            self._graph_open = activity == FORWARD or (self._graph_open and activity != OPTIMIZER)
        requested = entry["size"]
        charged = self._blocks.add(entry["addr"], requested)
        while self._blocks.corrected:
            address, corrected = self._blocks.corrected.popitem()
            self._history.lives[address].charged = corrected
        phase = phase_of(activity, self._graph_open)
        life = self._born(entry["addr"], requested, charged, entry["stream"], stack, activity, phase)
        life.is_batch_sized = requested in self._batch
        life.passes_at_birth = self._history.passes
        if activity == BACKWARD:
            life.module = mark.module if mark is not None and mark.activity == BACKWARD else ""
            life.from_engine = by_engine and not life.module
            self._passes[-1].append((life, False))
        elif activity in (FORWARD, INFERENCE):
            life.module = self._mark.module
            self._history.lines.note(life.module, stack.frame)

    def _is_by_engine(self, mark: Mark | None, stack: Stack) -> bool:
        """Whether one of the autograd engine's threads made this allocation."""
        if mark is None or not self._marks.tells_threads:
            return stack.from_engine
        return mark.activity == BACKWARD

    def _begin_pass(self) -> None:
        self._in_pass, self._graph_open = True, False
        self._history.passes += 1
        self._passes.append([])

    def _born(
        self,
        address: int,
        requested: int,
        charged: int,
        stream: int,
        stack: Stack,
        activity: str,
        phase: Phase,
    ) -> Life:
        history = self._history
        life = Life(next(history.numbers), address, requested, charged, stream, self._time)
        life.step, life.activity, life.phase = self._mark.step, activity, phase
        life.frame, life.op = stack.frame, stack.op
        replaced = history.lives.get(address)
        if replaced is not None:  # its end is missing from the history
            self._tell(Free(self._time, replaced.id))
        history.lives[address] = life
        self._told.append((self._time, life))
        return life

    def _freed(self, address: int, mark: Mark | None) -> None:
        self._blocks.remove(address)
        life = self._history.lives.pop(address, None)
        if life is None:
            return
        unstamped = mark is None or mark.activity == BACKWARD
        by_engine = unstamped if self._marks.tells_threads else self._in_pass
        life.freed_in = BACKWARD if by_engine else self._mark.activity
        life.freed_by_module = mark is not None and mark.module != ""
        life.passes_seen = self._history.passes - life.passes_at_birth
        if by_engine and self._in_pass:
            self._passes[-1].append((life, True))
        self._tell(Free(self._time, life.id))

    def _segment(self, entry: Entry) -> None:
        change = GROWTH[entry["action"]] * entry["size"]
        self._history.reserved += change
        if entry["action"] == "segment_alloc":
            self._blocks.add_segment(entry["addr"], entry["size"])
        elif entry["action"] == "segment_free":
            self._blocks.remove_segment(entry["addr"])
        self._tell(SegmentChange(self._time, self._history.device, change))

    def _failed(self, failure: Failure, requested: int, stack: Stack) -> None:
        """Memory ran out here. A backward operation's line is found when all places are (see `told`)."""
        in_backward = failure.in_backward or stack.in_backward
        oom = Oom(
            self._time, failure.device, requested, failure.capacity, failure.limit, failure.allocated,
            failure.reserved, failure.cached, failure.fragmented,
            max(self._blocks.largest_gap(), largest_free_block([s for s in self._segments if s.get("is_expandable")])),
            max(failure.capacity - failure.free - failure.reserved, 0), self._mark.step,
            Phase.BACKWARD if in_backward else phase_of(self._mark.activity, self._graph_open),
            failure.module if in_backward else self._mark.module, stack.frame, failure.op or stack.op, failure.message,
        )  # fmt: skip
        self._tell(oom)
        self._failed_in, self._survey = oom.phase, failure.survey
        if failure.survey is not None:
            made = [
                StepStorage(life.address, life.charged, life.frame, life.activity == BACKWARD)
                for life in self._history.lives.values()
                if life.step == self._mark.step
            ]
            holders = failure.survey.holders(made, oom.module)
            for holder in holders.largest:
                self._tell(holder)
            self._tell(HolderCoverage(self._time, holders.total_bytes))
        if failure.others:
            self._tell(OtherProcesses(self._time, failure.others))

    # --- what the lives were

    def told(self) -> list[Timed]:
        """Everything in order, with hindsight."""
        history = self._history
        for life in history.lives.values():
            life.passes_seen = history.passes - life.passes_at_birth
        if self._failed_in is not None:
            see_holders(
                history.lives.values(),
                history.workspaces,
                {} if self._survey is None else self._survey.categories(),
                in_backward=self._failed_in is Phase.BACKWARD,
            )
        place_backward(self._passes, history.lines)
        events: list[Timed] = []
        for life in self._earlier:
            self._judge(life)
            if life.category is not life.told:
                life.told = life.category
                events.append((self._told[0][0] if self._told else self._time, Tag(life.id, life.category)))
        for time, item in self._told:
            if isinstance(item, Life):
                self._judge(item)
                events.append((time, self._alloc(item)))
            elif isinstance(item, Oom) and item.frame is None:
                events.append((time, item._replace(frame=self._line_of_failure(item))))
            else:
                events.append((time, item))
        return events

    def _judge(self, life: Life) -> None:
        if life.category is Category.WORKSPACE and life.freed_in is not None:
            self._history.workspaces.release(life)
        life.category = category_of(life, self._history.workspaces)

    def _alloc(self, life: Life) -> Alloc:
        life.told = life.category
        frame = life.frame or self._history.lines.find(life.module)
        return Alloc(
            life.time, life.id, life.requested, life.charged, self._history.device, life.stream, life.category,
            life.phase, life.step, life.module, frame, life.op,
        )  # fmt: skip

    def _line_of_failure(self, oom: Oom) -> Frame | None:
        """Of the module whose backward operation failed, else of what the pass last had to do with."""
        line = self._history.lines.find(oom.module)
        if line is None and oom.phase is Phase.BACKWARD and self._passes:
            lines = (life.frame for life, _ in reversed(self._passes[-1]) if life.frame is not None)
            line = next(lines, None)
        return line

    def _tell(self, event: Event) -> None:
        self._told.append((self._time, event))

    def _seconds(self, entry: Entry) -> float:
        return max(float(entry["time_us"]) / 1e6 - self._began, 0.0)
