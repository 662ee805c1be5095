"""Measures the time and memory of steps. The micro-batch sizes are chosen from these measurements. Only steps with a
split batch are measured.

Time on a GPU is measured with events that are read one step later, which avoids synchronization. PyTorch's peak
statistics are reset only in the first few steps with each micro-batch size.
"""

import time
from collections import Counter
from typing import Any

import torch

from legroom.train.sizes.capacity import device_capacity
from legroom.train.sizes.micro_batch_size import MicroBatchSizer

MEASURED_STEPS = 3


class StepStats:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._measured: Counter[tuple[int, int]] = Counter()
        self._allocated_before: int | None = None
        self._retries = 0
        self._started = 0.0
        self._event: Any = None
        self._pending: tuple[Any, Any, int, int] | None = None

    def allocated(self) -> int | None:
        return torch.cuda.memory_allocated(self._device) if self._on_gpu else None

    def begin(self, sizer: MicroBatchSizer) -> None:
        self._allocated_before = None
        if sizer.choice is None:
            return
        self._started = time.perf_counter()
        if not self._on_gpu:
            return
        self._report_time(sizer)
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()
        self._retries = self._total_retries()
        if self._measured.total() < 1 or min(self._measured.values()) < MEASURED_STEPS:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._allocated_before = self.allocated()

    def end(self, sizer: MicroBatchSizer, batch_size: int, micro: int) -> None:
        if sizer.choice is None:
            sizer.succeeded(batch_size, micro)
            return
        if not self._on_gpu:
            sizer.succeeded(batch_size, micro, seconds=time.perf_counter() - self._started)
            return
        peak = None
        if self._allocated_before is not None and self._measured[batch_size, micro] < MEASURED_STEPS:
            self._measured[batch_size, micro] += 1
            peak = torch.cuda.max_memory_allocated(self._device)
        retries = self._total_retries() - self._retries
        capacity = device_capacity(self._device) if peak is not None else None
        sizer.succeeded(
            batch_size,
            micro,
            peak=peak,
            allocated_before=self._allocated_before,
            retries=retries,
            capacity=capacity,
        )
        if self._event is not None:
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end.record()
            self._pending, self._event = (self._event, end, batch_size, micro), None

    def _report_time(self, sizer: MicroBatchSizer) -> None:
        if self._pending is None:
            return
        start, end, batch_size, micro = self._pending
        if end.query():
            sizer.timed(batch_size, micro, start.elapsed_time(end) / 1000)
        self._pending = None

    def _total_retries(self) -> int:
        return int(torch.cuda.memory_stats_as_nested_dict(self._device).get("num_alloc_retries", 0))
