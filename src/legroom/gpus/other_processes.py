"""Who else is on a GPU that ran full: the processes that NVML names, in a sentence."""

import os
from collections.abc import Sequence

import psutil
import torch

from legroom.gpus.machine import Gpu, NotAvailable, gpus
from legroom.units import format_size


def others_on(device: int) -> str:
    """`process 4242 (python) holds 2.1 GiB of this GPU`; "" where there is none, or the driver does not say."""
    gpu = _gpu_of(device, gpus())
    if gpu is None or isinstance(gpu.processes, NotAvailable):
        return ""
    told = [
        f"process {each.pid}{_name(each.pid)} holds "
        + ("some" if isinstance(each.bytes, NotAvailable) else format_size(each.bytes))
        for each in gpu.processes
        if each.pid != os.getpid()
    ]
    return f"{' and '.join(told[:4])} of this GPU" if told else ""


def _gpu_of(device: int, found: Sequence[Gpu]) -> Gpu | None:
    """CUDA's number → the driver's GPU, by its own name; with only one there is no question."""
    if len(found) == 1:
        return found[0]
    try:
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    except (RuntimeError, AssertionError):
        return None
    return next((gpu for gpu in found if uuid and gpu.uuid.removeprefix("GPU-") == uuid), None)


def _name(pid: int) -> str:
    try:
        return f" ({psutil.Process(pid).name()})"
    except psutil.Error:
        return ""
