"""This machine: its GPUs (from NVML), its memory and its processors (from the operating system).

This module does not initialize CUDA, so it is safe to use before a fork and while a script runs. A value is `NA` if the
driver, a library or a permission is missing. Missing values never raise an exception and are never reported as zero.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from legroom.gpus.nvml import NA, Count, NotAvailable, as_text, opened, query, read_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that uses a GPU."""

    pid: int
    bytes: Count
    """The device memory of the process, including the CUDA context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU and its current state. GPUs are listed in the order of the PCI bus, as in NVML."""

    index: int
    name: str
    uuid: str
    total: Count
    """The total memory in bytes as CUDA reports it, without the memory that the driver reserves."""
    used: Count
    """The number of bytes in use by all processes, CUDA contexts and the display."""
    utilization: Count
    """The percentage of the last sample period in which a kernel ran."""
    is_mig: bool | NotAvailable
    """True if the GPU is partitioned into MIG instances."""
    processes: tuple[GpuProcess, ...] | NotAvailable


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpu:
    """A GPU with the index that a CUDA program in this environment uses."""

    index: int
    name: str
    total: int
    used: Count = NA
    """The number of bytes in use by all processes, including this process."""
    processes: tuple[GpuProcess, ...] | NotAvailable = NA
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """The memory of this machine and of this process."""

    total: Count
    available: Count
    resident: Count
    limit: Count
    """The memory limit of the control group (cgroup), set by a container or a batch system."""
    used_of_limit: Count
    cache_of_limit: Count = NA
    """The part of `used_of_limit` that contains cached files, in bytes.

    The system frees these bytes when programs need memory.
    """


def gpus() -> list[Gpu]:
    with opened() as nvml:
        if nvml is None:
            return []
        count = query(nvml.nvmlDeviceGetCount)
        handles = [query(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count or 0)]
        return [_gpu(nvml, index, handle) for index, handle in enumerate(handles) if handle is not NA]


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[VisibleGpu]:
    """Return the GPUs that the installed torch can use.

    CUDA is initialized only if NVML cannot list the GPUs.

    If the machine has GPUs of different types and CUDA_DEVICE_ORDER is not set, CUDA's order may differ from the
    order of the PCI bus.
    """
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return []
    with opened() as nvml:
        handles = (
            _visible_handles(nvml, environ) if nvml is not None and torch.version.cuda is not None else None
        )
        if handles is not None:
            found = [_visible(nvml, index, handle) for index, handle in enumerate(handles)]
            complete = [gpu for gpu in found if gpu is not None]
            if len(complete) == len(found):
                return complete
    if not torch.cuda.is_available():
        return []
    return [_from_torch(torch.cuda, index) for index in range(torch.cuda.device_count())]


