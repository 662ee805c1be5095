"""Time and memory of steps, for choosing sizes: read only where a batch is split, so that other steps are left alone.

Time on a GPU is measured by events that are read a step later, so that nothing waits. PyTorch's peak figures are reset
for the first few steps of each size and not touched afterwards.
"""

import time
from collections import Counter
from typing import Any

import torch

from legroom.train.sizes.capacity import device_capacity
from legroom.train.sizes.micro_batch_size import Sizer

MEASURED_STEPS = 3


class StepFigures:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._measured: Counter[tuple[int, int]] = Counter()
        self._before: int | None = None
        self._retries = 0
        self._started = 0.0
        self._event: Any = None
        self._waiting: tuple[Any, Any, int, int] | None = None

    def allocated(self) -> int | None:
        """Bytes of tensors on the device now."""
        return torch.cuda.memory_allocated(self._device) if self._on_gpu else None

    def begin(self, sizer: Sizer, rows: int) -> None:
        self._before = None
        if sizer.choice is None:
            return
        self._started = time.perf_counter()
        if not self._on_gpu:
            return
        self._tell_time(sizer)
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()
        self._retries = self._retries_so_far()
        if self._measured.total() < 1 or min(self._measured.values()) < MEASURED_STEPS:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = self.allocated()

    def end(self, sizer: Sizer, rows: int, micro: int) -> None:
        if sizer.choice is None:
            sizer.succeeded(rows, micro)
            return
        if not self._on_gpu:
            sizer.succeeded(rows, micro, seconds=time.perf_counter() - self._started)
            return
        peak = None
        if self._before is not None and self._measured[rows, micro] < MEASURED_STEPS:
            self._measured[rows, micro] += 1
            peak = torch.cuda.max_memory_allocated(self._device)
        retries = self._retries_so_far() - self._retries
        capacity = device_capacity(self._device) if peak is not None else None
        sizer.succeeded(rows, micro, peak=peak, before=self._before, retries=retries, capacity=capacity)
        if self._event is not None:
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end.record()
            self._waiting, self._event = (self._event, end, rows, micro), None

    def _tell_time(self, sizer: Sizer) -> None:
        if self._waiting is None:
            return
        start, end, rows, micro = self._waiting
        if end.query():
            sizer.timed(rows, micro, start.elapsed_time(end) / 1000)
        self._waiting = None

    def _retries_so_far(self) -> int:
        return int(torch.cuda.memory_stats_as_nested_dict(self._device).get("num_alloc_retries", 0))
