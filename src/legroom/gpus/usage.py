"""Determines the memory in use on each GPU, and the processes that use it.

In some containers, NVML reports the correct size of a GPU, but no used memory. CUDA reports the correct value, but
only inside a context, which uses several hundred MiB and makes forking unsafe. CUDA is therefore queried in a
short-lived process. The first query also checks whether the memory that NVML reports as used includes this context.
If the memory includes the context, NVML is correct on this machine, and CUDA is not queried again.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from legroom.gpus.catalog import real_gpu
from legroom.gpus.machine import Gpu, VisibleGpu, gpus, visible_gpus
from legroom.gpus.nvml import NA, NotAvailable
from legroom.units import format_size

TIMEOUT = 30.0
"""The maximum number of seconds for the process that queries CUDA."""

_QUERY_CUDA = """
import ctypes, json
cuda, used = ctypes.CDLL("libcuda.so.1"), []
count, context = ctypes.c_int(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for index in range(count.value):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), index) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    used.append(total.value - free.value)
print(json.dumps(used), flush=True)
input()
"""
"""A program that prints the bytes in use on each GPU, including its own context.

The program keeps its context until it reads a line.
"""


def gpus_in_use() -> list[VisibleGpu]:
    found = visible_gpus()
    if not found or _nvml_is_reliable():
        return found
    with _used_by_cuda() as used:
        if isinstance(used, NotAvailable) or len(used) != len(found):
            return found
    return [
        replace(gpu, used=max(0, size - real_gpu(gpu.name, gpu.total).context), processes=NA)
        for gpu, size in zip(found, used, strict=True)
    ]


@functools.cache
def _nvml_is_reliable() -> bool:
    """Return True if NVML reports at least half of the memory that CUDA reports while every GPU has a context."""
    with _used_by_cuda() as used:
        found = visible_gpus()
    if isinstance(used, NotAvailable) or len(used) != len(found):
        return True  # there is no other source
    return all(
        not isinstance(gpu.used, NotAvailable) and 2 * gpu.used >= size
        for gpu, size in zip(found, used, strict=True)
    )


@contextlib.contextmanager
def _used_by_cuda() -> Iterator[list[int] | NotAvailable]:
    """Yield the bytes in use on each GPU, from a process that keeps its CUDA contexts until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _QUERY_CUDA],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    timeout = threading.Timer(TIMEOUT, process.kill)
    timeout.start()
    try:
        assert process.stdout is not None
        try:
            used: list[int] | NotAvailable = json.loads(process.stdout.readline())
        except ValueError:  # without a driver, the process prints nothing
            used = NA
        yield used
    finally:
        timeout.cancel()
        process.kill()
        process.communicate()


def other_processes(device: int) -> str:
    """Describe the other processes on a GPU, for example `process 4242 (python) uses 2.10 GiB of this GPU`.

    The result is "" if there are no other processes, or if the driver does not report them.
    """
    gpu = _gpu_of(device, gpus())
    if gpu is None or isinstance(gpu.processes, NotAvailable):
        return ""
    found = [
        f"process {each.pid}{_name(each.pid)} uses "
        + ("some" if isinstance(each.bytes, NotAvailable) else format_size(each.bytes))
        for each in gpu.processes
        if each.pid != os.getpid()
    ]
    return f"{' and '.join(found[:4])} of this GPU" if found else ""


def _gpu_of(device: int, found: Sequence[Gpu]) -> Gpu | None:
    import torch

    if len(found) == 1:
        return found[0]
    try:
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    except (RuntimeError, AssertionError):
        return None
    return next((gpu for gpu in found if uuid and gpu.uuid.removeprefix("GPU-") == uuid), None)


def _name(pid: int) -> str:
    import psutil

    try:
        return f" ({psutil.Process(pid).name()})"
    except psutil.Error:
        return ""
