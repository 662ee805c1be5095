"""The smallest machine that can pretend to hold GPUs: real allocators, and a table of who lives where."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec, find_gpu
from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.observe.virtual.torch_api.cuda_api import patches


@dataclass
class FakeDevice:
    index: int
    name: str
    spec: GpuSpec
    allocator: Allocator

    @property
    def capacity(self) -> int:
        return self.spec.total

    @property
    def context_bytes(self) -> int:
        return self.spec.context


class FakeHost:
    """A `Host` without modes: a tensor lives on a device once a test has put it there."""

    def __init__(self, *capacities: int, context_bytes: int = 0) -> None:
        self.devices = [
            FakeDevice(
                index,
                f"Test GPU {index}",
                replace(find_gpu(capacity), context=context_bytes),
                Allocator(capacity - context_bytes),
            )
            for index, capacity in enumerate(capacities)
        ]
        self._selected = _Selected()
        self.homes: dict[int, int] = {}
        self.recorded: list[tuple[torch.Tensor, int]] = []

    @property
    def current(self) -> int:
        return self._selected.index

    @current.setter
    def current(self, index: int) -> None:
        self._selected.index = index

    def device_of(self, value: torch.Tensor | torch.UntypedStorage) -> int | None:
        storage = value.untyped_storage() if isinstance(value, torch.Tensor) else value
        return self.homes.get(storage._cdata)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """No allocator follows sizes here."""

    def mark(self, storage: torch.UntypedStorage, index: int) -> None:
        allocator, key, homes = self.devices[index].allocator, storage._cdata, self.homes
        try:
            block = allocator.malloc(storage.nbytes())
        except AllocationFailed:
            raise torch.OutOfMemoryError("CUDA out of memory.") from None
        homes[key] = index

        def forget() -> None:
            # In some versions of torch a reference cycle that holds the Python object of a storage, as torch.save
            # leaves behind, ends weak references to a storage that lives on.
            if torch._C._storage_Use_Count(key) > 1:
                return
            homes.pop(key)
            allocator.free(block)

        weakref.finalize(storage, forget)

    def empty_cache(self) -> None:
        for device in self.devices:
            device.allocator.empty_cache()

    def reset_peaks(self, index: int) -> None:
        self.devices[index].allocator.reset_peaks()

    def record_stream(self, tensor: torch.Tensor, stream_id: int) -> None:
        self.recorded.append((tensor, stream_id))

    def put(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        """This tensor lives on a device from now on."""
        self.mark(tensor.untyped_storage(), index)
        return tensor


class _Selected(threading.local):
    index = 0


@contextlib.contextmanager
def virtual_gpus(*capacities: int, context_bytes: int = 0) -> Iterator[Any]:
    """torch with these GPUs, and the host that holds them."""
    host = FakeHost(*capacities, context_bytes=context_bytes)
    with patches(host):
        yield host
