"""Records a run on a real GPU from the history of the CUDA allocator.

The recording does little work while the script runs. The allocator records its actions with Python stacks in a ring
buffer. Calls to modules and optimizers mark these entries with the step, phase and module (`markers`,
`module_markers`), and a few addresses are recorded (`address_owners`). No tensor is kept alive, and the device is never
synchronized. At the end of each step, the allocator's statistics are read once.

The ring is read and converted to events (`history_events`) only in three cases:

- The run ends.
- The script receives a `torch.OutOfMemoryError` (`failures`).
- Three quarters of the ring have been filled since the start of the step with the highest peak so far. The entries of
  this step would soon be overwritten. If every step has a higher peak than the step before, as with a leak, the newest
  step has the highest peak, and the ring is not read.

Events therefore arrive late, but in order. If the entries of a step were overwritten, only its `Step` event is
available.
"""

import contextlib
import functools
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import nn

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.annotations import (
    ForwardProgress,
    GapStarted,
    HistoryUnavailable,
    LibraryRetries,
    RecordingFailed,
)
from legroom.memory.event_base import Annotation
from legroom.memory.events import Event, Sink, Step
from legroom.memory.garbage_collection import no_garbage_collection
from legroom.observe.backward_starts import observe_backward
from legroom.observe.cuda.address_owners import AddressOwners, tensors_in
from legroom.observe.cuda.failures import FailureObserver
from legroom.observe.cuda.history_events import (
    AllocationFailure,
    DeviceHistory,
    LoaderBatch,
    PendingEvent,
    TickRecord,
    TimedEvent,
)
from legroom.observe.cuda.markers import OPTIMIZER, OTHER, Markers
from legroom.observe.cuda.module_markers import ModuleMarkers
from legroom.observe.cuda.step_peaks import StepPeaks
from legroom.observe.cuda.torch_api import AllocatorStats, CudaApi
from legroom.observe.holders import autograd_graph
from legroom.observe.producer import MemoryStats
from legroom.observe.program_state import program_state
from legroom.observe.training import TrainingClock

FIRST_ENTRIES = 20_000
"""The length of each ring buffer until the number of entries per step is known."""
RING_STEPS = 8
"""The number of training steps whose entries should fit into a ring buffer. Eight steps are enough to find growing
memory. A larger ring would slow down the run, because reading an entry takes about 10 µs. A step of ResNet-50 has about
2,700 entries, and a step of a large language model has about 20,000 entries.
"""
MIN_ENTRIES, MAX_ENTRIES = 5_000, 100_000
"""The minimum and maximum number of entries in a ring buffer. An entry with its stack uses about 0.7 KiB of host
memory.
"""
LEARNING_STEPS = 4
"""The number of steps after which the number of entries per step is known."""
CHECK_SECONDS = 0.5
"""The interval in seconds at which module calls read the statistics if no step ends, as in inference without a loader.
"""


def _never_raises(method: Callable[..., None]) -> Callable[..., None]:
    """Decorate a method so that an error in the method ends the recording but not the script. The capture contains the
    error.
    """

    @functools.wraps(method)
    def guarded(self: "CudaHistory", *args: Any, **kwargs: Any) -> None:
        if self._is_off:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._stop_after_error(method.__name__, error)

    return guarded


