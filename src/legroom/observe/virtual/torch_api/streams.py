"""Streams and events of a virtual GPU.

Operations run on the CPU and are finished when their call returns, so synchronization does nothing. A stream determines
only the memory pool of an allocation, and an event stores only the host's time.

As on a real GPU, each thread has a current stream per device, and each device has 32 streams per priority. After 32
streams of one priority, torch reuses the first stream.
"""

import contextlib
import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch

from legroom.errors import Unsupported
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, optional_module, table
from legroom.observe.virtual.torch_api.devices import index_of

CUDA_DEVICE_TYPE = 1
POOL_SIZE = 32


def current_stream_id(index: int) -> int:
    """Return the id of this thread's current stream on a device. The id of the default stream is 0."""
    return _active.current.get(index, 0) if _active is not None else 0


@contextlib.contextmanager
def streams(host: VirtualHost) -> Iterator["Streams"]:
    global _active
    _active = Streams(host)
    try:
        yield _active
    finally:
        _active = None


def replacements(active: "Streams") -> Iterable[Replacement]:
    yield from table(
        torch._C,
        {
            "_cuda_getCurrentStream": active.current_parts,
            "_cuda_getCurrentRawStream": active.current_id,
            "_cuda_getDefaultStream": active.default_parts,
            "_cuda_getStreamFromExternal": _external_stream,
            "_cuda_setStream": active.select,
            "_accelerator_getStream": active.current_generic,
            "_accelerator_setStream": active.select_stream,
        },
        add=True,
    )
    module = optional_module("torch.cuda.streams")
    classes = {"Stream": Stream, "Event": Event, "ExternalStream": ExternalStream}
    # A class that a script imported before the virtual GPU was entered creates virtual objects as well.
    for name, replacement in classes.items():
        yield from table(getattr(module, name, None), {"__new__": _creating(replacement)})
    yield from table(module, classes)
    yield from table(optional_module("torch.cuda"), classes)
    yield from table(torch, {"Stream": GenericStream, "Event": GenericEvent})
    yield from table(torch.Tensor, {"record_stream": active.record})


class Streams:
    def __init__(self, host: VirtualHost) -> None:
        self.host = host
        self._per_thread = threading.local()
        self._next: dict[tuple[int, bool], Iterator[int]] = {}

    @property
    def current(self) -> dict[int, int]:
        """Maps each device to this thread's current stream. Devices whose current stream is the default stream may be
        absent.
        """
        current: dict[int, int] | None = getattr(self._per_thread, "streams", None)
        if current is None:
            current = self._per_thread.streams = {}
        return current

    def new_id(self, index: int, priority: int) -> int:
        high = priority < 0
        first = 1 + POOL_SIZE * high
        pool = self._next.setdefault((index, high), itertools.cycle(range(first, first + POOL_SIZE)))
        return next(pool)

    def current_id(self, index: int) -> int:
        self._check(index)
        return self.current.get(index, 0)

    def current_parts(self, index: int) -> tuple[int, int, int]:
        return self.current_id(index), index, CUDA_DEVICE_TYPE

    def default_parts(self, index: int) -> tuple[int, int, int]:
        self._check(index)
        return 0, index, CUDA_DEVICE_TYPE

    def current_generic(self, index: int) -> "GenericStream":
        return GenericStream(stream_id=self.current_id(index), device_index=index)

    def select(self, stream_id: int, device_index: int, device_type: int = CUDA_DEVICE_TYPE) -> None:
        self._check(device_index)
        self.host.current = device_index
        self.current[device_index] = stream_id

    def select_stream(self, stream: "GenericStream") -> None:
        self.select(stream.stream_id, stream.device_index)

    @property
    def record(self) -> Callable[[torch.Tensor, "GenericStream"], None]:
        on_record = getattr(self.host, "record_stream", None)

        def record_stream(tensor: torch.Tensor, stream: "GenericStream") -> None:
            if on_record is not None:
                on_record(tensor, stream.stream_id)

        return record_stream

    def _check(self, index: int) -> None:
        count = len(self.host.devices)
        if not 0 <= index < count:
            raise RuntimeError(f"Device index value {index} is out of index range [0, {count})")


