"""Traces the memory requests of a program. The program runs on a virtual GPU with unlimited memory that otherwise
behaves like a given GPU.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

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


def make_device(
    gpu: GpuSpec, mode: Mode, sink: Callable[[Event], None], gpus: Sequence[GpuSpec] = ()
) -> VirtualGPU:
    """Return a virtual GPU with unlimited memory that otherwise behaves like `gpu`. `gpus` contains all GPUs that are
    visible to the program.
    """
    return VirtualGPU(
        *(gpus or (gpu,)),
        sink=sink,
        rules=CudaRules(gpu),
        fake_tensors=FakeTensors() if mode == "fake" else None,
        bounded=False,
        suspends_active=True,
    )


@contextlib.contextmanager
def torch_log_disabled() -> Iterator[None]:
    """Disable the log message that torch writes for each fake operation that fails, because the caller raises the same
    error."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def finish(trace: Trace, device: VirtualGPU, *, with_uncertainty: bool = True) -> Trace:
    recorder = device.recorder
    trace.steps = recorder.clock.step
    trace.trains = recorder.clock.trains
    trace.is_settled = recorder.clock.is_settled
    trace.alternatives = recorder.allocations.alternatives
    trace.optional = recorder.allocations.optional
    if with_uncertainty:
        trace.uncertain_bytes = uncertainty.uncertain_bytes(trace)
    if recorder.rules is not None:
        notes = list(recorder.rules.notes)
        trace.differing_versions = recorder.rules.differing_versions()
        if trace.differing_versions:
            notes.append(uncertainty.version_note(trace.differing_versions))
        trace.notes.extend(note for note in notes if note not in trace.notes)
    trace.values_substituted = 0 if device.fake_tensors is None else device.fake_tensors.values_substituted
    return trace


def trace_steps(
    make_step: Callable[[], Callable[[], object]], gpu: GpuSpec, *, steps: int = 2, mode: Mode = "fake"
) -> Trace:
    """Trace `steps` calls to the function that `make_step()` returns. In `make_step` and in the returned function, the
    traced device is `cuda`.

    One more call is traced if an optimizer stepped for the first time in the last step (see
    `TrainingClock.is_settled`).
    """
    trace = Trace(gpu=gpu, mode=mode)
    with make_device(gpu, mode, trace.events.append) as device:
        step = make_step()
        for _ in range(steps):
            step()
        if not device.recorder.clock.is_settled:
            step()
        finish(trace, device)
        trace.steps = trace.steps or steps
        del step
    return trace


def needs_values(error: BaseException) -> bool:
    """Return whether a trace without data failed because the shapes of tensors depend on values. A run with real values
    may succeed.
    """
    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException)


def needs_arithmetic(error: BaseException) -> bool:
    """Return whether the shapes of tensors depend on values, or a custom operation has no fake implementation."""
    if needs_values(error) or isinstance(error, UnsupportedOperatorException):
        return True
    return type(error) is RuntimeError and _NO_FAKE_IMPLEMENTATION in str(error)


_NO_FAKE_IMPLEMENTATION = "fake impl"
"""A part of torch's error message for a custom operation that declares no output shapes."""
