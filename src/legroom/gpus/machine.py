"""Live figures of this machine: its GPUs through NVML, its memory and processors through the system.

Nothing here initialises CUDA, so it may be asked before a script that forks, or beside one that runs. Everything is
optional: no driver, no library or no permission makes a figure `NA`, never an exception and never a plausible zero.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import Any


class NotAvailable(Enum):
    """The type of a figure that this machine does not tell."""

    NA = "N/A"

    def __str__(self) -> str:
        return "N/A"

    def __bool__(self) -> bool:
        return False


NA = NotAvailable.NA
Count = int | NotAvailable
"""A number that may not be available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that uses a GPU."""

    pid: int
    bytes: Count
    """Device memory, CUDA context included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU at one moment, in NVML's order (which is that of the bus)."""

    index: int
    name: str
    uuid: str
    total: Count
    """As CUDA counts it: without what the driver keeps for itself."""
    used: Count
    """By every process, and by none in particular (contexts, the display)."""
    utilization: Count
    """Percent of the last moments in which a kernel ran."""
    is_mig: bool | NotAvailable
    """Whether it is divided into instances."""
    processes: tuple[GpuProcess, ...] | NotAvailable


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpu:
    """A GPU as a CUDA program of this environment numbers it."""

    index: int
    name: str
    total: int
    used: Count = NA
    """By every process, this one's too."""
    processes: tuple[GpuProcess, ...] | NotAvailable = NA


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The memory of this machine, and of this process in it."""

    total: Count
    available: Count
    resident: Count
    """Held by this process."""
    limit: Count
    """What the control group (a container, a batch system) allows this process and those beside it."""
    used_of_limit: Count


def gpus() -> list[Gpu]:
    """Every GPU that the driver shows; none without a driver."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        count = _ask(nvml.nvmlDeviceGetCount)
        handles = [_ask(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count or 0)]
        return [_gpu(nvml, index, handle) for index, handle in enumerate(handles) if handle is not NA]


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[VisibleGpu]:
    """The GPUs that this torch can use, without initialising CUDA where NVML can answer for it.

    On a machine with different GPUs and no CUDA_DEVICE_ORDER, CUDA may number them otherwise than the bus does.
    """
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return []
    with _nvml() as nvml:
        handles = (
            _visible_handles(nvml, environ) if nvml is not None and torch.version.cuda is not None else None
        )
        if handles is not None:
            found = [_visible(nvml, index, handle) for index, handle in enumerate(handles)]
            told = [gpu for gpu in found if gpu is not None]
            if len(told) == len(found):
                return told
    if not torch.cuda.is_available():
        return []
    return [_asked_of_torch(torch.cuda, index) for index in range(torch.cuda.device_count())]


