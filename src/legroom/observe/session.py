"""Records a run. A session selects the producer of events for this machine and reports the current memory use.

If virtual GPUs are active, the producer is the dispatch recorder on these GPUs. On a machine with a CUDA device, the
producer is the history of the CUDA allocator. On any other machine, the producer is the dispatch recorder for
tensors in host memory.

A session may start in the middle of a program (`legroom.record`). If a producer is already active, the session follows
it (see `following`). If no producer is active, tensors that already exist are recorded first.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import psutil
import torch

from legroom.gpus.catalog import GpuSpec
from legroom.gpus.machine import visible_gpus
from legroom.memory.annotations import LoopWatched, RecordingFailed
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Frame
from legroom.memory.events import Sink
from legroom.memory.live.status import DeviceStatus
from legroom.observe.compiled import compiled_functions_run_in_eager_mode
from legroom.observe.cuda.history import CudaHistory, active_history
from legroom.observe.dispatch.allocations import HostMemory
from legroom.observe.dispatch.recorder import Recorder, active_recorder
from legroom.observe.existing_tensors import record_existing_tensors
from legroom.observe.following import FollowedHistory, FollowedRecorder
from legroom.observe.leaks.detector import SEVERAL_THREADS, LeakDetector
from legroom.observe.leaks.repeated_lines import READS_ON_ONE_LINE, RepeatedLines, ResultReads
from legroom.observe.producer import MemoryStats, Producer
from legroom.observe.training import TrainingClock
from legroom.observe.virtual.gpu import VirtualGPU

DeviceKind = Literal["virtual", "cuda", "host"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device whose memory is recorded."""

    index: int
    name: str
    kind: DeviceKind
    capacity: int
    other: int = 0
    """The number of bytes that the CUDA context of a virtual GPU uses."""
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The current memory use of one device."""

    step: int
    seconds_per_step: float
    device: int
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    capacity: int


_MAX_SCANS = 48
"""The maximum number of scans in a program that has no model, optimizer or loader. A leak that grows in every iteration
is found with fewer scans.
"""


class Session:
    """Records the code that runs inside the `with` block and sends every event to `sink`."""

    def __init__(
        self,
        sink: Sink,
        *,
        gpus: Sequence[GpuSpec] | None = None,
        frequent_sink: Sink | None = None,
        on_step: Callable[[], None] | None = None,
        mid_program: bool = False,
        search_leaks: bool = True,
    ) -> None:
        """Set the options of the recording.

        - `gpus`: the virtual GPUs, or None to use the devices in this machine.
        - `frequent_sink`: receives the frequent events of the dispatch recorder instead of `sink`.
        - `on_step()` is called after the events of each step.
        - `mid_program`: whether the session starts while the program is already running.
        - `search_leaks`: whether to scan objects for leaks. If False, a report shows only which lines allocate more
          and more memory.
        """
        self._sink = sink
        self._search_leaks = search_leaks
        self._watching_reported = False
        self._line_scans = 0
        self._exit = contextlib.ExitStack()
        self._producer: Producer
        self.devices: list[DeviceInfo]
        if gpus is not None:
            self._producer = virtual = _VirtualProducer(frequent_sink or sink, gpus, on_step)
            self.devices = _virtual_devices(virtual.gpu)
        elif mid_program and (recorder := active_recorder()) is not None:
            self._producer = FollowedRecorder(recorder, sink)
            active = VirtualGPU.active()
            is_virtual = active is not None and active.recorder is recorder
            self.devices = _virtual_devices(active) if active and is_virtual else [_host_device()]
        elif real := visible_gpus():
            history = active_history() if mid_program else None
            self._producer = CudaHistory(sink) if history is None else FollowedHistory(history, sink)
            self.devices = [DeviceInfo(gpu.index, gpu.name, "cuda", gpu.total, uuid=gpu.uuid) for gpu in real]
        else:
            self._producer = _HostProducer(frequent_sink or sink, on_step, with_existing=mid_program)
            self.devices = [_host_device()]
        self._began = time.perf_counter()
        self._leak_detector = LeakDetector(
            self._record_leak, allocated=self._allocated, on_device=self._producer.is_on_device
        )

    def __enter__(self) -> "Session":
        self._began = time.perf_counter()
        self._exit.enter_context(self._producer)
        if not self._search_leaks:
            return self
        loaders = TrainingClock(on_batch=lambda _: self._leak_detector.iterations.next_batch())
        loaders.attach(batches_only=True)
        self._exit.callback(loaders.detach)
        self._leak_detector.attach()
        self._exit.callback(self._leak_detector.detach)
        if isinstance(self._producer, _DispatchProducer):
            self._watch_lines(self._producer.recorder)
        elif isinstance(self._producer, CudaHistory):
            self._watch_reads()
        return self

    def _watch_lines(self, recorder: Recorder) -> None:
        lines = RepeatedLines(self._line_repeated)

        def allocated(frame: Frame | None) -> None:
            lines.ran(frame)
            if not lines.is_active:
                recorder.on_line = None

        recorder.on_line = allocated

    def _watch_reads(self) -> None:
        lines = RepeatedLines(self._line_repeated, on_one_line=READS_ON_ONE_LINE)

        def read(frame: Frame | None) -> None:
            if not self._leak_detector.iterations.has_better_signal:
                lines.ran(frame)
                if lines.is_active:
                    return
            reads.detach()

        reads = ResultReads(read)
        reads.attach()
        self._exit.callback(reads.detach)

    def _line_repeated(self) -> bool:
        """Record the end of an iteration in a loop without a model. Return False if the loop no longer needs to be
        watched. The number of scans is limited, because without a training loop it is unknown how long the program
        will run.
        """
        detector = self._leak_detector
        if detector.leaks or self._line_scans > _MAX_SCANS:
            return False
        before = detector.scan_seconds
        is_best_sign = detector.iterations.line_repeated()
        self._line_scans += detector.scan_seconds > before
        return is_best_sign

    def __exit__(self, *error: object) -> None:
        try:
            self.finish()
        finally:
            self._exit.close()

    def finish(self) -> None:
        """Send the events that are still pending. This method may be called twice. On a real GPU, this method sends
        most events, because the history of the CUDA allocator is rarely read earlier.
        """
        self._producer.finish()
        self._leak_detector.finish()
        if self._leak_detector.iteration and not self._watching_reported:
            self._watching_reported = True
            if self._leak_detector.error:
                message = f"the search for leaks stopped with an internal error ({self._leak_detector.error})"
                self._sink(RecordingFailed(self._seconds, message))
            elif self._leak_detector.several_threads:
                self._sink(RecordingFailed(self._seconds, SEVERAL_THREADS))
            else:
                self._sink(LoopWatched(self._seconds, self._leak_detector.iteration))

    def status(self) -> Status:
        return self._status_of(
            max(self.devices, key=lambda device: self._producer.memory_stats(device.index).allocated)
        )

    def memory_stats(self, device: int) -> MemoryStats:
        return self._producer.memory_stats(device)

    def device_statuses(self) -> tuple[DeviceStatus, ...]:
        return tuple(
            DeviceStatus(
                index=device.index,
                name=device.name,
                kind=device.kind,
                uuid=device.uuid,
                capacity=device.capacity,
                **self.memory_stats(device.index)._asdict(),
            )
            for device in self.devices
        )

    @property
    def progress(self) -> tuple[int, float, int]:
        """The number of completed steps, the duration of the last step in seconds, and the bytes allocated at its
        end."""
        return *self._producer.progress, self._producer.allocated_after_step

    @property
    def leaks(self) -> list[DetectedLeak]:
        return list(self._leak_detector.leaks.values())

    def fullest(self) -> Status:
        def peak(device: DeviceInfo) -> tuple[float, int]:
            stats = self._producer.memory_stats(device.index)
            return stats.peak_reserved / max(device.capacity, 1), stats.peak_allocated

        return self._status_of(max(self.devices, key=peak))

    def _status_of(self, device: DeviceInfo) -> Status:
        steps, seconds = self._producer.progress
        stats = self._producer.memory_stats(device.index)
        return Status(steps, seconds, device.index, *stats, device.capacity)

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _record_leak(self, leak: DetectedLeak) -> None:
        self._sink(replace(leak, step=self.status().step, time=self._seconds))

    def _allocated(self) -> int:
        return sum(self._producer.memory_stats(device.index).allocated for device in self.devices)


def _virtual_devices(gpu: VirtualGPU) -> list[DeviceInfo]:
    return [
        DeviceInfo(each.index, each.name, "virtual", each.spec.total, each.spec.context)
        for each in gpu.devices
    ]


def _host_device() -> DeviceInfo:
    return DeviceInfo(0, "host memory", "host", psutil.virtual_memory().total)


class _AllocatorFigures(Protocol):
    @property
    def allocated(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def peak_allocated(self) -> int: ...
    @property
    def peak_reserved(self) -> int: ...


class _DispatchProducer:
    def __init__(self, recorder: Recorder, on_step: Callable[[], None] | None) -> None:
        self.progress = 0, 0.0
        self.allocated_after_step = 0
        self._on_step = on_step
        self.recorder = recorder
        self._record_step = recorder.clock.on_step_end
        recorder.clock.on_step_end = self._step_ended

    def finish(self) -> None:
        # All other events were sent when they occurred.
        clock, seconds = self.recorder.clock, self.recorder.allocations.seconds
        clock.end_step_without_optimizer()
        for each in clock.evaluations_with_gradients(seconds):
            self.recorder.emit(each)

    def memory_stats(self, device: int) -> MemoryStats:
        allocator = self._allocator(device)
        return MemoryStats(
            allocator.allocated, allocator.reserved, allocator.peak_allocated, allocator.peak_reserved
        )

    def _allocator(self, device: int) -> _AllocatorFigures:
        raise NotImplementedError

    def _allocated(self) -> int:
        raise NotImplementedError

    def _step_ended(self, step: int, seconds: float) -> None:
        self.progress = step + 1, seconds
        self.allocated_after_step = self._allocated()
        if self._record_step is not None:
            self._record_step(step, seconds)
        if self._on_step is not None:
            self._on_step()


class _VirtualProducer(_DispatchProducer):
    def __init__(self, sink: Sink, gpus: Sequence[GpuSpec], on_step: Callable[[], None] | None) -> None:
        self.gpu = VirtualGPU(*gpus, sink=sink)
        super().__init__(self.gpu.recorder, on_step)

    def __enter__(self) -> None:
        self.gpu.__enter__()

    def __exit__(self, *error: object) -> None:
        self.gpu.__exit__(*error)

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        return self.gpu.recorder.measure(tensor) is not None

    def _allocator(self, device: int) -> _AllocatorFigures:
        return self.gpu.devices[device].allocator

    def _allocated(self) -> int:
        return sum(device.allocator.allocated for device in self.gpu.devices)


class _HostProducer(_DispatchProducer):
    def __init__(
        self, sink: Sink, on_step: Callable[[], None] | None, *, with_existing: bool = False
    ) -> None:
        self._memory = HostMemory()
        self._with_existing = with_existing
        self._recorder = Recorder(sink, [self._memory], host_only=True, eager=True)
        super().__init__(self._recorder, on_step)
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._exit.enter_context(compiled_functions_run_in_eager_mode(self._recorder.compiles))
        self._recorder.attach()
        self._exit.callback(self._recorder.detach)
        if self._with_existing:
            try:
                record_existing_tensors(self._recorder)
            except BaseException:
                self._exit.close()
                raise

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type not in ("cpu", "meta")

    def _allocator(self, device: int) -> _AllocatorFigures:
        return self._memory

    def _allocated(self) -> int:
        return self._memory.allocated
