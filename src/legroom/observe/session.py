"""One watched run: chooses the producer of events for this machine and gives the figures of the moment.

virtual GPUs asked for          → the recorder over a virtual GPU
a real CUDA device              → the CUDA allocator's own history
neither                         → the recorder over the host's memory
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import psutil
import torch

from legroom.gpus.machine import visible_gpus
from legroom.memory.events import Event, Note, Sink, Step
from legroom.memory.leak import Kept
from legroom.observe.cuda.history import CudaHistory
from legroom.observe.dispatch.host_memory import HostMemory
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.leaks.watcher import Watcher
from legroom.observe.training import TrainingClock
from legroom.observe.virtual.gpu import VirtualGPU

Kind = Literal["virtual", "cuda", "host"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device whose memory is watched."""

    index: int
    name: str
    kind: Kind
    capacity: int


@dataclass(frozen=True, slots=True)
class Status:
    """The figures of the moment, of one device."""

    step: int
    """Steps completed."""
    seconds_per_step: float
    """Of the last step; 0 before the first has ended."""
    device: int
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    capacity: int


class Session:
    """Watches what runs inside it and sends every event to `sink`."""

    def __init__(self, sink: Sink, *, gpus: Sequence[int] | None = None) -> None:
        """`gpus`: sizes in bytes of virtual GPUs; None for what the machine has."""
        self._sink = sink
        self._progress = 0, 0.0
        self._told_watched = False
        self._exit = contextlib.ExitStack()
        self._producer: VirtualGPU | CudaHistory | _HostProducer
        self.devices: list[DeviceInfo]
        if gpus is not None:
            self._producer = virtual = VirtualGPU(*gpus, sink=self._pass_on)
            self.devices = [DeviceInfo(d.index, d.name, "virtual", d.capacity) for d in virtual.devices]
        elif real := visible_gpus():
            self._producer = CudaHistory(self._pass_on)
            self.devices = [DeviceInfo(gpu.index, gpu.name, "cuda", gpu.total) for gpu in real]
        else:
            self._producer = _HostProducer(self._pass_on)
            self.devices = [DeviceInfo(0, "host memory", "host", psutil.virtual_memory().total)]
        self._began = time.perf_counter()
        self._watcher = Watcher(self._leaks, allocated=self._allocated, on_device=self._is_on_device)

    def __enter__(self) -> "Session":
        self._began = time.perf_counter()
        self._exit.enter_context(self._producer)
        loaders = TrainingClock(on_batch=lambda _: self._watcher.ticks.batch())
        loaders.attach()
        self._exit.callback(loaders.detach)
        self._watcher.attach()
        self._exit.callback(self._watcher.detach)
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()
        self._exit.close()

    def finish(self) -> None:
        """Send what is still on its way (a CUDA history is read at the end). Safe to call twice."""
        if isinstance(self._producer, CudaHistory):
            self._producer.finish()
        if self._watcher.turn and not self._told_watched:
            self._told_watched = True
            self._sink(Note(self._seconds, *self._watcher_words()))

    def _watcher_words(self) -> tuple[str, str]:
        if self._watcher.trouble:
            return "trouble", f"the search for leaks was given up ({self._watcher.trouble})"
        return "watched", f"{self._watcher.turn} turns of the loop were watched for leaks"

    def status(self) -> Status:
        """Of the device that holds most now."""
        return self._status_of(max(self.devices, key=lambda device: self._figures(device.index)[0]))

    def fullest(self) -> Status:
        """Of the device that held most of its memory at some moment; of two that reserved alike, by what was allocated."""

        def fullness(device: DeviceInfo) -> tuple[float, int]:
            _, _, allocated, reserved = self._figures(device.index)
            return reserved / max(device.capacity, 1), allocated

        return self._status_of(max(self.devices, key=fullness))

    def _status_of(self, device: DeviceInfo) -> Status:
        steps, seconds = (
            self._producer.progress if isinstance(self._producer, CudaHistory) else self._progress
        )
        return Status(steps, seconds, device.index, *self._figures(device.index), device.capacity)

    def _figures(self, index: int) -> tuple[int, int, int, int]:
        """allocated, reserved and their peaks over the run."""
        if isinstance(self._producer, CudaHistory):
            return self._producer.figures(index)
        memory = self._producer.devices[index].allocator
        return memory.allocated, memory.reserved, memory.peak_allocated, memory.peak_reserved

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _leaks(self, kept: Kept) -> None:
        self._sink(replace(kept, step=self.status().step).as_note(self._seconds))

    def _allocated(self) -> int:
        return sum(self._figures(device.index)[0] for device in self.devices)

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        if isinstance(self._producer, VirtualGPU):
            return self._producer.recorder.measure(tensor) is not None
        return tensor.device.type not in ("cpu", "meta")

    def _pass_on(self, event: Event) -> None:
        if type(event) is Step:
            self._progress = event.step + 1, event.seconds
        self._sink(event)


class _HostProducer:
    """The recorder over the host's own memory: every storage counts, nothing limits it."""

    def __init__(self, sink: Sink) -> None:
        self.devices = [HostMemory()]
        self._recorder = Recorder(sink, self.devices, everywhere=True)

    def __enter__(self) -> None:
        self._recorder.attach()

    def __exit__(self, *error: object) -> None:
        self._recorder.detach()
