"""Frees the memory of a failed attempt before the next attempt."""

import gc
import os
import traceback

import torch

from legroom.diagnose.oom.recognize import ErrorClassification, classify


def classify_failure(error: BaseException) -> ErrorClassification:
    """Return the classification of an error. Call this function inside the `except` block, and start the recovery
    after the block.

    For an out-of-memory error, the function also clears the frames of the traceback. Otherwise, a logger, notebook or
    variable that stores the exception would keep the tensors alive.
    """
    failure = classify(error)
    if failure.is_oom:
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)
            link = link.__cause__ or link.__context__
    return failure


def release_memory() -> None:
    gc.collect()
    empty_cache()


def use_expandable_segments(device: torch.device) -> bool:
    """Switch the allocator to expandable segments, which reduces fragmentation. Return False if expandable segments
    are already in use, disabled by the user, or not supported.
    """
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    names = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
    change = next((getattr(torch._C, name) for name in names if hasattr(torch._C, name)), None)
    if device.type != "cuda" or change is None or "expandable_segments" in settings or "backend" in settings:
        return False
    try:
        change(
            f"{settings},expandable_segments:True".lstrip(",")
        )  # a change resets all settings that it omits
    except (RuntimeError, ValueError):
        return False
    return True


def empty_cache() -> None:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None:
        torch.get_device_module(accelerator).empty_cache()
