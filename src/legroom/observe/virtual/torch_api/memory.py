"""Implements the memory statistics of `torch.cuda.memory_*` with the simulated allocator.

Only the C functions are replaced, so torch's own Python code formats `memory_summary()`. Training loops call four of
the Python functions in every step. These four functions are also replaced, because torch builds and sorts about ninety
statistics for each call.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from legroom.memory.allocator.allocator import Allocator
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, answer, once_warner, optional_module, table
from legroom.observe.virtual.torch_api.devices import free_bytes, index_of
from legroom.units import MiB

OutOfMemoryObserver = Callable[[int, int, int, int], None]

_observers: list[OutOfMemoryObserver] = []


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    functions = _MemoryFunctions(host)
    yield from table(
        torch._C,
        {
            "_cuda_memoryStats": functions.nested_stats,
            "_cuda_resetPeakMemoryStats": functions.reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": functions.reset_accumulated,
            "_cuda_emptyCache": host.empty_cache,
            "_cuda_setMemoryFraction": functions.set_fraction,
            "_cuda_getMemoryFraction": functions.get_fraction,
            "_cuda_memorySnapshot": functions.snapshot,
            "_cuda_record_memory_history": functions.record_history,
            "_cuda_record_memory_history_legacy": functions.record_history,
            "_cuda_isHistoryEnabled": answer(False),
            "_cuda_allocationTraceback": answer(),
            "_cuda_attach_out_of_memory_observer": _observers.append,
            "_cuda_cudaCachingAllocator_raw_alloc": functions.raw_alloc,
            "_cuda_cudaCachingAllocator_raw_delete": functions.raw_delete,
            "_cuda_cudaCachingAllocator_enable": answer(),
            "_cuda_cudaCachingAllocator_is_enabled": answer(True),
            "_cuda_cudaCachingAllocator_set_allocator_settings": functions.change_settings,
            "_cuda_getAllocatorBackend": answer("native"),
            "_cuda_hostMemoryStats": dict,
            "_cuda_resetAccumulatedHostMemoryStats": answer(),
            "_cuda_resetPeakHostMemoryStats": answer(),
            "_accelerator_isAllocatorInitialized": answer(True),
            "_accelerator_emptyCache": host.empty_cache,
            "_accelerator_emptyHostCache": answer(),
            "_accelerator_getDeviceStats": functions.nested_stats,
            "_accelerator_getMemoryInfo": functions.memory_info,
            "_accelerator_resetPeakStats": functions.reset_peaks,
            "_accelerator_resetAccumulatedStats": functions.reset_accumulated,
            "_accelerator_setAllocatorSettings": functions.change_settings,
        },
        add=True,
    )
    for module in ("torch.cuda", "torch.cuda.memory", "torch.accelerator", "torch.accelerator.memory"):
        yield from table(
            optional_module(module),
            {
                "memory_allocated": functions.statistic("allocated"),
                "max_memory_allocated": functions.statistic("peak_allocated"),
                "memory_reserved": functions.statistic("reserved"),
                "max_memory_reserved": functions.statistic("peak_reserved"),
                "list_gpu_processes": functions.processes,
                "device_memory_used": functions.device_memory_used,
            },
        )


def call_oom_observers(index: int, requested: int, total: int, free: int) -> None:
    # PyTorch does the same before it raises an out-of-memory error.
    for observer in tuple(_observers):
        observer(index, requested, total, free)


def remove_oom_observers() -> None:
    _observers.clear()


class _MemoryFunctions:
    def __init__(self, host: VirtualHost) -> None:
        self._host = host
        self._fractions: dict[int, float] = {}
        self._raw: dict[int, torch.UntypedStorage] = {}
        self._warn = once_warner()

    def nested_stats(self, index: int) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for key, value in self._allocator(index).stats().items():
            *path, leaf = key.split(".")
            level = nested
            for part in path:
                level = level.setdefault(part, {})
            level[leaf] = value
        return nested

    def reset_peaks(self, index: int) -> None:
        self._allocator(index)
        self._host.reset_peaks(index)

    def reset_accumulated(self, index: int) -> None:
        self._allocator(index).reset_accumulated()

    def set_fraction(self, fraction: float, index: int) -> None:
        self._allocator(index)
        self._host.set_memory_fraction(index, fraction)
        self._fractions[index] = fraction

    def get_fraction(self, index: int) -> float:
        allocator = self._allocator(index)
        return self._fractions.get(index, allocator.settings.per_process_memory_fraction)

    def memory_info(self, index: int) -> tuple[int, int]:
        device = self._host.devices[index_of(self._host, index)]
        return free_bytes(device), device.capacity

    def statistic(self, name: str) -> Callable[..., int]:
        """Return a function like `torch.cuda.memory_allocated` that returns the statistic `name` of the allocator."""

        def read(device: Any = None) -> int:
            # Without a device, torch does not initialize CUDA here.
            index = (
                self._host.current
                if device is None
                else torch.cuda._utils._get_device_index(device, optional=True)
            )
            value: int = getattr(self._allocator(index), name)
            return value

        return read

    def device_memory_used(self, device: Any = None) -> int:
        found = self._host.devices[index_of(self._host, device)]
        return found.capacity - free_bytes(found)

    def processes(self, device: Any = None) -> str:
        found = self._host.devices[index_of(self._host, device)]
        used = (found.context_bytes + found.allocator.reserved) / MiB
        return f"GPU:{found.index}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"

    def snapshot(self, *_selection: Any) -> dict[str, Any]:
        """Return a snapshot with the segments and blocks of every device. The history is empty."""
        return {
            "segments": [
                _segment_for_torch(device.index, segment)
                for device in self._host.devices
                for segment in device.allocator.segments()
            ],
            "device_traces": [[] for _ in self._host.devices],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def record_history(self, *_arguments: Any, **_options: Any) -> None:
        self._warn(
            "A virtual GPU does not record the CUDA allocator history. Snapshots contain segments and blocks only. "
            "Legroom's capture file contains every allocation and the line that made it."
        )

    def change_settings(self, settings: str) -> None:
        for device in self._host.devices:
            allocator = device.allocator
            allocator.change_settings(AllocatorSettings.parse(settings, before=allocator.settings))

    def raw_alloc(self, size: int, _stream: int = 0) -> int:
        """Allocate memory for a library other than torch. No tensor references the storage, so `_raw` keeps it alive."""
        make_storage: Any = torch.UntypedStorage
        storage: torch.UntypedStorage = make_storage(size)
        self._host.mark(storage, self._host.current)
        address = storage.data_ptr()
        self._raw[address] = storage
        return address

    def raw_delete(self, address: int) -> None:
        self._raw.pop(address, None)

    def _allocator(self, index: int) -> Allocator:
        if not 0 <= index < len(self._host.devices):
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")
        return self._host.devices[index].allocator


def _segment_for_torch(device: int, segment: dict[str, Any]) -> dict[str, Any]:
    """Return a segment with all keys of torch's own snapshot, so that torch's snapshot viewers can read it."""
    blocks = [{**block, "frames": []} for block in segment["blocks"]]
    return {**segment, "device": device, "segment_pool_id": (0, 0), "frames": [], "blocks": blocks}
