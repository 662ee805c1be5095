"""Predicts the memory of a step on given devices. The prediction uses fake tensors and does not affect the run.

    prediction = predict_step(device_model_of(device), 2, make_step)       # prediction.peaks: one per device

A trace needs a process without an active virtual GPU. If the run itself is on a virtual GPU, the trace runs in a
forked process. The peaks of this trace include only tensors, as on any virtual GPU. On systems that cannot fork, the
virtual GPU of the run is suspended during the trace. For a real GPU, the trace includes the workspaces of CUDA
kernels.
"""

import contextlib
import gc
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from legroom.errors import LegroomError
from legroom.gpus.catalog import GpuSpec, find_gpu, real_gpu
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc, Event, Free, Tag
from legroom.observe.cuda_rules.optimizers import installed as optimizers_by_lists
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.requests import ReplayPeaks, replay_requests
from legroom.predict.tracing.copying import DeviceCopies
from legroom.predict.tracing.trace import Trace
from legroom.processes import can_fork

T = TypeVar("T")
MakeStep = Callable[[DeviceCopies], Callable[[], object]]
"""A function that copies the model and the batch to the traced devices, and returns the step."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """The type of device to trace."""

    gpu: GpuSpec
    kernels: bool
    """Whether kernel workspaces are included. A virtual GPU runs no CUDA kernels, so its prediction includes no
    workspaces.
    """

    @property
    def capacity(self) -> int:
        return self.gpu.usable


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """The predicted memory of traced steps."""

    peaks: tuple[ReplayPeaks, ...]
    sharded_peaks: tuple[int, ...]
    """The peak of one device if weights, gradients and optimizer state are sharded, for each requested number of ranks.
    """
    reads_values: bool
    """Whether the step read values of tensors. If True, its memory use may depend on the data."""


def device_model_of(device: torch.device) -> DeviceModel:
    """Return the device model of this GPU. For a CPU, return the device model of a large GPU."""
    if device.type != "cuda":
        return DeviceModel(find_gpu("a100-80gb"), kernels=True)
    active = VirtualGPU._active
    if active is not None:
        return DeviceModel(
            active.devices[active.current if device.index is None else device.index].spec, kernels=False
        )
    properties = torch.cuda.get_device_properties(device)
    gpu = real_gpu(
        properties.name,
        int(properties.total_memory),
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
    )
    return DeviceModel(gpu, kernels=True)


def predict_step(
    device_model: DeviceModel,
    devices: int,
    make_step: MakeStep,
    *,
    steps: int = 2,
    sharded_over: Sequence[int] = (),
) -> StepPrediction:
    """Predict the peaks of `steps` steps. It is assumed that later steps have the same peaks."""

    def trace() -> StepPrediction:
        with trace_devices(device_model, devices) as (events, gpu):
            step = make_step(DeviceCopies())
            for _ in range(steps):
                step()
            reads_values = bool(gpu.fake_tensors and gpu.fake_tensors.values_read)
            del step
        trace = Trace(gpu=device_model.gpu, mode="fake", events=events)
        return StepPrediction(
            tuple(replay_requests(trace.requests(index)) for index in range(devices)),
            tuple(_sharded_peaks(events, sharded_over)),
            reads_values,
        )

    return outside_virtual_gpu(trace)


@contextlib.contextmanager
def trace_devices(device_model: DeviceModel, devices: int = 1) -> Iterator[tuple[list[Event], VirtualGPU]]:
    """Trace operations with fake tensors on virtual GPUs with unlimited memory. Yields the list of events and the
    `VirtualGPU`.
    """
    events: list[Event] = []
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True  # errors are raised, so torch need not log them
    try:
        with (
            VirtualGPU(
                *[device_model.gpu] * devices,
                sink=events.append,
                rules=CudaRules(device_model.gpu) if device_model.kernels else None,
                fake_tensors=FakeTensors(),
                bounded=False,
            ) as gpu,
            # Included in the rules. Optimizers on a virtual GPU use multi-tensor operations as well.
            contextlib.nullcontext() if device_model.kernels else optimizers_by_lists(),
        ):
            yield events, gpu
    finally:
        logger.disabled = was_disabled


def _sharded_peaks(events: list[Event], ranks: Sequence[int]) -> list[int]:
    """Return the peak for each number of ranks, on a device that has one shard of each sharded tensor and all other
    tensors. With 0 ranks, the size of a shard is 0.
    """
    categories = {event.id: event.category for event in events if type(event) is Alloc}
    categories.update({event.id: event.category for event in events if type(event) is Tag})
    sharded = unsharded = 0
    peaks = [0] * len(ranks)
    sizes: dict[int, int] = {}
    for event in events:
        if type(event) is Alloc:
            change = sizes[event.id] = event.block_bytes
        elif type(event) is Free and event.id in sizes:
            change = -sizes.pop(event.id)
        else:
            continue
        if categories[event.id] in _SHARDED:
            sharded += change
        else:
            unsharded += change
        for index, count in enumerate(ranks):
            peaks[index] = max(peaks[index], unsharded + (-(-sharded // count) if count else 0))
    return peaks


_SHARDED = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)


def outside_virtual_gpu(function: Callable[[], T]) -> T:
    """Call `function()` without an active virtual GPU. If a virtual GPU is active, the call runs in a forked process,
    or the virtual GPU is suspended during the call.
    """
    active = VirtualGPU._active
    if active is None:
        return function()
    if not can_fork():
        with active.suspended():
            return function()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        _run_in_child(write_end, function)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not data:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise LegroomError(
            f"The process that predicts memory exited without a result ({how}). Check that enough host memory is free."
        )
    succeeded, result = pickle.loads(data)
    if not succeeded:
        raise result
    return result  # type: ignore[no-any-return]


def _run_in_child(write_end: int, function: Callable[[], Any]) -> None:
    """Run the function, and exit the process without running the program's exit handlers."""
    try:
        try:
            active = VirtualGPU._active
            assert active is not None
            gc.freeze()
            # A fork has no OpenMP threads: a computation that waits for them would hang.
            torch.set_num_threads(1)
            active.__exit__()
            data = pickle.dumps((True, function()))
        except Exception as error:
            data = _pickle_error(error)
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)


def _pickle_error(error: Exception) -> bytes:
    try:
        data = pickle.dumps((False, error))
        pickle.loads(data)
        return data
    except Exception:
        return pickle.dumps((False, LegroomError(f"{type(error).__name__}: {error}")))
