"""The out-of-memory error of a virtual GPU: torch's own type, wording and figures, and the record of it."""

import sys
from typing import Protocol

import torch

from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.annotations import ForwardProgress, HolderCoverage
from legroom.memory.events import Oom, Phase
from legroom.observe.dispatch.attribution import OpLocation
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.holders.holders import StepStorage, survey_holders, tensors_in_frames
from legroom.observe.virtual.torch_api.memory import out_of_memory as tell_observers
from legroom.units import GiB, KiB, MiB


class Device(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def context_bytes(self) -> int: ...

    @property
    def allocator(self) -> Allocator: ...


def report_out_of_memory(
    recorder: Recorder, failure: AllocationFailed, device: Device, place: OpLocation, op: str
) -> torch.OutOfMemoryError:
    """Record an allocation that failed (who holds what, at this very moment) and give the error to raise."""
    message = wording(failure, device)
    free = device.capacity - device.context_bytes - device.allocator.reserved
    tell_observers(device.index, failure.segment_bytes, device.allocator.limit or device.capacity, free)
    frame = sys._getframe(1)
    try:
        holding = survey_holders(frame, recorder.measure)
        recorder.update_categories(tensors_in_frames(frame), holding.categories())
        allocator = device.allocator
        recorder.emit(
            Oom(
                recorder.allocations.seconds, device.index, failure.requested, device.capacity,
                min(allocator.limit or device.capacity, device.capacity), allocator.allocated, allocator.reserved,
                allocator.cached, allocator.fragmented, allocator.largest_free_block, device.context_bytes,
                recorder.clock.step, place.phase, place.module, place.frame, op, message,
            )
        )  # fmt: skip
        holders = holding.holders(_allocated_in_this_step(recorder), place.module)
        for holder in holders.largest:
            recorder.emit(holder)
        recorder.emit(HolderCoverage(recorder.allocations.seconds, holders.total_bytes))
        if place.phase is Phase.FORWARD and recorder.modules.progress is not None:
            recorder.emit(ForwardProgress(recorder.allocations.seconds, recorder.modules.progress))
    finally:
        del frame
    return torch.OutOfMemoryError(message)


def _allocated_in_this_step(recorder: Recorder) -> list[StepStorage]:
    return [
        StepStorage(key, live.block.size, live.frame, live.phase is Phase.BACKWARD)
        for key, live in list(recorder.live.items())  # a storage may die meanwhile
        if live.block is not None and live.step == recorder.clock.step
    ]


def wording(failure: AllocationFailed, device: Device) -> str:
    """As torch 2.11 says it (read off a real GPU)."""
    allocator = device.allocator
    in_use = allocator.reserved + device.context_bytes
    limit = allocator.limit
    capped = limit is not None and limit < device.capacity - device.context_bytes
    allowed = f"{_size(limit)} allowed; " if capped and limit is not None else ""
    return (
        f"CUDA out of memory. Tried to allocate {_size(failure.segment_bytes)}. "
        f"GPU {device.index} has a total capacity of {_size(device.capacity)} "
        f"of which {_size(max(device.capacity - in_use, 0))} is free. "
        f"Including non-PyTorch memory, this process has {_size(in_use)} memory in use. {allowed}"
        f"Of the allocated memory {_size(allocator.allocated)} is allocated by PyTorch, "
        f"and {_size(allocator.reserved - allocator.allocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation.  See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def _size(size: int) -> str:
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