def named_gpus(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names, each as it is written there; None where it is not set: all GPUs then.

    CUDA reads no further than an empty place.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    return None if named is None else list(takewhile(bool, map(str.strip, named.split(","))))


def driver_version() -> str | NotAvailable:
    """The NVIDIA driver's."""
    with _nvml() as nvml:
        version = NA if nvml is None else _ask(nvml.nvmlSystemGetDriverVersion)
        return version if version is NA else _text(version)


def processors() -> int:
    """How many this process may use: of a machine that is shared, those that it was given."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host(system: Path = Path("/sys/fs/cgroup"), processes: Path = Path("/proc")) -> Host:
    """This machine's memory now."""
    total = available = resident = NA
    with contextlib.suppress(ImportError):
        import psutil

        memory = _ask(psutil.virtual_memory)
        if memory is not NA:
            total, available = memory.total, memory.available
        resident = _ask(lambda: psutil.Process().memory_info().rss)
    limit, used = _control_group(system, processes)
    return Host(total=total, available=available, resident=resident, limit=limit, used_of_limit=used)


# --- NVML


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """The library, ready to be asked, or None."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, another version of it: all the same to us
        yield None
        return
    try:
        yield pynvml
    finally:
        _ask(pynvml.nvmlShutdown)


def _ask(function: Callable[..., Any], *args: Any) -> Any:
    """What `function` says, or `NA`."""
    try:
        return function(*args)
    except Exception:  # NVML has an error type for each reason; none of them is worth more than N/A here
        return NA


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    total, used = _memory(nvml, handle)
    rates = _ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    mig = _ask(nvml.nvmlDeviceGetMigMode, handle)
    return Gpu(
        index=index,
        name=_text(_ask(nvml.nvmlDeviceGetName, handle)),
        uuid=_text(_ask(nvml.nvmlDeviceGetUUID, handle)),
        total=total,
        used=used,
        utilization=NA if rates is NA else rates.gpu,
        is_mig=NA if mig is NA else bool(mig[0]),
        processes=_processes(nvml, handle),
    )


def _visible(nvml: Any, index: int, handle: Any) -> VisibleGpu | None:
    """None where NVML does not tell how large it is."""
    total, used = _memory(nvml, handle)
    if isinstance(total, NotAvailable):
        return None
    name = _text(_ask(nvml.nvmlDeviceGetName, handle))
    return VisibleGpu(index=index, name=name, total=total, used=used, processes=_processes(nvml, handle))


def _asked_of_torch(cuda: Any, index: int) -> VisibleGpu:
    """Where NVML cannot answer; this takes a CUDA context."""
    properties, memory = cuda.get_device_properties(index), _ask(cuda.mem_get_info, index)
    used = NA if memory is NA else memory[1] - memory[0]
    return VisibleGpu(index=index, name=properties.name, total=properties.total_memory, used=used)


def _memory(nvml: Any, handle: Any) -> tuple[Count, Count]:
    """Total and used bytes. The newer call tells apart what the driver reserves; the older counts it as used."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle, version) if version is not None else NA
    if memory is not NA:
        return memory.total - memory.reserved, memory.used
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    return (NA, NA) if memory is NA else (memory.total, memory.used)


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...] | NotAvailable:
    running = _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if isinstance(running, NotAvailable):
        return running
    return tuple(
        GpuProcess(pid=process.pid, bytes=NA if process.usedGpuMemory is None else process.usedGpuMemory)
        for process in running
    )


def _visible_handles(nvml: Any, environ: Mapping[str, str]) -> list[Any] | None:
    """Of the GPUs that CUDA_VISIBLE_DEVICES names, in its order; None where that is beyond us."""
    count = _ask(nvml.nvmlDeviceGetCount)
    if count is NA:
        return None
    named = named_gpus(environ)
    if named is None:
        handles = [_ask(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        divided = any((_ask(nvml.nvmlDeviceGetMigMode, handle) or (0,))[0] for handle in handles)
        return None if divided or NA in handles else handles
    chosen: list[Any] = []
    for word in named:
        if not word.isdecimal() or int(word) >= count:
            # CUDA stops at the first number that is none; names of GPUs and of their instances it resolves itself.
            return None if word.startswith(("GPU-", "MIG-")) else chosen
        handle = _ask(nvml.nvmlDeviceGetHandleByIndex, int(word))
        if handle is NA or (_ask(nvml.nvmlDeviceGetMigMode, handle) or (0,))[0]:
            return None
        chosen.append(handle)
    return chosen


def _text(value: Any) -> str:
    """NVML gave bytes once, and gives texts now."""
    return value.decode() if isinstance(value, bytes) else str(value)


# --- the host


def _control_group(system: Path, processes: Path) -> tuple[Count, Count]:
    """The tightest memory limit above this process and what is used of it, in either version of control groups."""
    tightest: tuple[Count, Count] = (NA, NA)
    with contextlib.suppress(OSError, ValueError):
        for line in (processes / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                found = _limits(system, path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                found = _limits(system / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            for limit, used in found:
                if isinstance(tightest[0], NotAvailable) or limit < tightest[0]:
                    tightest = (limit, used)
    return tightest


def _limits(root: Path, path: str, limit_name: str, used_name: str) -> Iterator[tuple[int, int]]:
    """Of a group and of those around it. A container sees its own group as the root."""
    folder = root / path.lstrip("/")
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):
            limit = int((place / limit_name).read_text())  # "max" is no number: no limit
            if limit < 1 << 60:  # the older version says a huge number instead
                yield limit, int((place / used_name).read_text())
        if place == root:
            return
