"""Measures the peak of each step without changing the peaks that the script reads.

For each statistic, torch stores the peak since the last reset. To measure a single step, the peak must be reset at
every step. However, `torch.cuda.max_memory_allocated()` must still return the peak that the script expects. Therefore
this class saves the peaks before each of its resets. After a reset by this class, torch's functions return the maximum
of the saved and the current peaks, until the script resets the peaks itself. Torch has no function that restores a
peak, so this maximum is returned even after the recording.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

_SavedPeaks = dict[tuple[str, ...], int]


class StepPeaks:
    READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
    RESETTERS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")

    def __init__(self, namespace: Any = torch._C) -> None:
        self._namespace = namespace
        self._originals: dict[str, Callable[[int], Any]] = {}
        self._saved: dict[int, _SavedPeaks] = {}
        """The peaks of each device since the script's last reset, saved before this class resets them."""
        self._peaks_before_reset: dict[int, tuple[int, int]] = {}
        """The allocated and reserved peaks of each device in the current step, saved before the script resets them."""
        self._exit = ExitStack()
        self._is_stopped = False

    def install(self) -> None:
        earlier = getattr(getattr(self._namespace, self.READERS[0], None), "step_peaks", None)
        if isinstance(earlier, StepPeaks) and earlier._is_stopped:
            self._saved = earlier._saved
            earlier._exit.close()
        for name in (*self.READERS, *self.RESETTERS):
            original = getattr(self._namespace, name, None)
            if original is None:
                continue
            self._originals[name] = original
            replacement = self._reader(original) if name in self.READERS else self._resetter(original)
            setattr(self._namespace, name, replacement)
            self._exit.callback(setattr, self._namespace, name, original)

    def stop(self) -> None:
        # Torch's functions are restored now, or when the script resets its peaks.
        self._is_stopped = True
        self._restore_functions()

    def _restore_functions(self) -> None:
        if self._is_stopped and not any(self._saved.values()):
            self._exit.close()

    def statistics(self, device: int) -> dict[str, Any]:
        statistics = self._read(device)
        self._restore_peaks(device, statistics)
        return statistics

    def end_step(self, device: int) -> tuple[dict[str, Any], int, int]:
        statistics = self._read(device)
        saved = self._saved.setdefault(device, {})
        for path, figures in _leaves(statistics):
            peak = figures["peak"]
            if peak > saved.get(path, -1):
                saved[path] = peak
        self._originals[self.RESETTERS[0]](device)
        return statistics, *self._highest(statistics, self._peaks_before_reset.pop(device, (0, 0)))

    def _read(self, device: int) -> dict[str, Any]:
        statistics: dict[str, Any] = self._originals[self.READERS[0]](device)
        return statistics

    def _highest(self, statistics: dict[str, Any], other: tuple[int, int]) -> tuple[int, int]:
        allocated = statistics["allocated_bytes"]["all"]["peak"]
        reserved = statistics["reserved_bytes"]["all"]["peak"]
        return max(allocated, other[0]), max(reserved, other[1])

    def _restore_peaks(self, device: int, statistics: dict[str, Any]) -> None:
        saved = self._saved.get(device)
        if saved:
            for path, figures in _leaves(statistics):
                figures["peak"] = max(figures["peak"], saved.get(path, 0))

    def _reader(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def read(device: int) -> Any:
            statistics = original(device)
            self._restore_peaks(device, statistics)
            return statistics

        read.step_peaks = self  # type: ignore[attr-defined]
        return read

    def _resetter(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def reset(device: int) -> Any:
            earlier = self._peaks_before_reset.get(device, (0, 0))
            self._peaks_before_reset[device] = self._highest(self._read(device), earlier)
            self._saved.pop(device, None)
            self._restore_functions()
            return original(device)

        return reset


def _leaves(
    statistics: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield each statistic that has a peak, and its path in the nested dictionary."""
    for name, value in statistics.items():
        if isinstance(value, dict):
            if "peak" in value:
                yield (*path, name), value
            else:
                yield from _leaves(value, (*path, name))
