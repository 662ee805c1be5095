"""Collects facts about this machine: driver, GPUs, memory, limits and settings.

This module does not import torch or initialize CUDA, so it is fast and works even if the installation is broken.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from legroom.gpus.machine import Gpu, HostUsage, driver_version, gpus, host_usage
from legroom.gpus.nvml import NA, Count, NotAvailable

UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """Properties of a GPU that only `legroom doctor` uses."""

    uncorrected_errors: Count = NA
    """The number of uncorrected memory errors since the last restart."""
    is_exclusive: bool = False
    """True if the driver allows at most one process to use the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts about one machine."""

    driver: str | NotAvailable = NA
    driver_cuda: tuple[int, int] | None = None
    """The newest CUDA version that the driver supports."""
    driver_error: str = ""
    """The error message of the driver's library, or "" if the library works or no driver is loaded."""
    gpus: tuple[Gpu, ...] = ()
    states: tuple[GpuState, ...] = ()
    """One entry per GPU, in the order of `gpus`."""
    host: HostUsage = field(
        default_factory=lambda: HostUsage(total=NA, available=NA, resident=NA, limit=NA, used_of_limit=NA)
    )
    shared_total: Count = NA
    shared_free: Count = NA
    open_files: Count = NA
    """The limit on open files for this process, or `UNLIMITED`."""
    locked: Count = NA
    """The limit on page-locked bytes for this process, or `UNLIMITED`."""
    environ: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""
    """The version of the installed torch, or "" if torch is not installed."""
    torch_cuda: str = ""
    """The CUDA version with which torch was built, or "" for a build without CUDA."""


def inspect_machine() -> Machine:
    found = tuple(gpus())
    shared_total, shared_free = _shared_memory()
    torch, torch_cuda = _torch_as_installed()
    return Machine(
        driver=driver_version(),
        driver_cuda=_driver_cuda(),
        driver_error=_driver_error(),
        gpus=found,
        states=tuple(_state(gpu.index) for gpu in found),
        host=host_usage(),
        shared_total=shared_total,
        shared_free=shared_free,
        open_files=_limit("RLIMIT_NOFILE"),
        locked=_limit("RLIMIT_MEMLOCK"),
        environ=dict(os.environ),
        torch=torch,
        torch_cuda=torch_cuda,
    )


def _driver_cuda() -> tuple[int, int] | None:
    with contextlib.suppress(Exception):  # no library or no driver
        import pynvml

        pynvml.nvmlInit()
        try:
            number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        finally:
            pynvml.nvmlShutdown()
        return number // 1000, number % 1000 // 10
    return None


def _driver_error() -> str:
    if not Path("/proc/driver/nvidia/version").exists():
        return ""
    try:
        import pynvml

        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except Exception as error:  # NVML has one exception type per error; the message is enough
        return str(error) or type(error).__name__
    return ""


def _state(index: int) -> GpuState:
    with contextlib.suppress(Exception):  # an old driver, or no permission
        import pynvml

        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            errors: Count = NA
            with contextlib.suppress(pynvml.NVMLError):
                errors = int(
                    pynvml.nvmlDeviceGetTotalEccErrors(
                        handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
                    )
                )
            exclusive = False
            with contextlib.suppress(pynvml.NVMLError):
                exclusive = pynvml.nvmlDeviceGetComputeMode(handle) != pynvml.NVML_COMPUTEMODE_DEFAULT
            return GpuState(uncorrected_errors=errors, is_exclusive=exclusive)
        finally:
            pynvml.nvmlShutdown()
    return GpuState()


def _shared_memory() -> tuple[Count, Count]:
    try:
        status = os.statvfs("/dev/shm")
    except (OSError, AttributeError):  # not available on this system
        return NA, NA
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _limit(name: str) -> Count:
    try:
        import resource

        soft, _ = resource.getrlimit(getattr(resource, name))
    except (ImportError, AttributeError, OSError, ValueError):  # not available on this system
        return NA
    return UNLIMITED if soft == resource.RLIM_INFINITY else int(soft)


def _torch_as_installed() -> tuple[str, str]:
    """Return torch's version and CUDA version from its version file, without importing torch."""
    with contextlib.suppress(Exception):  # not installed, or without a version file
        spec = find_spec("torch")
        if spec is not None and spec.origin is not None:
            names: dict[str, object] = {}
            text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
            exec(compile(text, "version.py", "exec"), names)
            return str(names.get("__version__", "")), str(names.get("cuda") or "")
    return "", ""
