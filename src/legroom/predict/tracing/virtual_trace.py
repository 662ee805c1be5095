"""Traces what a program asks of memory: it runs on an endless virtual GPU that behaves like the one in question."""

from collections.abc import Callable

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from legroom.gpus.catalog import GpuSpec
from legroom.memory.events import Event
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict import uncertainty
from legroom.predict.tracing.trace import Mode, Trace


def make_device(gpu: GpuSpec, mode: Mode, sink: Callable[[Event], None]) -> VirtualGPU:
    """An endless virtual GPU that behaves like `gpu`, for tracing."""
    return VirtualGPU(
        gpu,
        sink=sink,
        rules=CudaRules(gpu),
        fake_tensors=FakeTensors() if mode == "fake" else None,
        bounded=False,
    )


def finish(trace: Trace, device: VirtualGPU) -> Trace:
    """Take over what the device knows at the end of a trace."""
    recorder = device.recorder
    trace.steps = recorder.clock.step
    trace.trains = recorder.clock.trains
    trace.doubts = recorder.allocations.alternatives
    trace.spare = recorder.allocations.optional
    trace.doubt = uncertainty.of(trace)
    if recorder.rules is not None:
        notes = list(recorder.rules.notes)
        trace.differing_versions = recorder.rules.differing_versions()
        if trace.differing_versions:
            notes.append(uncertainty.version_note(trace.differing_versions))
        trace.notes.extend(note for note in notes if note not in trace.notes)
    trace.made_up = 0 if device.fake_tensors is None else device.fake_tensors.values_substituted
    return trace


def trace_steps(
    make_step: Callable[[], Callable[[], object]], gpu: GpuSpec, *, steps: int = 2, mode: Mode = "fake"
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


def needs_values(error: BaseException) -> bool:
    """Whether a trace without data ended because shapes depend on values that it has not: real arithmetic may do it."""
    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException)


def needs_arithmetic(error: BaseException) -> bool:
    """The same, or an operation of somebody's own gives no shapes without data."""
    if needs_values(error) or isinstance(error, UnsupportedOperatorException):
        return True
    return type(error) is RuntimeError and _NO_SHAPES in str(error)


_NO_SHAPES = "fake impl"
"""What torch says of a custom operation whose results' shapes nobody declared."""
