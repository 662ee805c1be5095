"""A small `VirtualHost` for tests: real allocators, and a table of which storage is on which device."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from legroom.gpus.catalog import find_gpu
from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.observe.dispatch.storage_counts import surviving_storage
from legroom.observe.virtual.host import VirtualDevice
from legroom.observe.virtual.torch_api.cuda_api import patches


class FakeHost:
    """A `VirtualHost` without dispatch modes. A tensor is on a device only if a test puts it there."""

    def __init__(self, *capacities: int, context_bytes: int = 0) -> None:
        self.devices = [
            VirtualDevice(
                index,
                replace(find_gpu(capacity), context=context_bytes),
                Allocator(capacity - context_bytes),
            )
            for index, capacity in enumerate(capacities)
        ]
        self._selected = _Selected()
        self.device_of_storage: dict[int, int] = {}
        self.recorded: list[tuple[torch.Tensor, int]] = []

    @property
    def current(self) -> int:
        return self._selected.index

    @current.setter
    def current(self, index: int) -> None:
        self._selected.index = index

    def device_of(self, value: torch.Tensor | torch.UntypedStorage) -> int | None:
        storage = value.untyped_storage() if isinstance(value, torch.Tensor) else value
        return self.device_of_storage.get(storage._cdata)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Do nothing, because sizes are not tracked."""

    def mark(self, storage: torch.UntypedStorage, index: int, *, counted: bool = True) -> None:
        allocator, key, devices = self.devices[index].allocator, storage._cdata, self.device_of_storage
        try:
            block = allocator.malloc(storage.nbytes() if counted else 0)
        except AllocationFailed:
            raise torch.OutOfMemoryError("CUDA out of memory.") from None
        devices[key] = index

        def forget() -> None:
            # In some versions of torch, a reference cycle with the Python object of a storage, which torch.save
            # creates, clears weak references to the storage although it is still alive.
            if surviving_storage(key) is not None:
                return
            devices.pop(key)
            allocator.free(block)

        weakref.finalize(storage, forget)

    def factories_on(self, index: int, *, if_named: bool = False) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def empty_cache(self) -> None:
        for device in self.devices:
            device.allocator.empty_cache()

    def set_memory_fraction(self, index: int, fraction: float) -> None:
        self.devices[index].allocator.set_memory_fraction(fraction)

    def reset_peaks(self, index: int) -> None:
        self.devices[index].allocator.reset_peaks()

    def record_stream(self, tensor: torch.Tensor, stream_id: int) -> None:
        self.recorded.append((tensor, stream_id))

    def put(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        """Put a tensor on a device."""
        self.mark(tensor.untyped_storage(), index)
        return tensor


class _Selected(threading.local):
    index = 0


@contextlib.contextmanager
def virtual_gpus(*capacities: int, context_bytes: int = 0) -> Iterator[Any]:
    """Patch torch to have these GPUs, and return their host."""
    host = FakeHost(*capacities, context_bytes=context_bytes)
    with patches(host):
        yield host
