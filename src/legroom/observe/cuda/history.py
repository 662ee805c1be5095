"""A run on a real GPU, from the CUDA allocator's own history.

While the script runs, almost nothing happens: the allocator notes what it does, with Python stacks, in a ring of
bounded length; calls of modules and optimizers stamp those notes with the step, phase and module (`cuda_marks`,
`cuda_modules`), and a few addresses are noted (`cuda_sightings`). No tensor is kept alive and the device is never synchronised. At the end of each step
the allocator's statistics are read once.

The ring is read, and turned into events (`cuda_trace`), at three moments only:

- at the end of the run;
- when the script gets a `torch.OutOfMemoryError` (`cuda_failures`);
- when the step with the highest peak so far is about to be overwritten: it began three quarters of a ring ago. So the
  peak is never lost; and where each step is higher than the one before (a leak), the newest is the highest, and nothing
  is ever due.

Events therefore arrive late but in order. Of steps whose entries were overwritten, the `Step` itself remains.
"""

import contextlib
import functools
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import nn

from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.annotations import (
    Annotation,
    ForwardProgress,
    GapStarted,
    HistoryUnavailable,
    LibraryRetries,
    RecordingFailed,
)
from legroom.memory.events import Event, Sink, Step
from legroom.memory.garbage_collection import no_garbage_collection
from legroom.observe.cuda.address_owners import Sightings, tensors_in
from legroom.observe.cuda.failures import Failures
from legroom.observe.cuda.history_events import Batch, DeviceHistory, Failure, Moment, Pending, Timed
from legroom.observe.cuda.markers import OPTIMIZER, OTHER, Marks
from legroom.observe.cuda.module_markers import StampedModules
from legroom.observe.cuda.step_peaks import Peaks
from legroom.observe.cuda.torch_api import CudaCalls, Figures
from legroom.observe.holders import autograd_graph
from legroom.observe.producer import MemoryStats
from legroom.observe.training import TrainingClock

