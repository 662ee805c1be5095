"""The peak of each single step, without disturbing the peaks that the script itself reads.

Torch keeps one peak per figure, from the last reset on. To know a step's own peak it must be reset at every step; but
`torch.cuda.max_memory_allocated()` belongs to the script. So the peaks taken away are kept here, and while `installed`
torch's own functions answer with the higher of both, until the script itself resets them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

_SavedPeaks = dict[tuple[str, ...], int]


class StepPeaks:
    """Stands between the script and the allocator's statistics."""

    READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
    RESETTERS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")

    def __init__(self, namespace: Any = torch._C) -> None:
        self._namespace = namespace
        self._originals: dict[str, Callable[[int], Any]] = {}
        self._kept: dict[int, _SavedPeaks] = {}
        """Device → figure → its peak since the script's last reset, as far as taken away."""
        self._peaks_before_reset: dict[int, tuple[int, int]] = {}
        """Device → allocated and reserved peaks that a reset by the script cut off within the present step."""
        self._exit = ExitStack()

    def install(self) -> None:
        for name in (*self.READERS, *self.RESETTERS):
            original = getattr(self._namespace, name, None)
            if original is None:
                continue
            self._originals[name] = original
            stand_in = self._reader(original) if name in self.READERS else self._resetter(original)
            setattr(self._namespace, name, stand_in)
            self._exit.callback(setattr, self._namespace, name, original)

    def restore(self) -> None:
        """Torch answers for itself again. Its peaks then go back no further than the last step."""
        self._exit.close()

    def statistics(self, device: int) -> dict[str, Any]:
        """As the script would see them."""
        statistics = self._read(device)
        self._restore_peaks(device, statistics)
        return statistics

    def end_step(self, device: int) -> tuple[dict[str, Any], int, int]:
        """The statistics now, and how high allocated and reserved bytes were in the step that ends here."""
        statistics = self._read(device)
        kept = self._kept.setdefault(device, {})
        for path, figures in _leaves(statistics):
            peak = figures["peak"]
            if peak > kept.get(path, -1):
                kept[path] = peak
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
        kept = self._kept.get(device)
        if kept:
            for path, figures in _leaves(statistics):
                figures["peak"] = max(figures["peak"], kept.get(path, 0))

    def _reader(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def read(device: int) -> Any:
            statistics = original(device)
            self._restore_peaks(device, statistics)
            return statistics

        return read

    def _resetter(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def reset(device: int) -> Any:
            so_far = self._peaks_before_reset.get(device, (0, 0))
            self._peaks_before_reset[device] = self._highest(self._read(device), so_far)
            self._kept.pop(device, None)
            return original(device)

        return reset


def _leaves(
    statistics: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every figure that has a peak, with the names that lead to it."""
    for name, value in statistics.items():
        if isinstance(value, dict):
            if "peak" in value:
                yield (*path, name), value
            else:
                yield from _leaves(value, (*path, name))
