"""Folds events into what people ask about: the peak, what was alive at any moment, what grows.

It takes a whole capture, or a run as it goes. Live, `apply` only notes an event and now and then works through those
noted: a storage may die, and `apply` be called for it, at any moment, in any thread, even while a question is being
answered. A long run has more events than there is memory for; with `remember` a ledger keeps about so many: those
around the peaks, the out-of-memory events and the last step's end, and the newest. What it says of any other moment is
said from the totals that it carries on, and of very many steps it keeps every second, fourth, ... of the older ones.

What a storage is may become known after its birth: its last tag counts for its whole life.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Literal

from legroom.errors import UsageError
from legroom.memory.annotations import Annotation, ForwardProgress, GapEnded, GapStarted
from legroom.memory.events import Alloc, Category, Event, Free, Holder, Oom, Phase, Segment, Step, Tag
from legroom.memory.growth import Growth, GrowthWatch, Line
from legroom.memory.interrupts import later_interrupts
from legroom.memory.state import Moment, State
from legroom.memory.timeline import Sample, TimelineBuilder

_BATCH = 4096
_SPAN = 1 << 15
_MOST_STEPS = 20_000
"""Step ends that a ledger keeps which does not keep everything."""


class Ledger:
    """A run, folded. `apply` is a Sink."""

    def __init__(self, events: Iterable[Event] = (), *, remember: int | None = None) -> None:
        """`remember`: how many events to keep, about; None for all."""
        self._remember = remember
        self._noted: list[Event] = []
        self._lock = Lock()
        self._length = 0
        self._time = 0.0
        self._live: dict[int, Alloc] = {}
        self._fresh: dict[int, Alloc] = {}
        """Those of `_live` that were born since the last step ended: not yet counted in any gauge's `lines`."""
        self._tags: dict[int, Category] = {}
        self._tags_to_keep = 1 << 16
        self._gauges: dict[int, _Gauge] = {}
        self._spans = [_Span(start=0, time=0.0, live={}, reserved={})]
        self._steps: list[_StepEnd] = []
        self._every_step = 1
        self._ooms: list[_Failure] = []
        self._annotations: list[Annotation] = []
        self._in_gap = False
        remaining = iter(events)
        while batch := list(islice(remaining, _BATCH)):
            self._fold(batch)

    def apply(self, event: Event) -> None:
        self._noted.append(event)
        if len(self._noted) >= _BATCH:
            with later_interrupts():
                if self._lock.acquire(blocking=False):
                    try:
                        self._fold_noted()
                    finally:
                        self._lock.release()

    def __len__(self) -> int:
        """How many events there were."""
        with self._up_to_date():
            return self._length

    @property
    def seconds(self) -> float:
        """When the last event was, counted from the run's beginning."""
        with self._up_to_date():
            return self._time

    def devices(self) -> list[int]:
        with self._up_to_date():
            return sorted(self._gauges)

    def peak(self, device: int = 0, of: Literal["allocated", "reserved"] = "allocated") -> Moment:
        """When the most was allocated, or reserved, for the first time."""
        with self._up_to_date():
            gauge = self._gauges.get(device, _Gauge())
            return gauge.peak_allocated if of == "allocated" else gauge.peak_reserved

    def peak_of_steps(self, device: int = 0) -> tuple[int, int]:
        """The most that was allocated, and reserved, as the steps themselves tell: it may be more than the events that are left show."""
        with self._up_to_date():
            return self._gauges.get(device, _Gauge()).peak_of_steps

    def at(self, index: int, device: int = 0) -> State:
        """What `device` held after event number `index`; -1 is before the first."""
        with self._up_to_date():
            return self._state_after(index, device)

    def at_step(self, step: int, device: int = 0) -> State:
        """What `device` held when that step ended."""
        with self._up_to_date():
            ends = [end for end in self._steps if end.event.device == device]
            for end in ends:
                if end.event.step == step and end.index is not None:
                    return self._state_after(end.index, device)
            if any(end.event.step == step for end in ends):
                raise UsageError(f"step {step} was dropped from the capture: only its totals are known")
            known = f"from {ends[0].event.step} to {ends[-1].event.step}" if ends else "none"
            raise UsageError(f"there is no step {step} on device {device}: known are {known}")

    def at_last_step(self, device: int = 0) -> State | None:
        """What `device` held at the end of the last step whose events are known; None before there is one."""
        with self._up_to_date():
            ended = self._gauges[device].ended if device in self._gauges else None
            return None if ended is None else self._state_after(ended, device)

    def at_oom(self, number: int = 0) -> State:
        """What the failing device held at that out-of-memory event, counted from 0."""
        with self._up_to_date():
            failure = self._failure(number)
            return self._state_after(failure.index, failure.event.device)

    def now(self, device: int = 0) -> State:
        """What `device` holds after the last event."""
        with self._up_to_date():
            reserved = self._gauges[device].reserved if device in self._gauges else 0
            return self._state(self._live, reserved, self._length - 1, self._time, device)

    def steps(self, device: int | None = None) -> list[Step]:
        """The steps, of every device or of one."""
        with self._up_to_date():
            return [end.event for end in self._steps if device is None or end.event.device == device]

    def ooms(self) -> list[Oom]:
        with self._up_to_date():
            return [failure.event for failure in self._ooms]

    def holders(self, number: int = 0) -> list[Holder]:
        """Who held memory at that out-of-memory event, counted from 0."""
        with self._up_to_date():
            return list(self._failure(number).holders)

    def annotations(self) -> list[Annotation]:
        with self._up_to_date():
            return list(self._annotations)

    def births_before_oom(self, number: int = 0) -> Iterator[Alloc]:
        """Storages born on the failing device before that out-of-memory event, counted from 0: the newest first, as far back as is
        remembered, with their final categories."""
        with self._up_to_date():
            failure = self._failure(number)
            spans = [span for span in self._spans if span.start <= failure.index]
        until = failure.index
        for span in reversed(spans):
            if span.start + len(span.events) < until:
                return  # what came between is forgotten
            for event in reversed(span.events[: until - span.start]):
                if isinstance(event, Alloc) and event.device == failure.event.device:
                    yield self._with_final_category(event)
            until = span.start

    def progress(self, number: int = 0) -> float | None:
        """The fraction of the forward pass that was complete at that out-of-memory event; None if unknown."""
        with self._up_to_date():
            return self._failure(number).progress

    def timeline(self, samples: int = 600, device: int = 0) -> list[Sample]:
        """The device's memory over time, as far as it is remembered, in at most about so many samples; every peak is among them."""
        with self._up_to_date():
            begin = self._spans[0].time
            builder = TimelineBuilder(device, self._tags, begin=begin, end=self._time, samples=samples)
            for span in self._spans:
                builder.add_events(span.live.values(), span.reserved.get(device, 0), span.events)
            return builder.samples()

    def growth(self, device: int = 0, *, least_steps: int = 5) -> list[Growth]:
        """The lines that held more at the end of each of the last steps, over at least so many; the fastest first."""
        with self._up_to_date():
            return self._gauges.get(device, _Gauge()).growth.growing(least_steps)

    @contextmanager
    def _up_to_date(self) -> Iterator[None]:
        with later_interrupts(), self._lock:
            self._fold_noted()
            yield

    def _fold_noted(self) -> None:
        # Other threads may append meanwhile. Each of these two lines is atomic; swapping in a new list is not.
        batch = self._noted[:]
        del self._noted[: len(batch)]
        self._fold(batch)

    def _fold(self, batch: list[Event]) -> None:
        live, fresh, gauges = self._live, self._fresh, self._gauges
        self._spans[-1].events += batch
        index, time = self._length - 1, self._time
        for event in batch:
            index += 1
            if isinstance(event, Alloc):
                time, id = event[0], event[1]
                if id in live:
                    self._bury(id)
                live[id] = fresh[id] = event
                gauge = gauges.get(event[4])
                if gauge is None:
                    gauge = gauges[event[4]] = _Gauge()
                gauge.latest = event
                gauge.allocated += event[3]
                if gauge.allocated > gauge.highest and not self._in_gap:
                    gauge.note_peaks(index, time)
            elif isinstance(event, Free):
                time, id = event
                dead = fresh.pop(id, None)
                if dead is not None:  # most die in the step that they were born in
                    del live[id]
                    gauges[dead[4]].allocated -= dead[3]
                elif id in live:
                    self._bury(id)
            elif isinstance(event, Tag):
                self._retag(event[0], event[1])
            else:
                self._fold_rare(index, event)
        self._length += len(batch)
        self._time = max(self._time, time)
        self._end_span_if_full()

    def _fold_rare(self, index: int, event: Segment | Step | Oom | Holder | Annotation) -> None:
        if isinstance(event, Holder):
            if self._ooms:
                self._ooms[-1].holders.append(event)
            return
        self._time = max(self._time, event.time)
        if isinstance(event, Annotation):
            self._annotations.append(event)
            if isinstance(event, ForwardProgress) and self._ooms and 0 <= event.fraction < 1:
                self._ooms[-1].progress = event.fraction
            if isinstance(event, GapStarted | GapEnded):
                self._in_gap = isinstance(event, GapStarted)
                for gauge in self._gauges.values():
                    gauge.note_peaks(index, event.time)
            return
        gauge = self._gauges.setdefault(event.device, _Gauge())
        if isinstance(event, Segment):
            gauge.reserved += event.bytes
            if not self._in_gap:
                gauge.note_peaks(index, event.time)
        elif isinstance(event, Step):
            self._steps.append(_StepEnd(None if self._in_gap else index, event))
            gauge.end_step(event)
            if not self._in_gap:
                gauge.ended = index
                self._settle()
                gauge.growth.end_step(event.step, gauge.lines)
        else:
            self._ooms.append(_Failure(index, event, []))

    def _bury(self, id: int) -> None:
        dead = self._live.pop(id)
        self._gauges[dead.device].allocated -= dead.block_bytes
        if self._fresh.pop(id, None) is None:
            self._count(dead, -dead.block_bytes)

    def _retag(self, id: int, category: Category) -> None:
        settled = id in self._live and id not in self._fresh
        if settled:
            self._count(self._live[id], -self._live[id].block_bytes)
        self._tags[id] = category
        if settled:
            self._count(self._live[id], self._live[id].block_bytes)

    def _settle(self) -> None:
        """Count what was born in the step that ends and is still alive."""
        for alloc in self._fresh.values():
            self._count(alloc, alloc.block_bytes)
        self._fresh.clear()

    def _count(self, alloc: Alloc, change: int) -> None:
        lines = self._gauges[alloc.device].lines
        line = alloc.frame, self._tags.get(alloc.id, alloc.category)
        lines[line] = lines.get(line, 0) + change

    def _failure(self, number: int) -> "_Failure":
        if not 0 <= number < len(self._ooms):
            raise UsageError(f"there is no out-of-memory event {number}: the run has {len(self._ooms)}")
        return self._ooms[number]

    def _state_after(self, index: int, device: int) -> State:
        if not -1 <= index < self._length:
            raise UsageError(f"there is no event {index}: the run has {self._length:,}")
        span = self._spans[max(bisect_right(self._spans, index, key=lambda span: span.start) - 1, 0)]
        if index not in span and index != span.start - 1:
            raise UsageError(f"event {index:,} is no longer remembered: read it from the run's capture")
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
            elif isinstance(event, Segment) and event.device == device:
                reserved += event.bytes
        return self._state(live, reserved, index, time, device)

    def _state(self, live: dict[int, Alloc], reserved: int, index: int, time: float, device: int) -> State:
        resolved = [self._with_final_category(alloc) for alloc in live.values() if alloc.device == device]
        return State(device=device, index=index, time=time, live=resolved, reserved=reserved)

    def _with_final_category(self, alloc: Alloc) -> Alloc:
        category = self._tags.get(alloc.id, alloc.category)
        return alloc if category is alloc.category else alloc._replace(category=category)

    def _end_span_if_full(self) -> None:
        # What is alive is copied for each span, so where much is, spans are longer.
        full = max(_SPAN, 8 * len(self._live))
        if self._remember is not None:
            full = min(full, self._remember // 8)
        if len(self._spans[-1].events) < full:
            return
        reserved = {device: gauge.reserved for device, gauge in self._gauges.items()}
        self._spans.append(
            _Span(start=self._length, time=self._time, live=dict(self._live), reserved=reserved)
        )
        if self._remember is not None:
            self._forget(self._remember)

    def _forget(self, remember: int) -> None:
        remembered = sum(len(span.events) for span in self._spans)
        precious: set[int | None] = {failure.index for failure in (*self._ooms[:1], *self._ooms[-1:])}
        for gauge in self._gauges.values():
            precious |= {gauge.peak_allocated.index, gauge.peak_reserved.index, gauge.ended}
        kept = []
        for span in self._spans[:-1]:
            if remembered <= remember or any(index in span for index in precious):
                kept.append(span)
            else:
                remembered -= len(span.events)
        self._spans = [*kept, self._spans[-1]]
        if len(self._tags) > self._tags_to_keep:
            self._forget_tags()
        if len(self._steps) > _MOST_STEPS:
            self._every_step *= 2
            older, newer = self._steps[: -_MOST_STEPS // 4], self._steps[-_MOST_STEPS // 4 :]
            self._steps = [*(end for end in older if end.event.step % self._every_step == 0), *newer]

    def _forget_tags(self) -> None:
        known = set(self._live)
        for span in self._spans:
            known.update(span.live)
            known.update(event.id for event in span.events if isinstance(event, Alloc))
        self._tags = {id: category for id, category in self._tags.items() if id in known}
        self._tags_to_keep = max(self._tags_to_keep, 2 * len(self._tags))


_NEVER = Moment(-1, 0.0, 0, Phase.OTHER, 0)


@dataclass(slots=True)
class _Gauge:
    """What is known of one device as the fold goes on."""

    allocated: int = 0
    reserved: int = 0
    highest: int = 0
    """What `allocated` must exceed to be a peak."""
    steps: int = 0
    ended: int | None = None
    """The event at which the last step ended whose events are known."""
    latest: Alloc | None = None
    peak_allocated: Moment = _NEVER
    peak_reserved: Moment = _NEVER
    peak_of_steps: tuple[int, int] = 0, 0
    """The highest that any step told, allocated and reserved."""
    lines: dict[Line, int] = field(default_factory=dict)
    growth: GrowthWatch = field(default_factory=GrowthWatch)

    def end_step(self, step: Step) -> None:
        self.steps = step.step + 1
        allocated, reserved = self.peak_of_steps
        self.peak_of_steps = max(allocated, step.peak_allocated), max(reserved, step.peak_reserved)

    def note_peaks(self, index: int, time: float) -> None:
        born = self.latest
        step = max(self.steps, born.step if born else 0)
        phase = born.phase if born else Phase.OTHER
        if self.allocated > self.peak_allocated.bytes:
            self.highest = self.allocated
            self.peak_allocated = Moment(index, time, step, phase, self.allocated)
        if self.reserved > self.peak_reserved.bytes:
            self.peak_reserved = Moment(index, time, step, phase, self.reserved)


@dataclass(slots=True)
class _Span:
    """A stretch of events and the state in which it began."""

    start: int
    time: float
    live: dict[int, Alloc]
    reserved: dict[int, int]
    events: list[Event] = field(default_factory=list)

    def __contains__(self, index: int | None) -> bool:
        return index is not None and self.start <= index < self.start + len(self.events)


@dataclass(slots=True)
class _StepEnd:
    index: int | None
    """None for a step whose events were dropped from the capture."""
    event: Step


@dataclass(slots=True)
class _Failure:
    index: int
    event: Oom
    holders: list[Holder]
    progress: float | None = None
