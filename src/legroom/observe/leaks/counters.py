"""Memory counters that are cheap enough to read after every iteration: bytes in use on the devices and in the C heap.

A growing autograd graph may use no device memory and no Python objects, because its nodes are in the heap of the C
library. With glibc, reading the exact size of the heap takes less than a microsecond, so even one additional node per
iteration is visible.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class CounterReading(NamedTuple):
    device: int
    host: int
    """The number of bytes in use in the C heap, or 0 if the C library does not report it."""


class MemoryCounters:
    """Reads the memory counters. `allocated()` returns the number of bytes in use on all devices. The default is the
    counter of PyTorch's CUDA allocator.
    """

    def __init__(self, allocated: Callable[[], int] | None = None) -> None:
        self._allocated = allocated or cuda_allocated
        self._heap_bytes = _heap_counter()

    def read(self) -> CounterReading:
        return CounterReading(self._allocated(), self._heap_bytes() if self._heap_bytes is not None else 0)


def cuda_allocated() -> int:
    return cuda_allocated_and_peak()[0]


def cuda_allocated_and_peak() -> tuple[int, int]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0, 0
    stats = [_device_stats(index) for index in range(torch.cuda.device_count())]
    return sum(now for now, _ in stats), max((peak for _, peak in stats), default=0)


def resident_bytes() -> int:
    import psutil  # takes as long to import as the rest of `legroom.watch`

    return int(psutil.Process().memory_info().rss)


def _device_stats(index: int) -> tuple[int, int]:
    """Return the allocated bytes of a device and their peak. PyTorch's public functions flatten a hundred statistics
    for each value, so reading the raw statistics is several times faster. Without torch's private function, the public
    functions are used.
    """
    raw: Any = getattr(torch._C, "_cuda_memoryStats", None)
    if raw is None or getattr(torch.cuda.memory_allocated, "__module__", "") != "torch.cuda.memory":
        return int(torch.cuda.memory_allocated(index)), int(torch.cuda.max_memory_allocated(index))
    stats = raw(index)["allocated_bytes"]["all"]
    return int(stats["current"]), int(stats["peak"])


class _MallInfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _heap_counter() -> Callable[[], int] | None:
    """Return a function that reads the size of the heap with glibc's `mallinfo2`. Without glibc (macOS, Windows, musl),
    only the scheduled scans find growth on the host.
    """
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return None
    mallinfo.restype = _MallInfo

    def bytes_in_use() -> int:
        info = mallinfo()
        return int(info.uordblks + info.hblkhd)

    return bytes_in_use
