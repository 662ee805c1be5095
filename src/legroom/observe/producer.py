"""The interface that a session requires from a producer of events.

There are two producers: the dispatch recorder, for a virtual GPU or host memory, and the CUDA allocator's history.
"""

from typing import NamedTuple, Protocol

import torch


class MemoryStats(NamedTuple):
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int


class Producer(Protocol):
    """A context manager that records memory events while it is active."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def finish(self) -> None:
        """Send the events that are still pending. This method may be called more than once."""

    @property
    def progress(self) -> tuple[int, float]: ...

    @property
    def allocated_after_step(self) -> int:
        """The number of bytes allocated on all devices at the end of the last step. Within a step, this number rises
        and falls."""

    def memory_stats(self, device: int) -> MemoryStats: ...

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` uses memory of a recorded device."""
