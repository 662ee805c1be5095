"""Figures cheap enough to read after every step: what the devices and the C++ side of the host have in use.

An autograd graph that grows takes no device memory at all, and no Python objects either: its nodes live in the C library's
heap. glibc tells in under a microsecond how much of that heap is in use, to the byte, which makes one more node in
each step visible.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import torch


class Reading(NamedTuple):
    """The figures of one moment."""

    device: int
    """Bytes in use on all devices together."""
    host: int
    """Bytes in use in the C heap; 0 where the C library does not tell."""


class Counters:
    """Reads the figures. `allocated` gives the device's where something else than the CUDA allocator keeps them."""

    def __init__(self, allocated: Callable[[], int] | None = None) -> None:
        self._allocated = allocated or cuda_allocated
        self._host = _heap_in_use()

    def read(self) -> Reading:
        return Reading(self._allocated(), self._host() if self._host is not None else 0)


def cuda_allocated() -> int:
    """Bytes that live tensors hold on all CUDA devices in use; 0 without any."""
    return cuda_allocated_and_peak()[0]


def cuda_allocated_and_peak() -> tuple[int, int]:
    """Bytes that live tensors hold on all CUDA devices in use, and the highest that one device's held so far."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0, 0
    figures = [_figures_of(index) for index in range(torch.cuda.device_count())]
    return sum(now for now, _ in figures), max((peak for _, peak in figures), default=0)


def resident_bytes() -> int:
    """This process's memory on the host, as the system counts it."""
    return int(psutil.Process().memory_info().rss)


def _figures_of(index: int) -> tuple[int, int]:
    """Allocated bytes of a device and their peak. torch's own functions flatten a hundred figures for each of the two; the raw
    statistics are several times quicker. Without the private call, those functions are asked."""
    raw: Any = getattr(torch._C, "_cuda_memoryStats", None)
    if raw is None or getattr(torch.cuda.memory_allocated, "__module__", "") != "torch.cuda.memory":
        return int(torch.cuda.memory_allocated(index)), int(torch.cuda.max_memory_allocated(index))
    figures = raw(index)["allocated_bytes"]["all"]
    return int(figures["current"]), int(figures["peak"])


class _MallInfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _heap_in_use() -> Callable[[], int] | None:
    """glibc's `mallinfo2`. Elsewhere (macOS, musl) growth on the host is found on a sparse schedule only."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    ask.restype = _MallInfo

    def in_use() -> int:
        info = ask()
        return int(info.uordblks + info.hblkhd)

    return in_use
