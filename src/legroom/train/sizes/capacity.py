"""Determines the GPU memory that PyTorch can use: the free memory, limited by the per-process memory fraction."""

import torch

from legroom.errors import UsageError


def device_capacity(device: torch.device) -> int:
    """Return the number of bytes that this process's caching allocator can reserve, including already reserved bytes."""
    free, total = torch.cuda.mem_get_info(device)
    available = torch.cuda.memory_reserved(device) + free
    return min(available, int(total * memory_fraction(device)))


def memory_fraction(device: torch.device) -> float:
    """Return the fraction set with `set_per_process_memory_fraction`.

    Before torch 2.7, the fraction cannot be read. In older versions, the limit is discovered only when an allocation
    fails.
    """
    get_fraction = getattr(torch._C, "_cuda_getMemoryFraction", None)
    return 1.0 if get_fraction is None else float(get_fraction(device.index or 0))


def gpu_in_use(*values: object) -> torch.device:
    """Return the device of the first GPU tensor among the values, or the current GPU if there is none."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            return torch.device("cuda", value.device.index or 0)
    if not torch.cuda.is_available():
        raise UsageError(
            "find_batch needs a GPU. Use `with legroom.VirtualGPU('8GiB'):`, or legroom.max_batch, which needs no GPU."
        )
    return torch.device("cuda", torch.cuda.current_device())