class CudaHistory:
    def __init__(self, sink: Sink, api: CudaApi | None = None, peaks: StepPeaks | None = None) -> None:
        self.sink = sink
        self.followers = 0
        """The number of other recordings that also receive the events (see `observe.following`)."""
        self._api = api or CudaApi()
        self._peaks = peaks or StepPeaks()
        self._markers = Markers()
        self._owners = AddressOwners()
        self._modules = ModuleMarkers(self._markers, self._root_called, self._activity_outside)
        self._clock = TrainingClock(
            on_step_end=self._step_ended, on_optimizer=self._optimizer_stepped, on_batch=self._batch_loaded
        )
        self._failures = FailureObserver(self._api, self._owners, self._on_oom_error)
        self._unpacking = contextlib.ExitStack()
        self._histories: dict[int, DeviceHistory] = {}
        self._rings: dict[int, _Ring] = {}
        self._numbers = count(1)
        self._entries = FIRST_ENTRIES
        self._next_entries = FIRST_ENTRIES
        self._max_per_step = 0
        self._batches: deque[LoaderBatch] = deque(maxlen=AddressOwners.KEEP_TRANSIENT)
        self._pending: deque[tuple[int, PendingEvent]] = deque()
        """The events to send later, each with the number of history entries that its device had at the time of the
        event.
        """
        self._started = time.time()
        self._emitted_until = 0.0
        self._checked = time.perf_counter()
        self._progress = (0, 0.0)
        self._allocated_after_step = 0
        self._in_gap = False
        self._end_backward_observation: Callable[[], None] = lambda: None
        self._is_ready = False
        self._is_recording = False
        self._is_off = False

    # --- the Producer protocol

    def __enter__(self) -> "CudaHistory":
        self._started = time.time()
        self._unpacking.enter_context(autograd_graph.unpack_until_packed())
        self._modules.attach()
        self._clock.attach()
        self._end_backward_observation = observe_backward(self._backward_starts, self._backward_starts)
        _active.append(self)
        self._api.when_ready(self._begin)
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def finish(self) -> None:
        self._read_last()
        for each in self._clock.evaluations_with_gradients(self._seconds):
            self._emit(each)
        self._turn_off()

    def send_pending(self) -> None:
        self._read_last()

    def current_state(self) -> list[Event]:
        """Return events that recreate the state of all devices, as described by the events sent so far."""
        return [event for history in self._histories.values() for event in history.current_state()]

    @property
    def seconds(self) -> float:
        return self._seconds

    @property
    def progress(self) -> tuple[int, float]:
        """The number of completed steps, and the duration of the last step in seconds. The `Step` event of this step
        may not have been sent yet.
        """
        return self._progress

    @property
    def allocated_after_step(self) -> int:
        return self._allocated_after_step

    def memory_stats(self, device: int) -> MemoryStats:
        if not self._is_ready:
            return MemoryStats(0, 0, 0, 0)
        stats = self._api.parse_stats(self._peaks.statistics(device))
        ring = self._rings.get(device) or _Ring()
        return MemoryStats(
            stats.allocated,
            stats.reserved,
            max(stats.peak_allocated, ring.peak_allocated),
            max(stats.peak_reserved, ring.peak_reserved),
        )

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type not in ("cpu", "meta")

    # --- starting and stopping

    @_never_raises
    def _begin(self) -> None:
        reason = self._api.start(self._entries)
        self._is_recording = reason is None
        if reason is not None:
            self._emit_later(0, HistoryUnavailable(self._seconds, reason))
        else:
            self._markers.start(self._api.stamp_setter())
            self._failures.watch()
        self._peaks.install()
        self._is_ready = True

    @_never_raises
    def _read_last(self) -> None:
        if self._is_recording:
            self._read()
        else:
            self._flush_pending()

    def _turn_off(self) -> None:
        if self._is_off:
            return
        self._is_off = True
        if self in _active:
            _active.remove(self)
        self._unpacking.close()
        self._modules.detach()
        self._clock.detach()
        self._end_backward_observation()
        self._failures.close()
        self._peaks.stop()
        if self._is_recording:
            self._is_recording = False
            self._markers.stop()
            self._api.stop()

    def _stop_after_error(self, where: str, error: Exception) -> None:
        text = f"recording the GPU stopped with an internal error in {where.strip('_')} ({type(error).__name__}: {error})"
        self._turn_off()
        self._flush_pending()
        self._emit(RecordingFailed(self._seconds, text))

    def stop_in_child(self) -> None:
        self._is_off = True
        self._modules.detach()
        self._clock.detach()
        self._end_backward_observation()
        self._failures.close()

    @property
    def _seconds(self) -> float:
        return time.time() - self._started

    # --- callbacks

    @_never_raises
    def _root_called(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], activity: str, path: str
    ) -> None:
        self._clock.model_called(module, (*args, *kwargs.values()))
        if not self._is_recording:
            return
        tick = self._markers.advance(activity, path)
        with torch._C.DisableTorchFunction():
            self._owners.root_called(module, (args, kwargs), tick)
        if time.perf_counter() - self._checked > CHECK_SECONDS:
            self._check_peaks()

    @_never_raises
    def _backward_starts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._clock.went_backward()

    def _activity_outside(self) -> str:
        return OPTIMIZER if self._clock.in_optimizer else OTHER

    @_never_raises
    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, done: bool) -> None:
        if not self._is_recording:
            return
        tick = self._markers.advance(OTHER if done else OPTIMIZER)
        with torch._C.DisableTorchFunction():
            if done:
                self._owners.after_optimizer_step(optimizer, tick)
            else:
                self._owners.before_optimizer_step(optimizer, tick)

    @_never_raises
    def _batch_loaded(self, batch: Any) -> None:
        with torch._C.DisableTorchFunction():
            if not self._clock.trains and self._owners.has_gradients():
                self._clock.trains = True  # there was a backward pass, so batches are not steps
            if self._is_recording:
                sizes = frozenset(tensor.nbytes for tensor in tensors_in((batch,)))
                self._batches.append(LoaderBatch(self._markers.advance(OTHER), sizes))

    @_never_raises
    def _step_ended(self, step: int, seconds: float) -> None:
        self._progress = (step + 1, seconds)
        self._markers.step = step + 1
        if self._is_recording:
            self._markers.advance(OTHER)
        if not self._is_ready:
            self._emit_later(0, Step(self._seconds, step, seconds, 0, 0, 0, 0, 0))
            return
        allocated = 0
        for device in self._devices_in_use():
            statistics, peak_allocated, peak_reserved = self._peaks.end_step(device)
            stats = self._api.parse_stats(statistics)
            event = Step(
                self._seconds, step, seconds, device, stats.allocated, stats.reserved, peak_allocated, peak_reserved
            )  # fmt: skip
            self._emit_later(stats.entries, event)
            self._update_ring(device, stats, peak_allocated, peak_reserved)
            allocated += stats.allocated
        self._allocated_after_step = allocated
        if step < LEARNING_STEPS:
            self._resize_rings()
        self._after_check()

    # --- when to read

    def _resize_rings(self) -> None:
        """Adjust the length of the ring buffers to the step with the most entries. The buffers grow immediately, but
        shrink only after the next time they are read.
        """
        if not self._is_recording:
            return
        self._max_per_step = max([self._max_per_step, *(ring.last for ring in self._rings.values())])
        self._next_entries = min(max(RING_STEPS * self._max_per_step, MIN_ENTRIES), MAX_ENTRIES)
        if self._next_entries > self._entries:
            if all(ring.since_reading < self._entries for ring in self._rings.values()):
                self._api.grow(self._next_entries)
                self._entries = self._next_entries
            else:
                self._read()

    def _check_peaks(self) -> None:
        """Read the rings if the entries of a peak could otherwise be overwritten before the step ends."""
        for device in self._devices_in_use():
            stats = self._api.parse_stats(self._peaks.statistics(device))
            self._update_ring(device, stats, stats.peak_allocated, stats.peak_reserved)
        self._after_check()

    def _after_check(self) -> None:
        self._checked = time.perf_counter()
        if not self._is_recording:
            self._flush_pending()
        elif any(ring.age_of_peak >= self._entries * 3 // 4 for ring in self._rings.values()):
            self._read()
        self._emit_lost_steps()

    def _update_ring(
        self, device: int, stats: AllocatorStats, peak_allocated: int, peak_reserved: int
    ) -> None:
        self._rings.setdefault(device, _Ring()).update(stats.entries, peak_allocated, peak_reserved)

    def _devices_in_use(self) -> Sequence[int]:
        # The list is updated every 64 steps.
        if not self._rings or self._progress[0] % 64 == 0:
            every = range(self._api.device_count())
            return [device for device in every if self._api.stats(device).reserved] or [0]
        return list(self._rings)

    def _emit_lost_steps(self) -> None:
        while self._pending:
            entries, pending = self._pending[0]
            device = getattr(pending.event, "device", 0)
            ring = self._rings.get(device)
            if ring is None or ring.entries - entries <= self._entries:
                return
            self._pending.popleft()
            self._begin_gap()
            self._emit(pending.event)

    def _begin_gap(self) -> None:
        if not self._in_gap:
            self._in_gap = True
            self._emit(GapStarted(self._emitted_until))

    # --- reading

    def _on_oom_error(self, failure: AllocationFailure) -> None:
        progress = self._modules.progress
        details = list(program_state(self._seconds, self._clock))
        self._read(failure)
        if progress is not None:
            self._emit(ForwardProgress(self._seconds, progress))
        for detail in details:
            self._emit(detail)
        if self._clock.in_optimizer:
            self._clock.interrupted()
            self._markers.advance(OTHER)

    @_never_raises
    def _read(self, failure: AllocationFailure | None = None) -> None:
        records = self._records_by_tick()
        hidden = self._failures.take_hidden_failures()
        if hidden:
            records.append(PendingEvent(self._markers.tick, LibraryRetries(self._seconds, hidden)))
        with no_garbage_collection():  # the garbage collector would scan a million small objects repeatedly
            snapshot = self._api.snapshot(self._next_entries)
            events = self._events_of(snapshot, records, failure)
            del snapshot
        self._markers.clear_stamps()
        for device, ring in self._rings.items():
            ring.was_read(self._api.stats(device).entries)
        self._entries = self._next_entries
        for _, event in events:
            self._emit(event)

    def _events_of(
        self, snapshot: dict[str, Any], records: Sequence[TickRecord], failure: AllocationFailure | None
    ) -> list[TimedEvent]:
        traces = snapshot["device_traces"]
        if any(self._is_overwritten(device, trace) for device, trace in enumerate(traces)):
            self._begin_gap()
        after_gap, self._in_gap = self._in_gap, False
        settings = parse_settings(snapshot.get("allocator_settings", {}))
        events: list[TimedEvent] = []
        for device, trace in enumerate(traces):
            segments = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
            if trace or segments or device in self._histories or device == 0:
                events += self._history_of(device).read(
                    trace,
                    segments,
                    started=self._started,
                    records=[record for record in records if _belongs_to(record, device)],
                    settings=settings,
                    failure=failure if failure is not None and failure.device == device else None,
                    after_gap=after_gap,
                )
        events.sort(key=lambda timed: timed[0])
        return events

    def _is_overwritten(self, device: int, trace: Sequence[Any]) -> bool:
        """Return whether entries are missing, because the ring was full or the script changed the settings of the
        history.
        """
        ring = self._rings.get(device)
        made = 0 if ring is None else self._api.stats(device).entries - ring.read_at
        return len(trace) >= self._entries or made > 64 + len(trace) * 1.02

    def _records_by_tick(self) -> list[TickRecord]:
        """Return all records since the last reading, in order. The last records contain the current addresses of all
        tensors with a known category.
        """
        with torch._C.DisableTorchFunction():
            now = self._owners.everything(self._markers.tick + 1)
        records: list[TickRecord] = [
            *self._owners.persistent,
            *self._owners.transient,
            *self._batches,
            *(pending for _, pending in self._pending),
        ]
        self._owners.persistent.clear()
        self._owners.transient.clear()
        self._batches.clear()
        self._pending.clear()
        records.sort(key=lambda record: record.tick)
        return [*records, *now]

    def _history_of(self, device: int) -> DeviceHistory:
        history = self._histories.get(device)
        if history is None:
            sizes = self._api.workspace_sizes(device)
            history = self._histories[device] = DeviceHistory(device, self._markers, self._numbers, sizes)
        return history

    def _emit_later(self, entries: int, event: Step | Annotation) -> None:
        self._pending.append((entries, PendingEvent(self._markers.tick, event)))

    def _flush_pending(self) -> None:
        while self._pending:
            self._emit(self._pending.popleft()[1].event)

    def _emit(self, event: Event) -> None:
        self._emitted_until = max(getattr(event, "time", 0.0), self._emitted_until)
        self.sink(event)


class _Ring:
    """Tracks the age of the highest peak's entries in the ring buffer of a device."""

    def __init__(self) -> None:
        self.entries = 0
        self.last = 0
        self.read_at = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._peak_start: int | None = None
        """The number of entries before the step with the highest peak, or None after the entries of this peak were
        read.
        """

    def update(self, entries: int, peak_allocated: int, peak_reserved: int) -> None:
        if peak_allocated > self.peak_allocated or peak_reserved > self.peak_reserved:
            self.peak_allocated = max(peak_allocated, self.peak_allocated)
            self.peak_reserved = max(peak_reserved, self.peak_reserved)
            self._peak_start = self.entries
        self.last = entries - self.entries
        self.entries = entries

    @property
    def age_of_peak(self) -> int:
        """The number of entries since the start of the step with the highest peak, or 0 after the entries of this peak
        were read.
        """
        return 0 if self._peak_start is None else self.entries - self._peak_start

    @property
    def since_reading(self) -> int:
        return self.entries - self.read_at

    def was_read(self, entries: int) -> None:
        self._peak_start = None
        self.read_at = entries


def parse_settings(settings: dict[str, Any]) -> AllocatorSettings:
    """Return the settings of a snapshot that affect block sizes."""
    max_split_size = settings.get("max_split_size", -1)
    divisions = tuple(settings.get("roundup_power2_divisions", {}).values())
    default = AllocatorSettings()
    return AllocatorSettings(
        max_split_size=max_split_size if max_split_size > 0 else None,
        roundup_power2_divisions=divisions
        if len(divisions) == len(default.roundup_power2_divisions)
        else default.roundup_power2_divisions,
        expandable_segments=bool(settings.get("expandable_segments", False)),
    )


def _belongs_to(record: TickRecord, device: int) -> bool:
    # Addresses are unique across devices, so records of addresses belong to every device. Events without a device
    # belong to the first device.
    return not isinstance(record, PendingEvent) or getattr(record.event, "device", 0) == device


_active: list[CudaHistory] = []


def active_history() -> CudaHistory | None:
    return _active[-1] if _active else None


def _stop_in_child() -> None:
    while _active:
        _active.pop().stop_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)
