"""Allocates and frees device memory for a recorded run, and emits an event for each allocation and free."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from legroom.memory.allocator.allocator import AllocationFailed
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc, Free, SegmentChange, Sink, Step
from legroom.memory.garbage_collection import untrack
from legroom.observe.dispatch.attribution import OpLocation
from legroom.observe.dispatch.storages import LiveStorage
from legroom.observe.training import TrainingClock


class AllocatorProtocol(Protocol):
    @property
    def allocated(self) -> int: ...

    @property
    def reserved(self) -> int: ...

    def malloc(self, size: int, stream: int = 0) -> Any: ...

    def free(self, block: Any) -> None: ...


class TrackedDevice(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def allocator(self) -> AllocatorProtocol: ...


class HostBlock(NamedTuple):
    size: int


class HostMemory:
    """Represents host memory as a device. Its allocator only counts bytes, has no cache and never fails."""

    def __init__(self) -> None:
        self.index = 0
        self.allocated = self.peak_allocated = 0
        self._blocks: dict[int, HostBlock] = {}
        """The block object that all allocations of a size share, by size."""

    @property
    def allocator(self) -> "HostMemory":
        return self

    @property
    def reserved(self) -> int:
        return self.allocated

    @property
    def peak_reserved(self) -> int:
        return self.peak_allocated

    def malloc(self, size: int, stream: int = 0) -> HostBlock:
        self.allocated = allocated = self.allocated + size
        if allocated > self.peak_allocated:
            self.peak_allocated = allocated
        block = self._blocks.get(size)
        if block is None:
            if len(self._blocks) >= _MAX_SIZES:
                self._blocks.clear()
            block = self._blocks[size] = HostBlock(size)
        return block

    def free(self, block: HostBlock) -> None:
        self.allocated -= block.size


class DeviceAllocations:
    def __init__(
        self,
        sink: Sink,
        devices: Sequence[TrackedDevice],
        clock: TrainingClock,
        *,
        stream_on: Callable[[int], int] | None,
        on_failure: Callable[[AllocationFailed, int, OpLocation, str], BaseException | None],
    ) -> None:
        """`stream_on(device)` returns the current stream of a device, if the program uses several streams.
        `on_failure(failure, device, location, op)` returns the exception that the operation raises, or None to retry
        because memory was freed.
        """
        self.sink = sink
        """The sink that receives the events, which may be replaced at any time."""
        self.followers = 0
        """The number of other recordings that also receive the events (see `observe.following`)."""
        self.devices = devices
        self.count = 0
        self.alternatives: dict[int, tuple[int, ...]] = {}
        """The other possible sizes of each workspace allocation whose size is uncertain, by event number."""
        self.optional: set[int] = set()
        """The event numbers of workspace allocations that can fail without an error, because torch then uses a kernel
        without a workspace.
        """
        self.room_left = 0
        """A lower bound on the free memory of the device with the least free memory. Allocations reduce this value, and
        `Recorder.check_room` updates it.
        """
        self._clock = clock
        self._stream_on = stream_on
        self._on_failure = on_failure
        self._peaks: dict[int, list[int]] = {}
        self._allocators: list[AllocatorProtocol] = []
        self.start()

    def start(self) -> None:
        self._started = _now()
        self._peaks = {device.index: [0, 0] for device in self.devices}
        self._allocators = [device.allocator for device in self.devices]

    @property
    def seconds(self) -> float:
        return _now() - self._started

    def allocate(
        self, nbytes: int, device: int, category: Category, location: OpLocation, func: Any
    ) -> tuple[int, Any]:
        """Allocate memory on a device and emit the event. Return the event's number and the block."""
        allocator = self._allocators[device]
        stream = 0 if self._stream_on is None else self._stream_on(device)
        try:
            block = allocator.malloc(nbytes, stream)
        except AllocationFailed as failure:
            failed = failure.with_traceback(None)  # the traceback would form a cycle with this frame
        else:
            number = self.count = self.count + 1
            self.room_left -= block.size
            peaks = self._peaks[device]
            allocated = allocator.allocated
            if allocated > peaks[0]:
                peaks[0] = allocated
                reserved = allocator.reserved
                if reserved > peaks[1]:
                    peaks[1] = reserved
            event = _new(
                Alloc,
                (
                    _now() - self._started, number, nbytes, block.size, device, stream, category, location.phase,
                    self._clock.step, location.module, location.frame, _op_names.get(id(func)) or _op_name(func),
                ),
            )  # fmt: skip
            untrack(event)
            self.sink(event)
            return number, block
        error = self._on_failure(failed, device, location, _op_name(func))
        if error is None:
            return self.allocate(nbytes, device, category, location, func)
        raise error from None

    def free_storage(self, storage: LiveStorage) -> None:
        block = storage.block
        if block is not None:
            self._allocators[storage.device].free(block)
            self.sink(_new(Free, (_now() - self._started, storage.id)))

    def allocate_workspace(
        self, nbytes: int, device: int, location: OpLocation, func: Any
    ) -> tuple[int, Any]:
        """Allocate a kernel's workspace. Return the number and the block of the workspace, for `free_workspace`.

        For a size of 0, no block is allocated. The event is still emitted, because the size may be uncertain
        (`alternatives`).
        """
        if nbytes:
            return self.allocate(nbytes, device, Category.WORKSPACE, location, func)
        number = self.count = self.count + 1
        self.sink(
            Alloc(
                self.seconds, number, 0, 0, device, 0, Category.WORKSPACE, location.phase, self._clock.step,
                location.module, location.frame, _op_name(func),
            )
        )  # fmt: skip
        return number, None

    def free_workspace(self, number: int, block: Any, device: int) -> None:
        if block is not None:
            self._allocators[device].free(block)
        self.sink(Free(self.seconds, number))

    def end_step(self, step: int, seconds: float) -> None:
        for device in self.devices:
            allocator, peaks = device.allocator, self._peaks[device.index]
            self.sink(
                Step(
                    self.seconds, step, seconds, device.index, allocator.allocated, allocator.reserved,
                    max(peaks[0], allocator.allocated), max(peaks[1], allocator.reserved),
                )
            )  # fmt: skip
            peaks[0] = peaks[1] = 0

    def segment_changed(self, device: int, change: int) -> None:
        self.sink(SegmentChange(self.seconds, device, change))


_MAX_SIZES = 4096
_new = tuple.__new__
_now = time.perf_counter
_op_names: dict[int, str] = {id(None): ""}


def _op_name(func: Any) -> str:
    name = _op_names.get(id(func))
    if name is None:
        packet = getattr(func, "overloadpacket", None)
        name = _op_names[id(func)] = str(packet if packet is not None else func)
    return name
