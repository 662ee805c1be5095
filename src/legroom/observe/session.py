"""One watched run: chooses the producer of events for this machine and gives the figures of the moment.

virtual GPUs asked for          → the recorder over a virtual GPU
a real CUDA device              → the CUDA allocator's own history
neither                         → the recorder over the host's memory
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from legroom.memory.events import Event, Sink, Step
from legroom.observe.cuda_history import CudaHistory
from legroom.observe.devices import visible_gpus
from legroom.observe.host_memory import HostMemory
from legroom.observe.recorder import Recorder
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
    """The figures of the moment, of the fullest device."""

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

    def __enter__(self) -> "Session":
        self._exit.enter_context(self._producer)
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()
        self._exit.close()

    def finish(self) -> None:
        """Send what is still on its way (a CUDA history is read at the end). Safe to call twice."""
        if isinstance(self._producer, CudaHistory):
            self._producer.finish()

    def status(self) -> Status:
        fullest = max(self.devices, key=lambda device: self._figures(device.index)[0])
        steps, seconds = (
            self._producer.progress if isinstance(self._producer, CudaHistory) else self._progress
        )
        return Status(steps, seconds, fullest.index, *self._figures(fullest.index), fullest.capacity)

    def _figures(self, index: int) -> tuple[int, int, int, int]:
        """allocated, reserved and their peaks over the run."""
        if isinstance(self._producer, CudaHistory):
            return self._producer.figures(index)
        memory = self._producer.devices[index].allocator
        return memory.allocated, memory.reserved, memory.peak_allocated, memory.peak_reserved

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
