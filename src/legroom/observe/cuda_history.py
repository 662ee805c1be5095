"""A run on a real GPU, from the CUDA allocator's own history.

While the script runs, almost nothing happens: the allocator notes what it does, with Python stacks, in a ring of
bounded length, and torch's hooks stamp those notes with the step, phase and module (`cuda_marks`) and note a few
addresses (`cuda_sightings`). No tensor is kept alive and the device is never synchronised. At the end of each step
the allocator's statistics are read once.

The ring is read, and turned into events (`cuda_trace`), at three moments only:

- at the end of the run;
- when the script gets a `torch.OutOfMemoryError` (`cuda_failures`);
- when the step with the highest peak so far is about to be overwritten, because it began `DUE` entries ago. So the peak
  is never lost; and where each step is higher than the one before (a leak), the newest is the highest, and nothing is
  ever due.

Events therefore arrive late but in order. Of steps whose entries were overwritten, the `Step` itself remains.
"""

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

from legroom.memory.allocator_settings import AllocatorSettings
from legroom.memory.events import Event, Note, Sink, Step
from legroom.observe.cuda_calls import CudaCalls, Figures
from legroom.observe.cuda_failures import Failures
from legroom.observe.cuda_marks import OPTIMIZER, OTHER, Marks
from legroom.observe.cuda_modules import StampedModules
from legroom.observe.cuda_peaks import Peaks
from legroom.observe.cuda_sightings import Sightings, tensors_in
from legroom.observe.cuda_trace import Batch, DeviceHistory, Failure, Moment, Pending, Timed
from legroom.observe.training import TrainingClock

ENTRIES = 100_000
"""Length of each device's ring. A step of ResNet-50 makes about 2,000 entries, one of a large language model some
20,000; an entry with its stack takes about half a KiB of host memory, and reading a full ring about a second."""
DUE = ENTRIES * 3 // 4
"""A peak this far back is read before it is lost; the last quarter is room for the step in progress."""
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
        self._histories: dict[int, DeviceHistory] = {}
        self._rings: dict[int, _Ring] = {}
        self._numbers = count(1)
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

    def figures(self, device: int) -> tuple[int, int, int, int]:
        """Allocated and reserved bytes now, and their peaks over the run."""
        if not self._is_ready:
            return 0, 0, 0, 0
        figures = self._calls.figures_of(self._peaks.statistics(device))
        ring = self._rings.get(device) or _Ring()
        return (
            figures.allocated,
            figures.reserved,
            max(figures.peak_allocated, ring.peak_allocated),
            max(figures.peak_reserved, ring.peak_reserved),
        )

    # --- starting and stopping

    @_harmless
    def _begin(self) -> None:
        """CUDA is initialised."""
        reason = self._calls.start(ENTRIES)
        self._records = reason is None
        if reason is not None:
            self._later(
                0, Note(self._seconds, "history", f"{reason}: only the figures of each step are recorded")
            )
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
        self._tell(Note(self._seconds, "trouble", text))

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
    def _root_begins(self, module: nn.Module, args: tuple[Any, ...], activity: str, path: str) -> None:
        if not self._records:
            return
        tick = self._marks.advance(activity, path)
        with torch._C.DisableTorchFunction():
            self._sightings.root_begins(module, args, tick)
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
        self._look_done()

    # --- when to read

    def _look(self) -> None:
        """Between steps: is there a peak to be read before it is lost?"""
        for device in self._devices_in_use():
            figures = self._calls.figures_of(self._peaks.statistics(device))
            self._consider(device, figures, figures.peak_allocated, figures.peak_reserved)
        self._look_done()

    def _look_done(self) -> None:
        self._looked = time.perf_counter()
        if any(ring.is_due for ring in self._rings.values()):
            self._read()
        self._tell_lost_steps()

    def _consider(self, device: int, figures: Figures, peak_allocated: int, peak_reserved: int) -> None:
        self._rings.setdefault(device, _Ring()).consider(figures.entries, peak_allocated, peak_reserved)

    def _devices_in_use(self) -> Sequence[int]:
        """Those that hold memory; all are asked now and then, the others at every step."""
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
            if ring is None or ring.entries - entries <= ENTRIES:
                return
            self._pending.popleft()
            self._begin_gap()
            self._tell(pending.event)

    def _begin_gap(self) -> None:
        if not self._in_gap:
            self._in_gap = True
            self._tell(Note(self._told_until, "dropped", _GAP_WORDS))

    # --- reading

    def _error_seen(self, failure: Failure, nodes: list[Any]) -> None:
        self._read(failure, nodes)
        if self._clock.in_optimizer:
            self._clock.interrupted()
            self._marks.advance(OTHER)

    @_harmless
    def _read(self, failure: Failure | None = None, nodes: Sequence[Any] = ()) -> None:
        """Turn the rings into events."""
        moments = self._moments(nodes)
        swallowed = self._failures.take_swallowed()
        if swallowed:
            moments.append(Pending(self._marks.tick, Note(self._seconds, "retry", _retry_words(swallowed))))
        snapshot = self._calls.snapshot()
        settings = settings_of(snapshot.get("allocator_settings", {}))
        if any(len(trace) >= ENTRIES for trace in snapshot["device_traces"]):
            self._begin_gap()
        after_gap, self._in_gap = self._in_gap, False
        told: list[Timed] = []
        for device, trace in enumerate(snapshot["device_traces"]):
            segments = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
            if trace or segments or device in self._histories or device == 0:
                history = self._history_of(device)
                told += history.read(
                    trace,
                    segments,
                    began=self._began,
                    moments=[moment for moment in moments if _concerns(moment, device)],
                    settings=settings,
                    failure=failure if failure is not None and failure.device == device else None,
                    after_gap=after_gap,
                )
        del snapshot
        self._marks.forget_stamps()
        for ring in self._rings.values():
            ring.was_read()
        told.sort(key=lambda timed: timed[0])
        for _, event in told:
            self._tell(event)

    def _moments(self, nodes: Sequence[Any]) -> list[Moment]:
        """Everything noted since the last reading, in order, and what can be seen now."""
        with torch._C.DisableTorchFunction():
            now = self._sightings.everything(self._marks.tick + 1, nodes)
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

    def _later(self, entries: int, event: Step | Note) -> None:
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
        self.peak_allocated = 0
        self.peak_reserved = 0
        self._peak_began: int | None = None
        """The entries before the step with the highest peak; None once that was read."""

    def consider(self, entries: int, peak_allocated: int, peak_reserved: int) -> None:
        """A step (or a stretch of the run without steps) has ended, with these peaks."""
        if peak_allocated > self.peak_allocated or peak_reserved > self.peak_reserved:
            self.peak_allocated = max(peak_allocated, self.peak_allocated)
            self.peak_reserved = max(peak_reserved, self.peak_reserved)
            self._peak_began = self.entries
        self.entries = entries

    @property
    def is_due(self) -> bool:
        return self._peak_began is not None and self.entries - self._peak_began >= DUE

    def was_read(self) -> None:
        self._peak_began = None


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


_GAP_WORDS = f"the allocator's history holds {ENTRIES:,} entries: of some steps before the last ones, only the figures are known"


def _retry_words(number: int) -> str:
    what = "allocation" if number == 1 else "allocations"
    return f"{number:,} {what} failed inside a library, such as cuDNN trying faster algorithms, which went on with less"


def _silence_in_children(history: CudaHistory) -> None:
    reference = weakref.ref(history)

    def silence() -> None:
        known = reference()
        if known is not None:
            known.silence()

    os.register_at_fork(after_in_child=silence)
