"""What a training step asks of memory, as a list of requests that can be replayed on a GPU of any size."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from legroom.memory.events import Alloc, Event, Free
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.gpus import Gpu
from legroom.observe.stand_ins import StandIns
from legroom.observe.virtual.gpu import VirtualGPU

Mode = Literal["fake", "cpu"]


@dataclass(slots=True, kw_only=True)
class Trace:
    """One traced run: its events on an endless device."""

    gpu: Gpu
    """Whose kernels the trace describes."""
    mode: Mode
    """`fake`: tensors without data; `cpu`: real arithmetic, because the program needed its data."""
    events: list[Event] = field(default_factory=list)
    steps: int = 0
    trains: bool = False
    """Whether a backward pass or an optimizer step was seen."""
    batch_size: int | None = None
    doubt: int = 0
    """Bytes that kernels may have held at the peak beyond what is known of them."""
    made_up: int = 0
    """How many values the program asked for and was given a stand-in."""
    notes: list[str] = field(default_factory=list)

    def requests(self, device: int = 0) -> list[tuple[int, int, int]]:
        """In order: (id, bytes, stream) for each allocation, (id, -1, 0) for each free, of one device."""
        alive: set[int] = set()
        asked: list[tuple[int, int, int]] = []
        for event in self.events:
            if type(event) is Alloc and event.device == device:
                alive.add(event.id)
                asked.append((event.id, event.bytes, event.stream))
            elif type(event) is Free and event.id in alive:
                asked.append((event.id, -1, 0))
        return asked


def make_device(gpu: Gpu, mode: Mode, sink: Callable[[Event], None]) -> VirtualGPU:
    """An endless virtual GPU that behaves like `gpu`, for tracing."""
    return VirtualGPU(
        gpu.memory,
        sink=sink,
        rules=CudaRules(gpu),
        stand_ins=StandIns() if mode == "fake" else None,
        bounded=False,
    )


def finish(trace: Trace, device: VirtualGPU) -> Trace:
    """Take over what the device knows at the end of a trace."""
    recorder = device.recorder
    trace.steps = recorder.clock.step
    trace.trains = recorder.clock.trains
    trace.doubt = max(0, recorder.doubtful_peak - device.devices[0].allocator.peak_allocated)
    trace.made_up = 0 if device.stand_ins is None else device.stand_ins.made_up
    return trace


def trace_steps(
    make_step: Callable[[], Callable[[], object]], gpu: Gpu, *, steps: int = 2, mode: Mode = "fake"
) -> Trace:
    """Trace `steps` calls of what `make_step()` gives; both run with `cuda` served by the traced device."""
    trace = Trace(gpu=gpu, mode=mode)
    with make_device(gpu, mode, trace.events.append) as device:
        step = make_step()
        for _ in range(steps):
            step()
        finish(trace, device)
        trace.steps = trace.steps or steps
        del step
    return trace