def named_gpus(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES up to the first empty entry, or None if the variable is not set.

    CUDA also stops at the first empty entry.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    return None if named is None else list(takewhile(bool, map(str.strip, named.split(","))))


def driver_version() -> str | NotAvailable:
    with opened() as nvml:
        version = NA if nvml is None else query(nvml.nvmlSystemGetDriverVersion)
        return version if version is NA else as_text(version)


def processors() -> int:
    """Return the number of CPU cores that this process is allowed to use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_usage(system: Path = Path("/sys/fs/cgroup"), processes: Path = Path("/proc")) -> HostUsage:
    total = available = resident = NA
    with contextlib.suppress(ImportError):
        import psutil

        memory = query(psutil.virtual_memory)
        if memory is not NA:
            total, available = memory.total, memory.available
        resident = query(lambda: psutil.Process().memory_info().rss)
    limit, used, cache = _control_group(system, processes)
    return HostUsage(
        total=total,
        available=available,
        resident=resident,
        limit=limit,
        used_of_limit=used,
        cache_of_limit=cache,
    )


# --- NVML


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    total, used = read_memory(nvml, handle)
    rates = query(nvml.nvmlDeviceGetUtilizationRates, handle)
    mig = query(nvml.nvmlDeviceGetMigMode, handle)
    return Gpu(
        index=index,
        name=as_text(query(nvml.nvmlDeviceGetName, handle)),
        uuid=as_text(query(nvml.nvmlDeviceGetUUID, handle)),
        total=total,
        used=used,
        utilization=NA if rates is NA else rates.gpu,
        is_mig=NA if mig is NA else bool(mig[0]),
        processes=_processes(nvml, handle),
    )


def _visible(nvml: Any, index: int, handle: Any) -> VisibleGpu | None:
    total, used = read_memory(nvml, handle)
    if isinstance(total, NotAvailable):
        return None
    name = as_text(query(nvml.nvmlDeviceGetName, handle))
    uuid = query(nvml.nvmlDeviceGetUUID, handle)
    return VisibleGpu(
        index=index,
        name=name,
        total=total,
        used=used,
        processes=_processes(nvml, handle),
        uuid="" if uuid is NA else as_text(uuid),
    )


def _from_torch(cuda: Any, index: int) -> VisibleGpu:
    """Return a GPU that NVML cannot list. This function creates a CUDA context."""
    properties, memory = cuda.get_device_properties(index), query(cuda.mem_get_info, index)
    used = NA if memory is NA else memory[1] - memory[0]
    return VisibleGpu(index=index, name=properties.name, total=properties.total_memory, used=used)


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...] | NotAvailable:
    running = query(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if isinstance(running, NotAvailable):
        return running
    return tuple(
        GpuProcess(pid=process.pid, bytes=NA if process.usedGpuMemory is None else process.usedGpuMemory)
        for process in running
    )


def _visible_handles(nvml: Any, environ: Mapping[str, str]) -> list[Any] | None:
    """Return the NVML handles of the GPUs in CUDA_VISIBLE_DEVICES, or None if NVML cannot resolve the entries."""
    count = query(nvml.nvmlDeviceGetCount)
    if count is NA:
        return None
    named = named_gpus(environ)
    if named is None:
        handles = [query(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        partitioned = any((query(nvml.nvmlDeviceGetMigMode, handle) or (0,))[0] for handle in handles)
        return None if partitioned or NA in handles else handles
    chosen: list[Any] = []
    for entry in named:
        if not entry.isdecimal() or int(entry) >= count:
            # CUDA stops at the first invalid number. Only CUDA can resolve the UUIDs of GPUs and MIG instances.
            return None if entry.startswith(("GPU-", "MIG-")) else chosen
        handle = query(nvml.nvmlDeviceGetHandleByIndex, int(entry))
        if handle is NA or (query(nvml.nvmlDeviceGetMigMode, handle) or (0,))[0]:
            return None
        chosen.append(handle)
    return chosen


# --- the host


def _control_group(system: Path, processes: Path) -> tuple[Count, Count, Count]:
    """Return the lowest memory limit that applies to this process, the number of bytes in use under this limit, and
    the number of these bytes that are cached files.
    """
    lowest: tuple[Count, Count, Count] = (NA, NA, NA)
    with contextlib.suppress(OSError, ValueError):
        for line in (processes / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                found = _limits(system, path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                found = _limits(system / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            for each in found:
                if isinstance(lowest[0], NotAvailable) or each[0] < lowest[0]:
                    lowest = each
    return lowest


def _limits(root: Path, path: str, limit_name: str, used_name: str) -> Iterator[tuple[int, int, Count]]:
    """Yield the limit, the usage and the cached files of a control group and its parents.

    In a container, the root of the control groups is the control group of the container.
    """
    folder = root / path.lstrip("/")
    for group in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / limit_name).read_text())  # "max" means no limit and raises ValueError
            if limit < 1 << 60:  # cgroup v1 reports a huge number for no limit
                yield limit, int((group / used_name).read_text()), _cached_files(group)
        if group == root:
            return


def _cached_files(group: Path) -> Count:
    """Return the number of bytes of cached files that are not in active use.

    Tools such as `docker stats` also subtract these bytes.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return NA
