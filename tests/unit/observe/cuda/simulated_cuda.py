"""A simulated CUDA allocator for CPU tensors. Real programs run with it and produce the history that a GPU would
record.

Every storage that an operation creates becomes an entry with its address and Python stack. A second entry is added
when the storage is freed. As on a GPU, the autograd engine runs on its own thread. Its stacks contain only Python code
that the engine calls, and it has its own stamp. Inside the simulation, tensors report that they are on a GPU.
"""

import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import graph
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.memory.events import Event
from legroom.observe.cuda import history
from legroom.observe.cuda.history import CudaHistory
from legroom.observe.cuda.step_peaks import StepPeaks
from legroom.observe.cuda.torch_api import CudaApi, Observer
from legroom.observe.dispatch.backward_engine import current_node

CAPACITY = 1 << 34
_HERE = __file__
_PLUMBING = ("/_python_dispatch.py", "/_dynamo/eval_frame.py")
_ENGINE = graph._engine_run_backward.__code__


class SimulatedCuda(CudaApi):
    """Records the history and the statistics of the simulated device."""

    def __init__(self, *, limit: int = CAPACITY, can_stamp: bool = True) -> None:
        super().__init__()
        self.limit = limit
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.statistics_now = {name: _Figure() for name in _NAMES}
        self.stamps = {"program": "", "engine": ""}
        self.snapshots = 0
        self._can_stamp = can_stamp
        self._ring: deque[dict[str, Any]] = deque()
        self._observer: Observer | None = None
        self._references: dict[int, Any] = {}

    # --- the interface of CudaApi

    def when_ready(self, callback: Callable[[], None]) -> None:
        callback()

    def device_count(self) -> int:
        return 1

    def start(self, entries: int) -> str | None:
        self._entries_per_free = 1
        self._ring = deque(maxlen=entries)
        return None

    def grow(self, entries: int) -> None:
        self._ring = deque(self._ring, maxlen=entries)

    def snapshot(self, entries: int) -> dict[str, Any]:
        self.snapshots += 1
        trace = list(self._ring)
        self._ring = deque(maxlen=entries)
        blocks = [
            {
                "address": a,
                "size": _rounded(size),
                "requested_size": size,
                "state": "active_allocated",
                "frames": f,
            }
            for a, (size, f) in self.live.items()
        ]
        segment = {
            "device": 0,
            "address": 0,
            "total_size": self.statistics_now["reserved_bytes"].current,
            "stream": 0,
            "is_expandable": True,
            "blocks": blocks,
        }
        return {"device_traces": [trace], "segments": [segment], "allocator_settings": {}}

    def stop(self) -> None:
        self._ring.clear()

    def stamp_setter(self) -> Callable[[str], None] | None:
        return self._set_stamp if self._can_stamp else None

    def statistics(self, device: int) -> dict[str, Any]:
        return self._cuda_memoryStats(device)

    def capacity(self, device: int) -> int:
        return CAPACITY

    def workspace_sizes(self, device: int) -> frozenset[int]:
        return frozenset()

    def on_failed_allocation(self, observer: Observer) -> Callable[[], None]:
        self._observer = observer
        return lambda: None

    def _set_stamp(self, text: str) -> None:
        self.stamps[_thread()] = text

    # --- the functions of torch._C that StepPeaks uses

    def _cuda_memoryStats(self, device: int) -> dict[str, Any]:
        return {name: {"all": vars(figure).copy()} for name, figure in self.statistics_now.items()}

    def _cuda_resetPeakMemoryStats(self, device: int) -> None:
        for figure in self.statistics_now.values():
            figure.peak = figure.current

    # --- allocations

    def born(self, storage: Any) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or address in self.live:
            return
        allocated = self.statistics_now["allocated_bytes"].current
        if allocated + _rounded(size) > self.limit:
            self.fail(size)
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        frames = _stack()
        self.live[address] = (size, frames)
        self._count(_rounded(size), 1)
        self._note("alloc", address, size, frames)
        reference = weakref.ref(storage, lambda _: self._died(address))
        self._references[address] = reference

    def fail(self, size: int) -> None:
        """Record a failed allocation without raising an error."""
        self._note("oom", 0, size, _stack())
        free = CAPACITY - self.statistics_now["reserved_bytes"].current
        assert self._observer is not None
        self._observer(0, _rounded(size), self.limit, free)

    def _died(self, address: int) -> None:
        size, frames = self.live.pop(address)
        del self._references[address]
        self._count(-_rounded(size), -1)
        self._note("free_requested", address, size, frames)

    def _count(self, size: int, number: int) -> None:
        for name in ("allocated_bytes", "active_bytes"):
            self.statistics_now[name].add(size)
        self.statistics_now["allocation"].add(number)
        reserved = self.statistics_now["reserved_bytes"]
        grown = self.statistics_now["allocated_bytes"].current - reserved.current
        if grown > 0:
            reserved.add(grown)
            self._note("segment_map", 0, grown, [])

    def _note(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        stamp = self.stamps[_thread()]
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}
        if self._can_stamp:
            entry["user_metadata"] = stamp
        self._ring.append(entry | {"time_us": time.time_ns() // 1000})


class _Figure:
    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, amount: int) -> None:
        self.current += amount
        self.peak = max(self.peak, self.current)
        self.allocated += max(amount, 0)
        self.freed += max(-amount, 0)


_NAMES = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "allocation",
    "segment",
)


class _Mode(TorchDispatchMode):
    def __init__(self, cuda: SimulatedCuda) -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self._cuda.born(tensor.untyped_storage())
        return out


class Simulation:
    """A recorded run on simulated CUDA. After the `with` block, `events` contains its events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, entries: int | None = None, **options: Any) -> None:
        if entries is not None:
            for name in ("FIRST_ENTRIES", "MIN_ENTRIES", "MAX_ENTRIES"):
                monkeypatch.setattr(history, name, entries)
        self.cuda = SimulatedCuda(**options)
        self.events: list[Event] = []
        self.history = CudaHistory(self.events.append, self.cuda, StepPeaks(self.cuda))
        self._monkeypatch = monkeypatch
        self._mode = _Mode(self.cuda)

    def __enter__(self) -> "Simulation":
        self._monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
        self.history.__enter__()
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        self.history.__exit__(*error)
        self._monkeypatch.undo()


def _thread() -> str:
    return "program" if current_node() is None else "engine"


def _rounded(size: int) -> int:
    return (size + 511) // 512 * 512


def _stack() -> list[dict[str, Any]]:
    """Return the stack in torch's format, innermost frame first. Stacks of the engine end where the engine calls
    Python."""
    frames = []
    engine = _thread() == "engine"
    frame = sys._getframe(1)
    while frame is not None and not (engine and frame.f_code is _ENGINE):
        code = frame.f_code
        if code.co_filename != _HERE and not code.co_filename.endswith(_PLUMBING):
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames
