"""What this machine says of itself: drivers, GPUs, memory, limits, settings. Facts only; `checks` judges them.

Nothing here imports torch or initialises CUDA: a broken installation must still be describable, and `legroom explain` must answer
at once. What torch itself says is `checks_torch`'s, in a process of its own.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from legroom.gpus.machine import NA, Count, Gpu, HostUsage, NotAvailable, driver_version, gpus, host_usage

UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What only a doctor asks of a GPU."""

    uncorrected_errors: Count = NA
    """Memory errors since the last restart that could not be corrected."""
    is_exclusive: bool = False
    """Only one process may use it, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts."""

    driver: str | NotAvailable = NA
    driver_cuda: tuple[int, int] | None = None
    """The newest CUDA version that the driver serves."""
    driver_trouble: str = ""
    """Why the driver's library did not answer, where a driver is there; "" otherwise."""
    gpus: tuple[Gpu, ...] = ()
    states: tuple[GpuState, ...] = ()
    """Of each GPU, in the same order."""
    host: HostUsage = field(
        default_factory=lambda: HostUsage(total=NA, available=NA, resident=NA, limit=NA, used_of_limit=NA)
    )
    shared_total: Count = NA
    """Of /dev/shm."""
    shared_free: Count = NA
    open_files: Count = NA
    """How many this process may have; `UNLIMITED` for any number."""
    locked: Count = NA
    """Bytes that may be page-locked without rights."""
    environ: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""
    """Its version as installed; "" where it is not."""
    torch_cuda: str = ""
    """The CUDA version that it was built with; "" for none."""


def inspect_machine() -> Machine:
    """The facts of this machine, now."""
    found = tuple(gpus())
    shared_total, shared_free = _shared_memory()
    torch, torch_cuda = _torch_as_installed()
    return Machine(
        driver=driver_version(),
        driver_cuda=_driver_cuda(),
        driver_trouble=_driver_trouble(),
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
    with contextlib.suppress(Exception):  # no library, no driver: every kind of it means the same here
        import pynvml

        pynvml.nvmlInit()
        try:
            number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        finally:
            pynvml.nvmlShutdown()
        return number // 1000, number % 1000 // 10
    return None


def _driver_trouble() -> str:
    """What the driver's library says, where the kernel has a driver and the library does not answer."""
    if not Path("/proc/driver/nvidia/version").exists():
        return ""
    try:
        import pynvml

        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except Exception as error:  # NVML has one type for each reason; its words are what matters
        return str(error) or type(error).__name__
    return ""


def _state(index: int) -> GpuState:
    with contextlib.suppress(Exception):  # an old driver, a missing right: not known
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
        told = os.statvfs("/dev/shm")
    except (OSError, AttributeError):  # no such folder, no such call on this system
        return NA, NA
    return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize


def _limit(name: str) -> Count:
    try:
        import resource

        soft, _ = resource.getrlimit(getattr(resource, name))
    except (ImportError, AttributeError, OSError, ValueError):  # not on this system
        return NA
    return UNLIMITED if soft == resource.RLIM_INFINITY else int(soft)


def _torch_as_installed() -> tuple[str, str]:
    """Version and CUDA version, read from torch's own file without importing torch."""
    with contextlib.suppress(Exception):  # not installed, or put together otherwise
        spec = find_spec("torch")
        if spec is not None and spec.origin is not None:
            names: dict[str, object] = {}
            text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
            exec(compile(text, "version.py", "exec"), names)
            return str(names.get("__version__", "")), str(names.get("cuda") or "")
    return "", ""
