"""Frees the memory of a failed attempt before the next attempt."""

import gc
import traceback

import torch

from legroom.diagnose.oom.recognize import ErrorClassification, classify


def classify_failure(error: BaseException) -> ErrorClassification:
    """Classify an error. Call this function inside `except`, and recover after the block.

    For an out-of-memory error, the function also clears the frames of the traceback. Otherwise, any object that
    stores the exception (a logger, a notebook, a variable) would keep the tensors of the attempt alive.
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
    """Collect reference cycles and release cached memory to the device."""
    gc.collect()
    empty_cache()


def empty_cache() -> None:
    """Release the allocator's cached memory to the device."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None:
        torch.get_device_module(accelerator).empty_cache()
