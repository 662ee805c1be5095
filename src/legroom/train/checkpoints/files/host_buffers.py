"""Copies tensors to host memory, into buffers that are as large as one block of the file.

The file is written from the copies, so training can change the tensors in the meantime. Copies from a GPU go into
page-locked memory and are asynchronous; `wait()` waits for them. Page-locked buffers are reused for the next
checkpoint, because allocating a buffer takes longer than filling it.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from legroom.train.checkpoints.files.checked_files import BLOCK_BYTES


class HostBuffers:
    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._events: list[Any] = []
        self._used = 0

    @torch.no_grad()
    def copy_from(self, tensors: Sequence[torch.Tensor]) -> None:
        self._used = sum(tensor.nbytes for tensor in tensors)
        self._allocate(pinned=any(tensor.is_cuda for tensor in tensors))
        offset = 0
        devices = set()
        for tensor in tensors:
            if tensor.is_cuda:
                devices.add(tensor.device)
            if tensor.nbytes:
                self._copy(bytes_of(tensor), offset)
            offset += tensor.nbytes
        self._events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait(self) -> list[memoryview]:
        for event in self._events:
            event.synchronize()
        self._events = []
        views, remaining = [], self._used
        for buffer in self._buffers:
            if remaining <= 0:
                break
            views.append(memory_of(buffer)[:remaining])
            remaining -= len(buffer)
        return views

    def release(self) -> None:
        if not all(buffer.is_pinned() for buffer in self._buffers):
            self._buffers = []

    def _allocate(self, *, pinned: bool) -> None:
        if self._buffers and self._buffers[0].is_pinned() != pinned:
            self._buffers = []
        while sum(len(buffer) for buffer in self._buffers) < self._used:
            if self._buffers and len(self._buffers[-1]) < BLOCK_BYTES:
                self._buffers.pop()  # the last buffer of a smaller checkpoint
            missing = self._used - sum(len(buffer) for buffer in self._buffers)
            size = BLOCK_BYTES if pinned and missing > BLOCK_BYTES // 2 else min(BLOCK_BYTES, missing)
            self._buffers.append(torch.empty(size, dtype=torch.uint8, pin_memory=pinned))

    def _copy(self, source: torch.Tensor, offset: int) -> None:
        done = 0
        while done < len(source):
            buffer, start = divmod(offset + done, BLOCK_BYTES)
            count = min(len(source) - done, BLOCK_BYTES - start)
            target = self._buffers[buffer][start : start + count]
            target.copy_(source[done : done + count], non_blocking=source.is_cuda)
            done += count


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return a view of a contiguous CPU tensor's bytes, valid while the tensor is alive."""
    return memoryview((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in row-major order, as they are written to the file. The result is a view if the
    tensor is contiguous, and otherwise a copy."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
