"""Records a block of code in a program that is already being recorded.

Only one producer of events is active at a time. A second dispatch mode would double the cost, and the CUDA allocator
has only one history. A program may already be recorded: on a virtual GPU, in `legroom run` or in another recording.
The recording of a block then uses the events of the active producer, and starts with the storages that are alive at
the start of the block. Times and steps are counted from the start of the block.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch

from legroom.memory.event_base import Phase
from legroom.memory.events import Alloc, Event, Free, Holder, Oom, SegmentChange, Sink, Step, Tag
from legroom.observe.cuda.history import CudaHistory
from legroom.observe.dispatch.allocations import HostMemory
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.producer import MemoryStats


class _Emitter(Protocol):
    sink: Sink
    followers: int


class FollowedRecorder:
    def __init__(self, recorder: Recorder, sink: Sink) -> None:
        self._recorder = recorder
        self._sink = sink
        self._first_step = 0
        self._after_step: dict[int, int] = {}
        self._leave: Callable[[], None] | None = None
        self._in_host_memory = any(
            isinstance(device.allocator, HostMemory) for device in recorder.allocations.devices
        )

    def __enter__(self) -> None:
        recorder = self._recorder
        allocations = recorder.allocations
        with recorder.lock:
            self._first_step = recorder.clock.step
            shifted = _shifted_to(allocations.seconds, self._first_step, self._receive)
            storages = recorder.live_storages()
            if not self._in_host_memory:
                for device in allocations.devices:
                    self._sink(SegmentChange(0.0, device.index, device.allocator.reserved))
            for each in storages:
                assert each.block is not None
                self._sink(
                    Alloc(
                        0.0, each.id, each.nbytes, each.block.size, each.device, 0, each.category, Phase.OTHER, 0,
                        "", each.frame, "",
                    )
                )  # fmt: skip
            self._leave = _added(allocations, shifted)

    def __exit__(self, *error: object) -> None:
        if self._leave is not None:
            with self._recorder.lock:
                self._leave()
            self._leave = None

    def _receive(self, event: Event) -> None:
        if isinstance(event, Step):
            self._after_step[event.device] = event.allocated
        self._sink(event)

    def finish(self) -> None:
        # Only the last step must be ended. All other events were sent when they occurred.
        if self._leave is not None:
            self._recorder.clock.end_step_without_optimizer()

    @property
    def progress(self) -> tuple[int, float]:
        return self._recorder.clock.step - self._first_step, 0.0

    @property
    def allocated_after_step(self) -> int:
        return sum(self._after_step.values())

    def memory_stats(self, device: int) -> MemoryStats:
        allocator = self._recorder.allocations.devices[device].allocator
        return MemoryStats(allocator.allocated, allocator.reserved, allocator.allocated, allocator.reserved)

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        if self._in_host_memory:
            return tensor.device.type not in ("cpu", "meta")
        return self._recorder.measure(tensor) is not None


class FollowedHistory:
    """The events of an active CUDA history from `__enter__` to `__exit__`. The history is read at the start and at the
    end of the block, which takes about 10 µs per entry.
    """

    def __init__(self, history: CudaHistory, sink: Sink) -> None:
        self._history = history
        self._sink = sink
        self._first_step = 0
        self._leave: Callable[[], None] | None = None

    def __enter__(self) -> None:
        history = self._history
        history.send_pending()
        self._first_step = history.progress[0]
        shifted = _shifted_to(history.seconds, self._first_step, self._sink)
        for event in history.current_state():
            shifted(event)
        self._leave = _added(history, shifted)

    def __exit__(self, *error: object) -> None:
        self.finish()
        if self._leave is not None:
            self._leave()
            self._leave = None

    def finish(self) -> None:
        if self._leave is not None:
            self._history.send_pending()

    @property
    def progress(self) -> tuple[int, float]:
        steps, seconds = self._history.progress
        return steps - self._first_step, seconds

    @property
    def allocated_after_step(self) -> int:
        return self._history.allocated_after_step

    def memory_stats(self, device: int) -> MemoryStats:
        return self._history.memory_stats(device)

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        return self._history.is_on_device(tensor)


class _Tee:
    def __init__(self, first: Sink) -> None:
        self.sinks = [first]

    def __call__(self, event: Event) -> None:
        for sink in self.sinks:
            sink(event)


def _added(emitter: _Emitter, sink: Sink) -> Callable[[], None]:
    """Add a sink to a producer, and return the function that removes it. Sinks can be removed in any order."""
    if not isinstance(emitter.sink, _Tee):
        emitter.sink = _Tee(emitter.sink)
    tee = emitter.sink
    tee.sinks = [*tee.sinks, sink]
    emitter.followers += 1

    def remove() -> None:
        emitter.followers -= 1
        tee.sinks = [each for each in tee.sinks if each is not sink]
        if len(tee.sinks) == 1 and emitter.sink is tee:
            emitter.sink = tee.sinks[0]

    return remove


def _shifted_to(start: float, first_step: int, sink: Sink) -> Sink:
    """Return a sink that counts times from `start` and steps from `first_step`, and passes the events to `sink`."""

    def shifted(event: Event) -> None:
        if isinstance(event, Alloc):
            time, step = max(event[0] - start, 0.0), max(event[8] - first_step, 0)
            sink(_new(Alloc, (time, *event[1:8], step, *event[9:])))
        elif isinstance(event, Free):
            sink(_new(Free, (event[0] - start, event[1])))
        elif isinstance(event, Tag | Holder):
            sink(event)
        elif isinstance(event, SegmentChange):
            sink(event._replace(time=max(event.time - start, 0.0)))
        elif isinstance(event, Step | Oom):
            sink(event._replace(time=event.time - start, step=event.step - first_step))
        else:
            sink(replace(event, time=max(event.time - start, 0.0)))

    return shifted


_new = tuple.__new__
