"""Tensors copied into host memory, one after the other, in slabs as large as the pieces of a file.

What is written is the copy, so training may go on. Copies from a GPU go into page-locked memory and are only queued:
whatever the program queues after them waits, on the GPU, until they are done; the host waits in `filled()`. Page-locked
slabs are kept for the next checkpoint, because making them takes longer than filling them.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from legroom.train.checkpoints.files.checked_files import PIECE


class Slabs:
    """Host memory for one checkpoint at a time."""

    def __init__(self) -> None:
        self._slabs: list[torch.Tensor] = []
        self._events: list[Any] = []
        self._used = 0

    @torch.no_grad()
    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the tensors' bytes, in order and without gaps."""
        self._used = sum(tensor.nbytes for tensor in tensors)
        self._make(pinned=any(tensor.is_cuda for tensor in tensors))
        offset = 0
        devices = set()
        for tensor in tensors:
            if tensor.is_cuda:
                devices.add(tensor.device)
            if tensor.nbytes:
                self._put(bytes_of(tensor), offset)
            offset += tensor.nbytes
        self._events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def filled(self) -> list[memoryview]:
        """The bytes, once all copies have arrived."""
        for event in self._events:
            event.synchronize()
        self._events = []
        views, left = [], self._used
        for slab in self._slabs:
            if left <= 0:
                break
            views.append(memory_of(slab)[:left])
            left -= len(slab)
        return views

    def done(self) -> None:
        """The bytes are not needed any more."""
        if not all(slab.is_pinned() for slab in self._slabs):
            self._slabs = []

    def _make(self, *, pinned: bool) -> None:
        if self._slabs and self._slabs[0].is_pinned() != pinned:
            self._slabs = []
        while sum(len(slab) for slab in self._slabs) < self._used:
            if self._slabs and len(self._slabs[-1]) < PIECE:
                self._slabs.pop()  # it was the last one of something smaller
            missing = self._used - sum(len(slab) for slab in self._slabs)
            size = PIECE if pinned and missing > PIECE // 2 else min(PIECE, missing)
            self._slabs.append(torch.empty(size, dtype=torch.uint8, pin_memory=pinned))

    def _put(self, source: torch.Tensor, offset: int) -> None:
        done = 0
        while done < len(source):
            slab, start = divmod(offset + done, PIECE)
            count = min(len(source) - done, PIECE - start)
            target = self._slabs[slab][start : start + count]
            target.copy_(source[done : done + count], non_blocking=source.is_cuda)
            done += count


def memory_of(tensor: torch.Tensor) -> memoryview:
    """A contiguous tensor's bytes in host memory, in place; good while the tensor lives."""
    return memoryview((ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as the bytes it would be in a file: itself where it lies in order, a copy otherwise."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
