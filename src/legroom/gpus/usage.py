"""How much of each GPU is in use, by whoever: NVML's figure where that is true, else CUDA's own.

In some containers NVML tells a GPU's size and says that nothing of it is used. CUDA knows better, but only inside a context, which takes some
hundred MiB and makes a process unfit to be forked from. So CUDA is asked in a short process of its own: once, to learn whether NVML
sees at least that context, and from then on only where it does not.
"""

import contextlib
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

from legroom.gpus.catalog import real_gpu
from legroom.gpus.machine import NA, NotAvailable, VisibleGpu, visible_gpus

PATIENCE = 30.0
"""Seconds for the process that asks CUDA."""

_ASKS_CUDA = """
import ctypes, json
cuda, told = ctypes.CDLL("libcuda.so.1"), []
count, context = ctypes.c_int(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for index in range(count.value):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), index) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    told.append(total.value - free.value)
print(json.dumps(told), flush=True)
input()
"""
"""Bytes in use of each GPU, its own context's included, which lives until a line is read. A device's handle is its number."""


def gpus_in_use() -> list[VisibleGpu]:
    """The GPUs that this torch can use, with what is used of them."""
    gpus = visible_gpus()
    if not gpus or _nvml_tells_the_truth():
        return gpus
    with _asked_of_cuda() as used:
        if isinstance(used, NotAvailable) or len(used) != len(gpus):
            return gpus
    return [
        replace(gpu, used=max(0, size - _context(gpu)), processes=NA)
        for gpu, size in zip(gpus, used, strict=True)
    ]


@functools.cache
def _nvml_tells_the_truth() -> bool:
    """Whether NVML sees at least half of what CUDA sees while there is a context on every GPU."""
    with _asked_of_cuda() as used:
        gpus = visible_gpus()
    if isinstance(used, NotAvailable) or len(used) != len(gpus):
        return True  # there is no better source
    return all(
        not isinstance(gpu.used, NotAvailable) and 2 * gpu.used >= size
        for gpu, size in zip(gpus, used, strict=True)
    )


@contextlib.contextmanager
def _asked_of_cuda() -> Iterator[list[int] | NotAvailable]:
    """What CUDA tells, in a process that has its contexts as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-c", _ASKS_CUDA],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    patience = threading.Timer(PATIENCE, process.kill)
    patience.start()
    try:
        assert process.stdout is not None
        try:
            told: list[int] | NotAvailable = json.loads(process.stdout.readline())
        except ValueError:  # no driver: it died without a word
            told = NA
        yield told
    finally:
        patience.cancel()
        process.kill()
        process.communicate()


def _context(gpu: VisibleGpu) -> int:
    """What a context takes of it, the asking process's here."""
    return real_gpu(gpu.name, gpu.total).context
