"""Virtual devices, and the interface that the replaced `torch.cuda` functions use to access them.

`VirtualGPU` implements the interface `VirtualHost`. Tests use a small object in place of `VirtualGPU`.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.memory.allocator.allocator import Allocator


@dataclass(slots=True)
class VirtualDevice:
    """One virtual GPU."""

    index: int
    spec: GpuSpec
    allocator: Allocator

    @property
    def name(self) -> str:
        """The result of `torch.cuda.get_device_name()`."""
        card = "" if self.spec.is_size else f" ({self.spec.name.upper()})"
        return f"Legroom virtual GPU {self.index}{card}"

    @property
    def capacity(self) -> int:
        """The total memory in bytes, as `nvidia-smi` would print it."""
        return self.spec.total

    @property
    def context_bytes(self) -> int:
        """The number of bytes that the CUDA context uses."""
        return self.spec.context


class VirtualHost(Protocol):
    """A process with virtual devices."""

    @property
    def devices(self) -> Sequence[VirtualDevice]: ...

    @property
    def current(self) -> int:
        """The selected device. Each thread selects its own device, as in CUDA. A new thread starts with device 0."""

    @current.setter
    def current(self, index: int) -> None: ...

    def device_of(self, value: torch.Tensor | torch.UntypedStorage) -> int | None:
        """Return the device of a tensor or storage, or None for host memory."""

    def mark(self, storage: torch.UntypedStorage, index: int, *, counted: bool = True) -> None:
        """Record a storage that was allocated on the CPU as memory of a device. This method may raise
        torch.OutOfMemoryError.

        With `counted=False`, the storage is on the device, but its memory is already counted for another
        storage or process."""

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Update the size of a storage that may have been resized. Raises torch.OutOfMemoryError if the device is full."""

    def factories_on(self, index: int, *, if_named: bool = False) -> contextlib.AbstractContextManager[None]:
        """Inside the `with` block, tensors that are created without tensor inputs are placed on this device."""

    def empty_cache(self) -> None: ...

    def set_memory_fraction(self, index: int, fraction: float) -> None: ...

    def reset_peaks(self, index: int) -> None: ...
