"""Access to NVML, the management library of the NVIDIA driver. A value that is not available is `NA`."""

import contextlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any


class NotAvailable(Enum):
    """The type of a value that this machine does not report."""

    NA = "N/A"

    def __str__(self) -> str:
        return "N/A"

    def __bool__(self) -> bool:
        return False


NA = NotAvailable.NA
Count = int | NotAvailable


def start() -> Any:
    """Return the initialized library, or None if it is not available. The caller must call `nvmlShutdown`."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, or an incompatible version
        return None
    return pynvml


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    nvml = start()
    try:
        yield nvml
    finally:
        if nvml is not None:
            query(nvml.nvmlShutdown)


def query(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of `function`, or `NA` if it raises an exception."""
    try:
        return function(*args)
    except Exception:  # NVML has one error type per cause, and every error results in N/A
        return NA


def read_memory(nvml: Any, handle: Any) -> tuple[Count, Count]:
    """Return the total and used memory in bytes.

    The newer NVML call reports driver-reserved memory separately. The older NVML call includes the driver-reserved
    memory in the used memory.
    """
    version = getattr(nvml, "nvmlMemory_v2", None)
    found = query(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version)) if version is not None else NA
    if found is not NA:
        return found.total - found.reserved, found.used
    found = query(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return (NA, NA) if found is NA else (found.total, found.used)


def as_text(value: Any) -> str:
    """Convert a result of pynvml to a string, because older versions return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