FIRST_ENTRIES = 20_000
"""Length of each device's ring until it is known how many entries a step makes."""
RING_STEPS = 8
"""How many steps the ring should hold: enough to see what grows. (A step of ResNet-50 makes about 2,700 entries, one of
a large language model 20,000.) Not more, because reading costs about 10 µs per entry, in the middle of the run."""
LEAST_ENTRIES, MOST_ENTRIES = 5_000, 100_000
"""An entry with its stack takes about 0.7 KiB of host memory."""
LEARNING_STEPS = 4
"""The first steps tell how many entries a step makes."""
LOOK_SECONDS = 0.5
"""Where no step ends (inference without a loader), the statistics are read this often instead, as modules run."""


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Whatever goes wrong in watching, the script goes on as if it were not watched, and the record says why."""

    @functools.wraps(method)
    def guarded(self: "CudaHistory", *args: Any, **kwargs: Any) -> None:
        if self._is_off:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._give_up(method.__name__, error)

    return guarded


class CudaHistory:
    """Watches the CUDA devices of this process, from entering to `finish`."""

    def __init__(self, sink: Sink, calls: CudaCalls | None = None, peaks: Peaks | None = None) -> None:
        self._sink = sink
        self._calls = calls or CudaCalls()
        self._peaks = peaks or Peaks()
        self._marks = Marks()
        self._sightings = Sightings()
        self._modules = StampedModules(self._marks, self._root_begins, self._activity_outside)
        self._clock = TrainingClock(
            on_step_end=self._step_ended, on_optimizer=self._optimizer_at_work, on_batch=self._batch_given
        )
        self._failures = Failures(self._calls, self._sightings, self._error_seen)
        self._unpacking = contextlib.ExitStack()
        self._histories: dict[int, DeviceHistory] = {}
        self._rings: dict[int, _Ring] = {}
        self._numbers = count(1)
        self._entries = FIRST_ENTRIES
        """Length of the rings."""
        self._next_entries = FIRST_ENTRIES
        """... after the next reading."""
        self._most_per_step = 0
        self._batches: deque[Batch] = deque(maxlen=Sightings.KEEP_PASSING)
        self._pending: deque[tuple[int, Pending]] = deque()
        """Each with the entries that its device had had by then."""
        self._began = time.time()
        self._told_until = 0.0
        self._looked = time.perf_counter()
        self._progress = (0, 0.0)
        self._in_gap = False
        """Whether the sink has been told of steps without their entries."""
        self._is_ready = False
        self._records = False
        self._is_off = False
        """For good: finished, broken, or in a forked child."""

    # --- what a session asks

    def __enter__(self) -> "CudaHistory":
        self._began = time.time()
        self._unpacking.enter_context(autograd_graph.unpack_until_packed())
        self._modules.attach()
        self._clock.attach()
        _silence_in_children(self)
        self._calls.when_ready(self._begin)
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Read what is left and stop watching. Safe to call twice."""
        self._read_last()
        self._turn_off()

    @property
    def progress(self) -> tuple[int, float]:
        """Steps completed, and how many seconds the last one took. (`Step` events come later.)"""
        return self._progress

    def memory_stats(self, device: int) -> MemoryStats:
        if not self._is_ready:
            return MemoryStats(0, 0, 0, 0)
        figures = self._calls.figures_of(self._peaks.statistics(device))
        ring = self._rings.get(device) or _Ring()
        return MemoryStats(
            figures.allocated,
            figures.reserved,
            max(figures.peak_allocated, ring.peak_allocated),
            max(figures.peak_reserved, ring.peak_reserved),
        )

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type not in ("cpu", "meta")

    # --- starting and stopping

    @_harmless
    def _begin(self) -> None:
        """CUDA is initialised."""
        reason = self._calls.start(self._entries)
        self._records = reason is None
        if reason is not None:
            self._later(0, HistoryUnavailable(self._seconds, reason))
        else:
            self._marks.start(self._calls.stamper())
            self._failures.watch()
        self._peaks.install()
        self._is_ready = True

    @_harmless
    def _read_last(self) -> None:
        if self._records:
            self._read()
        else:
            self._flush_pending()

    def _turn_off(self) -> None:
        if self._is_off:
            return
        self._is_off = True
        self._unpacking.close()
        self._modules.detach()
        self._clock.detach()
        self._failures.close()
        self._peaks.restore()
        if self._records:
            self._records = False
            self._marks.stop()
            self._calls.stop()

    def _give_up(self, where: str, error: Exception) -> None:
        text = f"watching the GPU ended early, in {where.strip('_')}: {type(error).__name__}: {error}"
        self._turn_off()
        self._flush_pending()
        self._tell(RecordingFailed(self._seconds, text))

    def silence(self) -> None:
        """In a forked child, nothing is watched and nothing is told."""
        self._is_off = True
        self._modules.detach()
        self._clock.detach()
        self._failures.close()

    @property
    def _seconds(self) -> float:
        return time.time() - self._began

    # --- what the script does

    @_harmless
    def _root_begins(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], activity: str, path: str
    ) -> None:
        self._clock.model_called()
        if not self._records:
            return
        tick = self._marks.advance(activity, path)
        with torch._C.DisableTorchFunction():
            self._sightings.root_begins(module, (args, kwargs), tick)
        if time.perf_counter() - self._looked > LOOK_SECONDS:
            self._look()

    def _activity_outside(self) -> str:
        return OPTIMIZER if self._clock.in_optimizer else OTHER

    @_harmless
    def _optimizer_at_work(self, optimizer: torch.optim.Optimizer, done: bool) -> None:
        if not self._records:
            return
        tick = self._marks.advance(OTHER if done else OPTIMIZER)
        with torch._C.DisableTorchFunction():
            if done:
                self._sightings.optimizer_ends(optimizer, tick)
            else:
                self._sightings.optimizer_begins(optimizer, tick)

    @_harmless
    def _batch_given(self, batch: Any) -> None:
        with torch._C.DisableTorchFunction():
            if not self._clock.trains and self._sightings.any_gradient():
                self._clock.trains = True  # a backward pass was there, so batches are no steps
            if self._records:
                sizes = frozenset(tensor.nbytes for tensor in tensors_in((batch,)))
                self._batches.append(Batch(self._marks.advance(OTHER), sizes))

    @_harmless
    def _step_ended(self, step: int, seconds: float) -> None:
        self._progress = (step + 1, seconds)
        self._marks.step = step + 1
        if self._records:
            self._marks.advance(OTHER)
        if not self._is_ready:
            self._later(0, Step(self._seconds, step, seconds, 0, 0, 0, 0, 0))
            return
        for device in self._devices_in_use():
            statistics, peak_allocated, peak_reserved = self._peaks.end_step(device)
            figures = self._calls.figures_of(statistics)
            event = Step(
                self._seconds, step, seconds, device, figures.allocated, figures.reserved, peak_allocated, peak_reserved
            )  # fmt: skip
            self._later(figures.entries, event)
            self._consider(device, figures, peak_allocated, peak_reserved)
        if step < LEARNING_STEPS:
            self._fit_rings()
        self._look_done()

    # --- when to read

    def _fit_rings(self) -> None:
        """Make the rings as long as the largest step so far wants them: longer now, shorter at the next reading."""
        if not self._records:
            return
        self._most_per_step = max([self._most_per_step, *(ring.last for ring in self._rings.values())])
        self._next_entries = min(max(RING_STEPS * self._most_per_step, LEAST_ENTRIES), MOST_ENTRIES)
        if self._next_entries > self._entries:
            if all(ring.since_reading < self._entries for ring in self._rings.values()):
                self._calls.grow(self._next_entries)
                self._entries = self._next_entries
            else:
                self._read()

    def _look(self) -> None:
        """Between steps: is there a peak to be read before it is lost?"""
        for device in self._devices_in_use():
            figures = self._calls.figures_of(self._peaks.statistics(device))
            self._consider(device, figures, figures.peak_allocated, figures.peak_reserved)
        self._look_done()

    def _look_done(self) -> None:
        self._looked = time.perf_counter()
        if not self._records:
            self._flush_pending()
        elif any(ring.age_of_peak >= self._entries * 3 // 4 for ring in self._rings.values()):
            self._read()
        self._tell_lost_steps()

    def _consider(self, device: int, figures: Figures, peak_allocated: int, peak_reserved: int) -> None:
        self._rings.setdefault(device, _Ring()).consider(figures.entries, peak_allocated, peak_reserved)

    def _devices_in_use(self) -> Sequence[int]:
        """Those that hold memory. Which ones do is asked anew now and then."""
        if not self._rings or self._progress[0] % 64 == 0:
            every = range(self._calls.device_count())
            return [device for device in every if self._calls.figures(device).reserved] or [0]
        return list(self._rings)

    def _tell_lost_steps(self) -> None:
        """Steps whose entries are overwritten by now wait for nothing more."""
        while self._pending:
            entries, pending = self._pending[0]
            device = getattr(pending.event, "device", 0)
            ring = self._rings.get(device)
            if ring is None or ring.entries - entries <= self._entries:
                return
            self._pending.popleft()
            self._begin_gap()
            self._tell(pending.event)

    def _begin_gap(self) -> None:
        if not self._in_gap:
            self._in_gap = True
            self._tell(GapStarted(self._told_until))

    # --- reading

    def _error_seen(self, failure: Failure) -> None:
        progress = self._modules.progress
        self._read(failure)
        if progress is not None:
            self._tell(ForwardProgress(self._seconds, progress))
        if self._clock.in_optimizer:
            self._clock.interrupted()
            self._marks.advance(OTHER)

    @_harmless
    def _read(self, failure: Failure | None = None) -> None:
        """Turn the rings into events."""
        moments = self._moments()
        swallowed = self._failures.take_swallowed()
        if swallowed:
            moments.append(Pending(self._marks.tick, LibraryRetries(self._seconds, swallowed)))
        with no_garbage_collection():  # it would look through a million small objects, again and again
            snapshot = self._calls.snapshot(self._next_entries)
            told = self._events_of(snapshot, moments, failure)
            del snapshot
        self._marks.forget_stamps()
        for device, ring in self._rings.items():
            ring.was_read(self._calls.figures(device).entries)
        self._entries = self._next_entries
        for _, event in told:
            self._tell(event)

    def _events_of(
        self, snapshot: dict[str, Any], moments: Sequence[Moment], failure: Failure | None
    ) -> list[Timed]:
        """What every device's history tells, in order."""
        traces = snapshot["device_traces"]
        if any(self._is_overwritten(device, trace) for device, trace in enumerate(traces)):
            self._begin_gap()
        after_gap, self._in_gap = self._in_gap, False
        settings = settings_of(snapshot.get("allocator_settings", {}))
        told: list[Timed] = []
        for device, trace in enumerate(traces):
            segments = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
            if trace or segments or device in self._histories or device == 0:
                told += self._history_of(device).read(
                    trace,
                    segments,
                    began=self._began,
                    moments=[moment for moment in moments if _concerns(moment, device)],
                    settings=settings,
                    failure=failure if failure is not None and failure.device == device else None,
                    after_gap=after_gap,
                )
        told.sort(key=lambda timed: timed[0])
        return told

    def _is_overwritten(self, device: int, trace: Sequence[Any]) -> bool:
        """Whether entries are missing: the ring was full, or the script itself has meddled with the history."""
        ring = self._rings.get(device)
        made = 0 if ring is None else self._calls.figures(device).entries - ring.read_at
        return len(trace) >= self._entries or made > 64 + len(trace) * 1.02

    def _moments(self) -> list[Moment]:
        """Everything noted since the last reading, in order, and what can be seen now."""
        with torch._C.DisableTorchFunction():
            now = self._sightings.everything(self._marks.tick + 1)
        noted: list[Moment] = [
            *self._sightings.standing,
            *self._sightings.passing,
            *self._batches,
            *(pending for _, pending in self._pending),
        ]
        self._sightings.standing.clear()
        self._sightings.passing.clear()
        self._batches.clear()
        self._pending.clear()
        noted.sort(key=lambda moment: moment.tick)
        return [*noted, *now]

    def _history_of(self, device: int) -> DeviceHistory:
        history = self._histories.get(device)
        if history is None:
            sizes = self._calls.workspace_sizes(device)
            history = self._histories[device] = DeviceHistory(device, self._marks, self._numbers, sizes)
        return history

    def _later(self, entries: int, event: Step | Annotation) -> None:
        self._pending.append((entries, Pending(self._marks.tick, event)))

    def _flush_pending(self) -> None:
        while self._pending:
            self._tell(self._pending.popleft()[1].event)

    def _tell(self, event: Event) -> None:
        self._told_until = max(getattr(event, "time", 0.0), self._told_until)
        self._sink(event)


class _Ring:
    """How far back a device's highest peak lies in its ring."""

    def __init__(self) -> None:
        self.entries = 0
        """Made so far, up to the last time that it was asked."""
        self.last = 0
        """Made in the last step."""
        self.read_at = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._peak_began: int | None = None
        """The entries made before the step with the highest peak; None once that was read."""

    def consider(self, entries: int, peak_allocated: int, peak_reserved: int) -> None:
        """A step (or a stretch of the run without steps) has ended, with these peaks."""
        if peak_allocated > self.peak_allocated or peak_reserved > self.peak_reserved:
            self.peak_allocated = max(peak_allocated, self.peak_allocated)
            self.peak_reserved = max(peak_reserved, self.peak_reserved)
            self._peak_began = self.entries
        self.last = entries - self.entries
        self.entries = entries

    @property
    def age_of_peak(self) -> int:
        """Entries made since the highest step began; 0 when that was read."""
        return 0 if self._peak_began is None else self.entries - self._peak_began

    @property
    def since_reading(self) -> int:
        return self.entries - self.read_at

    def was_read(self, entries: int) -> None:
        self._peak_began = None
        self.read_at = entries


def settings_of(said: dict[str, Any]) -> AllocatorSettings:
    """The allocator's settings as a snapshot tells them, as far as they change what a block is charged."""
    max_split_size = said.get("max_split_size", -1)
    divisions = tuple(said.get("roundup_power2_divisions", {}).values())
    default = AllocatorSettings()
    return AllocatorSettings(
        max_split_size=max_split_size if max_split_size > 0 else None,
        roundup_power2_divisions=divisions
        if len(divisions) == len(default.roundup_power2_divisions)
        else default.roundup_power2_divisions,
        expandable_segments=bool(said.get("expandable_segments", False)),
    )


def _concerns(moment: Moment, device: int) -> bool:
    """Addresses differ between devices; events name theirs, or none and then belong to the first."""
    return not isinstance(moment, Pending) or getattr(moment.event, "device", 0) == device


def _silence_in_children(history: CudaHistory) -> None:
    reference = weakref.ref(history)

    def silence() -> None:
        known = reference()
        if known is not None:
            known.silence()

    os.register_at_fork(after_in_child=silence)
