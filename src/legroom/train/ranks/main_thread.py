"""Determines the line of code that the main thread of this rank is running, and the time since its last progress."""

import os
import sys
import threading
import time
from types import FrameType

import torch

from legroom.observe.source.user_files import is_user_file
from legroom.observe.virtual import active_virtual_gpu

_BUSY_FRACTION = 0.05
"""A process that uses more than this fraction of a core is treated as computing. A process that waits in gloo uses
almost no CPU time.
"""

_TORCH = os.path.dirname(torch.__file__)
_LOADS_OR_SAVES = (os.path.join(_TORCH, "serialization.py"), os.path.join(_TORCH, "utils", "data"))


class MainThreadActivity:
    """Measures the time since the main thread last made progress. The measurement also works while the main thread is
    inside DDP, FSDP2 or CUDA, where no Legroom code runs.

    The main thread makes progress if its line in the user's code changes or if it allocates GPU memory. On the CPU, a
    process that uses CPU time also makes progress. On a GPU, CPU time is not treated as progress, because a waiting
    process may use a whole core.
    """

    def __init__(self) -> None:
        self._thread = threading.main_thread().ident
        self._seen = self._markers()
        self._sampled, self._processor_seconds = time.monotonic(), time.process_time()
        self.since = self._sampled

    def sample(self) -> float:
        now, processor_seconds, seen = time.monotonic(), time.process_time(), self._markers()
        used = (processor_seconds - self._processor_seconds) / max(now - self._sampled, 1e-3)
        if seen != self._seen or (used > _BUSY_FRACTION and not _uses_cuda()):
            self.since = now
        self._sampled, self._processor_seconds, self._seen = now, processor_seconds, seen
        return now - self.since

    def may_wait_for_ranks(self) -> bool:
        """Return True if the main thread is inside torch, where it may wait for other ranks. On a GPU, the main thread
        may also wait in a line of the user's code, such as `loss.item()`."""
        frame = sys._current_frames().get(self._thread or 0)
        if frame is None:
            return False
        file = frame.f_code.co_filename
        return (file.startswith(_TORCH) and not file.startswith(_LOADS_OR_SAVES)) or (
            _uses_cuda() and is_user_file(file)
        )

    def _markers(self) -> tuple[str, int]:
        return user_line(self._thread), _allocations()


def user_line(thread: int | None) -> str:
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized()) and active_virtual_gpu() is None  # type: ignore[no-untyped-call]


def _allocations() -> int:
    if not _uses_cuda():
        return 0
    return sum(
        torch.cuda.memory_stats(device).get("allocation.all.allocated", 0)
        for device in range(torch.cuda.device_count())
    )
