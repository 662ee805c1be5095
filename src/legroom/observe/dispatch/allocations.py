"""Memory taken from the devices' allocators and given back, told as events.

Every byte that a run is charged passes through here: storages, and what kernels take for themselves.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from legroom.memory.allocator.allocator import AllocationFailed
from legroom.memory.events import Alloc, Category, Free, Segment, Sink, Step
from legroom.observe.dispatch.attribution import Place
from legroom.observe.dispatch.storages import Live
from legroom.observe.training import TrainingClock


class Memory(Protocol):
    """What serves requests for memory: a replayed caching allocator, or the host."""

    @property
    def allocated(self) -> int: ...

    @property
    def reserved(self) -> int: ...

    def malloc(self, size: int, stream: int = 0) -> Any: ...

    def free(self, block: Any) -> None: ...


class DeviceMemory(Protocol):
    """One device whose memory is accounted for."""

    @property
    def index(self) -> int: ...

    @property
    def allocator(self) -> Memory: ...


class Charges:
    """Keeps the account of all devices of one run."""

    def __init__(
        self,
        sink: Sink,
        devices: Sequence[DeviceMemory],
        clock: TrainingClock,
        *,
        stream_on: Callable[[int], int] | None,
        on_failure: Callable[[AllocationFailed, int, Place, str], BaseException | None],
    ) -> None:
        """`stream_on(device)`: the stream at work there, for several. `on_failure(failure, device, place, op)` gives what the
        operation raises; None where memory has come back since, and it is to be asked for again."""
        self.sink = sink
        """May be replaced at any time."""
        self.devices = devices
        self.count = 0
        """How often memory was taken."""
        self.doubts: dict[int, tuple[int, ...]] = {}
        """Of memory that kernels took: its number → what it may have been instead, where that is not known."""
        self.spare: set[int] = set()
        """Numbers of what kernels would have done without."""
        self._clock = clock
        self._stream_on = stream_on
        self._on_failure = on_failure
        self._peaks: dict[int, list[int]] = {}
        self.start()

    def start(self) -> None:
        """The run begins now."""
        self._started = _now()
        self._peaks = {device.index: [0, 0] for device in self.devices}

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return _now() - self._started

    def charge(
        self, nbytes: int, device: int, category: Category, place: Place, func: Any
    ) -> tuple[int, Any]:
        """Take memory from the device's allocator and tell of it: the event's number, and the block."""
        allocator = self.devices[device].allocator
        stream = 0 if self._stream_on is None else self._stream_on(device)
        try:
            block = allocator.malloc(nbytes, stream)
        except AllocationFailed as failure:
            failed = failure.with_traceback(None)  # or it and this frame would hold each other
        else:
            number = self.count = self.count + 1
            peaks = self._peaks[device]
            if allocator.allocated > peaks[0]:
                peaks[0] = allocator.allocated
                if allocator.reserved > peaks[1]:
                    peaks[1] = allocator.reserved
            self.sink(
                _new(
                    Alloc,
                    (
                        _now() - self._started, number, nbytes, block.size, device, stream, category,
                        place.phase, self._clock.step, place.module, place.frame, _op_name(func),
                    ),
                )
            )  # fmt: skip
            return number, block
        error = self._on_failure(failed, device, place, _op_name(func))
        if error is None:
            return self.charge(nbytes, device, category, place, func)
        raise error from None

    def release(self, live: Live) -> None:
        """A storage has died."""
        if live.block is not None:
            self.devices[live.device].allocator.free(live.block)
            self.sink(_new(Free, (_now() - self._started, live.id)))

    def take(self, nbytes: int, device: int, place: Place, func: Any) -> tuple[int, Any]:
        """Memory that a kernel takes for itself: its number and block, for `give`. No bytes take no block, and are told
        all the same where there may have been some."""
        if nbytes:
            return self.charge(nbytes, device, Category.WORKSPACE, place, func)
        number = self.count = self.count + 1
        self.sink(
            Alloc(
                self.seconds, number, 0, 0, device, 0, Category.WORKSPACE, place.phase, self._clock.step, place.module,
                place.frame, _op_name(func),
            )
        )  # fmt: skip
        return number, None

    def give(self, number: int, block: Any, device: int) -> None:
        """A kernel gives back what it took."""
        if block is not None:
            self.devices[device].allocator.free(block)
        self.sink(Free(self.seconds, number))

    def note_doubt(self, number: int, others: tuple[int, ...]) -> None:
        """What a kernel took as `number` may have been one of the `others` as well."""
        self.doubts[number] = others

    def note_spare(self, number: int) -> None:
        """What a kernel took as `number` it would have done without, had there been no room."""
        self.spare.add(number)

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
        """An allocator took memory from its device, or gave it back."""
        self.sink(Segment(self.seconds, device, change))


_new = tuple.__new__
_now = time.perf_counter
_op_names: dict[int, str] = {id(None): ""}


def _op_name(func: Any) -> str:
    name = _op_names.get(id(func))
    if name is None:
        packet = getattr(func, "overloadpacket", None)
        name = _op_names[id(func)] = str(packet if packet is not None else func)
    return name
