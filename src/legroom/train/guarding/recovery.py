"""After memory ran out: the failed attempt's tensors die, and their memory goes back to the device, before anything else is tried."""

import gc
import traceback

import torch

from legroom.diagnose.oom.recognize import ErrorClassification, classify


def read_failure(error: BaseException) -> ErrorClassification:
    """What an error in flight says of memory. Call it in `except`; recover after it.

    Where memory ran out, the frames that failed are emptied: whoever keeps the exception (a logger, a notebook, a
    variable) does not keep the tensors of the attempt.
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


def release() -> None:
    """Collect what reference cycles keep, and give cached memory back to the device."""
    gc.collect()
    empty_cache()


def empty_cache() -> None:
    """Give memory that no tensor uses back to the device."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None:
        torch.get_device_module(accelerator).empty_cache()
