"""Out-of-memory errors on a virtual GPU. The errors have torch's type and message. All errors are recorded, and tests
can inject errors.

A test can make each allocation of a training step fail in turn, to check that an error handler works for every
allocation. If a test only fills the GPU, just one of the allocations fails.
"""

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from legroom.errors import UsageError
from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.annotations import ForwardProgress, HolderCoverage
from legroom.memory.event_base import Phase
from legroom.memory.events import Oom
from legroom.observe.dispatch.attribution import OpLocation
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.holders.holders import HolderSurvey, StepStorage, survey_holders, tensors_in_frames
from legroom.observe.program_state import program_state
from legroom.observe.virtual.host import VirtualDevice
from legroom.observe.virtual.torch_api.memory import call_oom_observers
from legroom.units import GiB, KiB, MiB


def report_out_of_memory(
    recorder: Recorder, failure: AllocationFailed, device: VirtualDevice, location: OpLocation, op: str
) -> torch.OutOfMemoryError:
    """Record a failed allocation and the objects that retain memory at this moment. Return the error to raise."""
    message = oom_message(failure, device)
    free = device.capacity - device.context_bytes - device.allocator.reserved
    call_oom_observers(device.index, failure.segment_bytes, device.allocator.limit or device.capacity, free)
    frame = sys._getframe(1)
    try:
        holding = _survey(recorder, frame)
        allocator = device.allocator
        recorder.emit(
            Oom(
                recorder.allocations.seconds, device.index, failure.requested, device.capacity,
                min(allocator.limit or device.capacity, device.capacity), allocator.allocated, allocator.reserved,
                allocator.cached, allocator.fragmented, allocator.largest_free_block, device.context_bytes,
                recorder.clock.step, location.phase, location.module, location.frame, op, message,
            )
        )  # fmt: skip
        if holding is not None:
            holders = holding.holders(_allocated_in_this_step(recorder), location.module)
            for holder in holders.largest:
                recorder.emit(holder)
            recorder.emit(HolderCoverage(recorder.allocations.seconds, holders.total_bytes))
        if location.phase is Phase.FORWARD and recorder.modules.progress is not None:
            recorder.emit(ForwardProgress(recorder.allocations.seconds, recorder.modules.progress))
        for detail in program_state(recorder.allocations.seconds, recorder.clock):
            recorder.emit(detail)
    finally:
        del frame
    return torch.OutOfMemoryError(message)


def _survey(recorder: Recorder, frame: FrameType) -> HolderSurvey | None:
    """Return the objects that retain memory, or None if the program has an object that cannot be read. The program must
    get its out-of-memory error in any case.
    """
    try:
        holding = survey_holders(frame, recorder.measure)
        recorder.update_categories(tensors_in_frames(frame), holding.categories())
    except Exception:
        return None
    return holding


def _allocated_in_this_step(recorder: Recorder) -> list[StepStorage]:
    return [
        StepStorage(key, live.block.size, live.frame, live.phase is Phase.BACKWARD)
        for key, live in list(recorder.live.items())  # a storage may be freed meanwhile
        if live.block is not None and live.step == recorder.clock.step
    ]


def oom_message(failure: AllocationFailed, device: VirtualDevice) -> str:
    """Return the error message in the form that torch 2.11 uses on a real GPU."""
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


class InjectedFailure(AllocationFailed):
    """A failure that a test requested. The allocator does not retry the allocation, even if enough memory is free."""


class Faults:
    """Makes `times` consecutive allocations fail, starting with allocation `number`. Allocations are counted from the
    creation of this object."""

    injected = 0

    def __init__(self, allocators: Iterable[Allocator], number: int, times: int) -> None:
        if number < 1 or times < 1:
            raise UsageError(
                f"`number` and `times` must be at least 1, but got number={number}, times={times}. "
                "`fail_allocation(1)` makes the next allocation fail."
            )
        self._allocators: list[Any] = list(allocators)
        self._first, self._last, self._count = number, number + times - 1, 0
        for allocator in self._allocators:
            allocator.malloc = self._counting(allocator)

    @property
    def happened(self) -> bool:
        return self._count >= self._first

    def disarm(self) -> None:
        for allocator in self._allocators:
            vars(allocator).pop("malloc", None)
        self._allocators = []

    def _counting(self, allocator: Allocator) -> Any:
        original = allocator.malloc

        def malloc(size: int, stream: int = 0) -> Any:
            self._count += 1
            if self._count >= self._last:
                self.disarm()
            if self._count < self._first:
                return original(size, stream)
            Faults.injected += 1
            raise InjectedFailure(size, size)

        return malloc
