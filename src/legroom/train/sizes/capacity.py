"""What PyTorch may take of a GPU now: of its memory, less what others hold, less what a per-process fraction forbids."""

import torch

from legroom.errors import UsageError


def device_capacity(device: torch.device) -> int:
    """Bytes that this process's caching allocator can reserve at most, what it has already included."""
    free, total = torch.cuda.mem_get_info(device)
    can_have = torch.cuda.memory_reserved(device) + free
    return min(can_have, int(total * memory_fraction(device)))


def memory_fraction(device: torch.device) -> float:
    """What `set_per_process_memory_fraction` allows. Torch before 2.7 cannot be asked: there the cap is seen only when
    an allocation fails, and a search may meet one failure more."""
    ask = getattr(torch._C, "_cuda_getMemoryFraction", None)
    return 1.0 if ask is None else float(ask(device.index or 0))


def gpu_in_use(*values: object) -> torch.device:
    """The GPU, real or virtual, on which the first of these tensors lies; else the current one."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            return torch.device("cuda", value.device.index or 0)
    if not torch.cuda.is_available():
        raise UsageError(
            "there is no GPU to try sizes on: use `with legroom.VirtualGPU('8GiB'):`, or legroom.max_batch, which needs none"
        )
    return torch.device("cuda", torch.cuda.current_device())