class _ReplacementMeta(type):
    """The metaclass of classes that replace one of torch's classes (`original`).

    A library that was imported while the virtual GPU was active may keep the replacement. After the virtual GPU ends,
    the replacement creates objects of torch's own class. `isinstance` always treats objects of torch's own class as
    instances of the replacement.
    """

    original: Any

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        make = cls.original if _active is None else super().__call__
        return make(*arguments, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        is_original = "original" in vars(cls) and isinstance(instance, vars(cls)["original"])
        return is_original or super().__instancecheck__(instance)


class GenericStream(metaclass=_ReplacementMeta):
    original: Any = torch.Stream

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = CUDA_DEVICE_TYPE,
    ) -> None:
        active = _required()
        if device_index is None or stream_id is None:
            device_index = index_of(active.host, device)
            stream_id = active.new_id(device_index, priority)
        self.stream_id = stream_id
        self.device_index = device_index
        self.device_type = device_type
        self.priority = -1 if stream_id > POOL_SIZE else 0
        self._before: list[tuple[int, int, int]] = []

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.device_index)

    @property
    def native_handle(self) -> int:
        return self.stream_id

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None: ...

    def wait_event(self, event: "GenericEvent") -> None: ...

    def wait_stream(self, stream: "GenericStream") -> None: ...

    def record_event(self, event: "GenericEvent | None" = None) -> "GenericEvent":
        event = event or self._new_event()
        event.record(self)
        return event

    def __enter__(self) -> "GenericStream":
        active = _required()
        before = active.host.current
        self._before.append((before, active.current_id(before), active.current_id(self.device_index)))
        active.select_stream(self)
        return self

    def __exit__(self, *_error: object) -> None:
        active = _required()
        device, stream_there, stream_here = self._before.pop()
        active.select(stream_here, self.device_index)
        active.select(stream_there, device)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GenericStream)
            and (self.stream_id, self.device_index) == (other.stream_id, other.device_index)
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"torch.Stream device_type=cuda, device_index={self.device_index}, stream_id={self.stream_id}"

    def _new_event(self) -> "GenericEvent":
        return GenericEvent()


class Stream(GenericStream):
    original: Any = torch.cuda.Stream

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -1

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def _new_event(self) -> "Event":
        return Event()


class ExternalStream(Stream):
    """A stream that another library created, which a virtual GPU cannot use."""

    original: Any = torch.cuda.ExternalStream

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        _external_stream()


class GenericEvent(metaclass=_ReplacementMeta):
    """An event, which stores the host time at which it was recorded."""

    original: Any = torch.Event

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        active = _required()
        self.device = torch.device("cuda", index_of(active.host, device))
        self.event_id = 0
        self._timed = enable_timing
        self._interprocess = interprocess
        self._recorded: float | None = None

    def record(self, stream: GenericStream | None = None) -> None:
        if stream is not None:
            self.device = stream.device
        self.event_id = id(self)
        self._recorded = time.perf_counter()

    def wait(self, stream: GenericStream | None = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: "GenericEvent") -> float:
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded is None or end_event._recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded - self._recorded) * 1000

    def ipc_handle(self) -> NoReturn:
        raise Unsupported("Events of a virtual GPU cannot be shared with other processes.")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> NoReturn:
        raise Unsupported("Events of a virtual GPU cannot be shared with other processes.")

    def __repr__(self) -> str:
        return f"torch.Event device_type=cuda, device_index={self.device.index}, event_id={self.event_id}"


class Event(GenericEvent):
    original: Any = torch.cuda.Event

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)

    @property
    def cuda_event(self) -> int:
        return self.event_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def __repr__(self) -> str:
        return (
            f"<torch.cuda.Event {self.event_id:#x}>" if self.event_id else "<torch.cuda.Event uninitialized>"
        )


_active: Streams | None = None


def _required() -> Streams:
    if _active is None:
        raise Unsupported(
            "This stream's virtual GPU is no longer active. Create a new stream inside `with "
            "VirtualGPU(...)`."
        )
    return _active


def _external_stream(*_arguments: Any, **_options: Any) -> NoReturn:
    raise Unsupported(
        "A virtual GPU cannot use a stream from another library. Use `torch.cuda.Stream()` instead."
    )


def _creating(replacement: type) -> Any:
    def make(_cls: type, *arguments: Any, **options: Any) -> Any:
        return replacement(*arguments, **options)

    return staticmethod(make)
