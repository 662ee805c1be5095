"""Derives the peak, the live storages at any point, and the lines whose memory grows from the events of a run.

A ledger is built from a complete capture or during a run. During a run, `apply` only appends the event to a list, and
the list is processed in batches. A storage can be freed at any moment, so `apply` can be called on any thread, even
during a query.

A long run has more events than fit into memory. With `keep_events`, a ledger keeps about `keep_events` events: the
newest events, and the events around the peaks, the out-of-memory events and the end of the last step. Totals always
cover the whole run. If there are more than `_MAX_STEPS` steps, every second older step is dropped.

The category of a storage may become known after its allocation. The last tag of a storage applies to its whole
lifetime.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Literal

from legroom.errors import UsageError
from legroom.memory.annotations import (
    BroadcastTensors,
    ForwardProgress,
    FoundSetting,
    GapEnded,
    GapStarted,
    HandledError,
    LiveOptimizer,
    ModelCall,
    ProgramState,
)
from legroom.memory.event_base import Annotation, Category, Phase
from legroom.memory.events import Alloc, Event, Free, Holder, Oom, SegmentChange, Step, Tag
from legroom.memory.growth import Growth, GrowthTracker, Line
from legroom.memory.interrupts import delayed_interrupts
from legroom.memory.state import Moment, State
from legroom.memory.timeline import Sample, TimelineBuilder

_BATCH = 4096
_SPAN = 1 << 15
_MAX_STEPS = 5_000
_OOM_DETAILS = (ProgramState, ModelCall, HandledError, BroadcastTensors, LiveOptimizer, FoundSetting)


class Ledger:
    def __init__(self, events: Iterable[Event] = (), *, keep_events: int | None = None) -> None:
        self._keep_events = keep_events
        self._pending: list[Event] = []
        self._lock = Lock()
        self._length = 0
        self._time = 0.0
        self._live: dict[int, Alloc] = {}
        self._fresh: dict[int, Alloc] = {}
        """The live storages that were allocated since the end of the last step and are not yet counted in
        `_DeviceTotals.lines`.
        """
        self._tags: dict[int, Category] = {}
        self._tags_to_keep = 1 << 16
        self._totals: dict[int, _DeviceTotals] = {}
        self._spans = [_Span(start=0, time=0.0, live={}, reserved={})]
        self._steps: list[_StepEnd] = []
        self._every_step = 1
        self._ooms: list[_Failure] = []
        self._annotations: list[Annotation] = []
        self._in_gap = False
        remaining = iter(events)
        while batch := list(islice(remaining, _BATCH)):
            self._process(batch)

    def apply(self, event: Event) -> None:
        self._pending.append(event)
        if len(self._pending) >= _BATCH:
            with delayed_interrupts():
                if self._lock.acquire(blocking=False):
                    try:
                        self._process_pending()
                    finally:
                        self._lock.release()

    def apply_all(self, events: list[Event]) -> None:
        with delayed_interrupts(), self._lock:
            self._pending += events
            self._process_pending()

    def __len__(self) -> int:
        with self._up_to_date():
            return self._length

    @property
    def seconds(self) -> float:
        with self._up_to_date():
            return self._time

    def devices(self) -> list[int]:
        with self._up_to_date():
            return sorted(self._totals)

    def peak(self, device: int = 0, of: Literal["allocated", "reserved"] = "allocated") -> Moment:
        with self._up_to_date():
            totals = self._totals.get(device, _DeviceTotals())
            return totals.peak_allocated if of == "allocated" else totals.peak_reserved

    def peak_of_steps(self, device: int = 0) -> tuple[int, int]:
        """Return the highest allocated and the highest reserved memory of any step. Steps whose events were dropped are
        included.
        """
        with self._up_to_date():
            return self._totals.get(device, _DeviceTotals()).peak_of_steps

    def at(self, index: int, device: int = 0) -> State:
        """Return the state of `device` after event number `index`. An index of -1 refers to the state before the first
        event.
        """
        with self._up_to_date():
            return self._state_after(index, device)

    def at_step(self, step: int, device: int = 0) -> State:
        with self._up_to_date():
            ends = [end for end in self._steps if end.event.device == device]
            for end in ends:
                if end.event.step == step and end.index is not None:
                    return self._state_after(end.index, device)
            if any(end.event.step == step for end in ends):
                raise UsageError(
                    f"Step {step} was dropped from the capture. Only the totals of this step are known."
                )
            known = (
                f"The run has steps {ends[0].event.step} to {ends[-1].event.step}."
                if ends
                else "The run has no steps."
            )
            raise UsageError(f"Step {step} does not exist on device {device}. {known}")

    def at_last_step(self, device: int = 0) -> State | None:
        """Return the state of `device` at the end of the last step whose events were kept, or None if no such step
        exists.
        """
        with self._up_to_date():
            ended = self._totals[device].ended if device in self._totals else None
            return None if ended is None else self._state_after(ended, device)

    def at_oom(self, number: int = 0) -> State:
        """Return the state of the failing device at out-of-memory event `number`, counted from 0."""
        with self._up_to_date():
            failure = self._failure(number)
            return self._state_after(failure.index, failure.event.device)

    def now(self, device: int = 0) -> State:
        with self._up_to_date():
            reserved = self._totals[device].reserved if device in self._totals else 0
            return self._state(self._live, reserved, self._length - 1, self._time, device)

    def steps(self, device: int | None = None) -> list[Step]:
        with self._up_to_date():
            return [end.event for end in self._steps if device is None or end.event.device == device]

    def ooms(self) -> list[Oom]:
        with self._up_to_date():
            return [failure.event for failure in self._ooms]

    def holders(self, number: int = 0) -> list[Holder]:
        with self._up_to_date():
            return list(self._failure(number).holders)

    def annotations(self) -> list[Annotation]:
        with self._up_to_date():
            return list(self._annotations)

    def allocations_before_oom(self, number: int = 0) -> Iterator[Alloc]:
        """Yield the allocations on the failing device before out-of-memory event `number`, newest first, with their
        final categories. Allocations whose events were dropped are not included.
        """
        with self._up_to_date():
            failure = self._failure(number)
            spans = [span for span in self._spans if span.start <= failure.index]
        until = failure.index
        for span in reversed(spans):
            if span.start + len(span.events) < until:
                return  # the events in between were dropped
            for event in reversed(span.events[: until - span.start]):
                if isinstance(event, Alloc) and event.device == failure.event.device:
                    yield self._with_final_category(event)
            until = span.start

    def peak_in(self, phases: Collection[Phase], number: int = 0) -> int:
        """Return the peak of the allocated bytes in these phases before out-of-memory event `number`. Dropped events are
        not included.
        """
        with self._up_to_date():
            failure = self._failure(number)
            device, peak = failure.event.device, 0
            for span in self._spans:
                sizes = {each.id: each.block_bytes for each in span.live.values() if each.device == device}
                total = sum(sizes.values())
                for event in islice(span.events, max(failure.index - span.start, 0)):
                    if isinstance(event, Alloc) and event.device == device:
                        total += event.block_bytes - sizes.get(event.id, 0)
                        sizes[event.id] = event.block_bytes
                        if event.phase in phases:
                            peak = max(peak, total)
                    elif isinstance(event, Free):
                        total -= sizes.pop(event.id, 0)
            return peak

    def progress(self, number: int = 0) -> float | None:
        """Return the fraction of the forward pass that was complete at out-of-memory event `number`, or None if
        unknown.
        """
        with self._up_to_date():
            return self._failure(number).progress

    def details(self, number: int = 0) -> list[Annotation]:
        with self._up_to_date():
            return list(self._failure(number).details)

    def timeline(self, samples: int = 600, device: int = 0) -> list[Sample]:
        """Return the memory of `device` over time, in at most about `samples` samples. The samples include all peaks of
        the kept events.
        """
        with self._up_to_date():
            begin = self._spans[0].time
            builder = TimelineBuilder(device, self._tags, begin=begin, end=self._time, samples=samples)
            for span in self._spans:
                builder.add_events(span.live.values(), span.reserved.get(device, 0), span.events)
            return builder.samples()

    def growth(self, device: int = 0, *, min_steps: int = 5) -> list[Growth]:
        """Return the lines whose memory grew in at least the last `min_steps` steps, fastest first."""
        with self._up_to_date():
            return self._totals.get(device, _DeviceTotals()).growth.growing(min_steps)

    @contextmanager
    def _up_to_date(self) -> Iterator[None]:
        with delayed_interrupts(), self._lock:
            self._process_pending()
            yield

    def _process_pending(self) -> None:
        # Other threads may append at the same time. Each of these two lines is atomic. Replacing the list is not
        # atomic.
        pending = self._pending[:]
        del self._pending[: len(pending)]
        for start in range(0, len(pending), _BATCH):
            self._process(pending[start : start + _BATCH])

    def _process(self, batch: list[Event]) -> None:
        live, fresh, totals_by_device = self._live, self._fresh, self._totals
        self._spans[-1].events += batch
        index, time = self._length - 1, self._time
        for event in batch:
            index += 1
            if isinstance(event, Alloc):
                time, id = event[0], event[1]
                if id in live:
                    self._remove(id)
                live[id] = fresh[id] = event
                totals = totals_by_device.get(event[4])
                if totals is None:
                    totals = totals_by_device[event[4]] = _DeviceTotals()
                totals.latest = event
                totals.allocated += event[3]
                if totals.allocated > totals.highest and not self._in_gap:
                    totals.update_peaks(index, time)
            elif isinstance(event, Free):
                time, id = event
                freed = fresh.pop(id, None)
                if freed is not None:  # most storages are freed in the step that allocates them
                    del live[id]
                    totals_by_device[freed[4]].allocated -= freed[3]
                elif id in live:
                    self._remove(id)
            elif isinstance(event, Tag):
                self._retag(event[0], event[1])
            else:
                self._process_rare(index, event)
        self._length += len(batch)
        self._time = max(self._time, time)
        self._end_span_if_full()

    def _process_rare(self, index: int, event: SegmentChange | Step | Oom | Holder | Annotation) -> None:
        if isinstance(event, Holder):
            if self._ooms:
                self._ooms[-1].holders.append(event)
            return
        self._time = max(self._time, event.time)
        if isinstance(event, Annotation):
            self._annotations.append(event)
            if isinstance(event, ForwardProgress) and self._ooms and 0 <= event.fraction < 1:
                self._ooms[-1].progress = event.fraction
            elif isinstance(event, _OOM_DETAILS) and self._ooms:
                self._ooms[-1].details.append(event)
            if isinstance(event, GapStarted | GapEnded):
                self._in_gap = isinstance(event, GapStarted)
                for totals in self._totals.values():
                    totals.update_peaks(index, event.time)
            return
        totals = self._totals.setdefault(event.device, _DeviceTotals())
        if isinstance(event, SegmentChange):
            totals.reserved += event.bytes
            if not self._in_gap:
                totals.update_peaks(index, event.time)
        elif isinstance(event, Step):
            self._steps.append(_StepEnd(None if self._in_gap else index, event))
            totals.end_step(event)
            if not self._in_gap:
                totals.ended = index
                self._settle()
                totals.growth.end_step(event.step, totals.lines)
        else:
            self._ooms.append(_Failure(index, event, []))

    def _remove(self, id: int) -> None:
        freed = self._live.pop(id)
        self._totals[freed.device].allocated -= freed.block_bytes
        if self._fresh.pop(id, None) is None:
            self._count(freed, -freed.block_bytes)

    def _retag(self, id: int, category: Category) -> None:
        settled = id in self._live and id not in self._fresh
        if settled:
            self._count(self._live[id], -self._live[id].block_bytes)
        self._tags[id] = category
        if settled:
            self._count(self._live[id], self._live[id].block_bytes)

    def _settle(self) -> None:
        for alloc in self._fresh.values():
            self._count(alloc, alloc.block_bytes)
        self._fresh.clear()

    def _count(self, alloc: Alloc, change: int) -> None:
        lines = self._totals[alloc.device].lines
        line = alloc.frame, self._tags.get(alloc.id, alloc.category)
        lines[line] = lines.get(line, 0) + change

    def _failure(self, number: int) -> "_Failure":
        if not 0 <= number < len(self._ooms):
            raise UsageError(
                f"Out-of-memory event {number} does not exist. Number of out-of-memory events in the run: "
                f"{len(self._ooms)}."
            )
        return self._ooms[number]

    def _state_after(self, index: int, device: int) -> State:
        if not -1 <= index < self._length:
            raise UsageError(f"Event {index} does not exist. Number of events in the run: {self._length:,}.")
        span = self._spans[max(bisect_right(self._spans, index, key=lambda span: span.start) - 1, 0)]
        if index not in span and index != span.start - 1:
            raise UsageError(
                f"Event {index:,} was dropped to save memory. Read the event from the run's capture."
            )
        live, reserved, time = dict(span.live), span.reserved.get(device, 0), span.time
        for event in islice(span.events, index - span.start + 1):
            if isinstance(event, Tag | Holder):
                continue
            time = max(time, event.time)
            if isinstance(event, Alloc):
                live.pop(event.id, None)
                live[event.id] = event
            elif isinstance(event, Free):
                live.pop(event.id, None)
            elif isinstance(event, SegmentChange) and event.device == device:
                reserved += event.bytes
        return self._state(live, reserved, index, time, device)

    def _state(self, live: dict[int, Alloc], reserved: int, index: int, time: float, device: int) -> State:
        resolved = [self._with_final_category(alloc) for alloc in live.values() if alloc.device == device]
        return State(device=device, index=index, time=time, live=resolved, reserved=reserved)

    def _with_final_category(self, alloc: Alloc) -> Alloc:
        category = self._tags.get(alloc.id, alloc.category)
        return alloc if category is alloc.category else alloc._replace(category=category)

    def _end_span_if_full(self) -> None:
        # The live storages are copied for each span, so spans are longer if there are many.
        full = max(_SPAN, 8 * len(self._live))
        if self._keep_events is not None:
            full = min(full, max(self._keep_events // 8, len(self._live)))
        if len(self._spans[-1].events) < full:
            return
        reserved = {device: totals.reserved for device, totals in self._totals.items()}
        self._spans.append(
            _Span(start=self._length, time=self._time, live=dict(self._live), reserved=reserved)
        )
        if self._keep_events is not None:
            self._drop_spans(self._keep_events)

    def _drop_spans(self, keep_events: int) -> None:
        kept_events = sum(len(span.events) for span in self._spans)
        needed: set[int | None] = {failure.index for failure in (*self._ooms[:1], *self._ooms[-1:])}
        for totals in self._totals.values():
            needed |= {totals.peak_allocated.index, totals.peak_reserved.index, totals.ended}
        kept = []
        for span in self._spans[:-1]:
            if kept_events <= keep_events or any(index in span for index in needed):
                kept.append(span)
            else:
                kept_events -= len(span.events)
        self._spans = [*kept, self._spans[-1]]
        if len(self._tags) > self._tags_to_keep:
            self._drop_tags()
        if len(self._steps) > _MAX_STEPS:
            self._every_step *= 2
            older, newer = self._steps[: -_MAX_STEPS // 4], self._steps[-_MAX_STEPS // 4 :]
            self._steps = [*(end for end in older if end.event.step % self._every_step == 0), *newer]

    def _drop_tags(self) -> None:
        known = set(self._live)
        for span in self._spans:
            known.update(span.live)
            known.update(event.id for event in span.events if isinstance(event, Alloc))
        self._tags = {id: category for id, category in self._tags.items() if id in known}
        self._tags_to_keep = max(self._tags_to_keep, 2 * len(self._tags))


_NEVER = Moment(-1, 0.0, 0, Phase.OTHER, 0)


@dataclass(slots=True)
class _DeviceTotals:
    """The running totals of one device."""

    allocated: int = 0
    reserved: int = 0
    highest: int = 0
    """`allocated` must exceed this value to be a new peak."""
    steps: int = 0
    ended: int | None = None
    """The index of the event that ended the last step whose events were kept."""
    latest: Alloc | None = None
    peak_allocated: Moment = _NEVER
    peak_reserved: Moment = _NEVER
    peak_of_steps: tuple[int, int] = 0, 0
    lines: dict[Line, int] = field(default_factory=dict)
    growth: GrowthTracker = field(default_factory=GrowthTracker)

    def end_step(self, step: Step) -> None:
        self.steps = step.step + 1
        allocated, reserved = self.peak_of_steps
        self.peak_of_steps = max(allocated, step.peak_allocated), max(reserved, step.peak_reserved)

    def update_peaks(self, index: int, time: float) -> None:
        latest = self.latest
        step = max(self.steps, latest.step if latest else 0)
        phase = latest.phase if latest else Phase.OTHER
        if self.allocated > self.peak_allocated.bytes:
            self.highest = self.allocated
            self.peak_allocated = Moment(index, time, step, phase, self.allocated)
        if self.reserved > self.peak_reserved.bytes:
            self.peak_reserved = Moment(index, time, step, phase, self.reserved)


@dataclass(slots=True)
class _Span:
    """Consecutive events, and the state before the first of them."""

    start: int
    time: float
    live: dict[int, Alloc]
    reserved: dict[int, int]
    events: list[Event] = field(default_factory=list)

    def __contains__(self, index: int | None) -> bool:
        return index is not None and self.start <= index < self.start + len(self.events)


@dataclass(slots=True)
class _StepEnd:
    """The end of a step."""

    index: int | None
    """The index of the event, or None if the events of the step were dropped from the capture."""
    event: Step


@dataclass(slots=True)
class _Failure:
    """An out-of-memory error."""

    index: int
    event: Oom
    holders: list[Holder]
    progress: float | None = None
    details: list[Annotation] = field(default_factory=list)
