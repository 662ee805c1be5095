"""Virtual devices, and the interface through which the replaced `torch.cuda` functions access them.

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
        card = "" if self.spec.is_size else f" ({self.spec.name.upper()})"
        return f"Legroom virtual GPU {self.index}{card}"

    @property
    def capacity(self) -> int:
        """The total memory in bytes, as `nvidia-smi` would print it."""
        return self.spec.total

    @property
    def context_bytes(self) -> int:
        return self.spec.context


class VirtualHost(Protocol):
    @property
    def devices(self) -> Sequence[VirtualDevice]: ...

    @property
    def current(self) -> int:
        """The selected device. As in CUDA, each thread selects its own device, and a new thread starts with device 0."""

    @current.setter
    def current(self, index: int) -> None: ...

    def device_of(self, value: torch.Tensor | torch.UntypedStorage) -> int | None: ...

    def mark(self, storage: torch.UntypedStorage, index: int, *, counted: bool = True) -> None:
        """Count the memory of a CPU storage as memory of a virtual device. Raises torch.OutOfMemoryError if the device
        is full.

        With `counted=False`, no memory is allocated on the device, because the memory is already counted for another
        storage or process.
        """

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Update the size of a storage that may have been resized. Raises torch.OutOfMemoryError if the device is full."""

    def factories_on(self, index: int, *, if_named: bool = False) -> contextlib.AbstractContextManager[None]:
        """Inside the `with` block, tensors that are created without tensor inputs are placed on this device."""

    def empty_cache(self) -> None: ...

    def set_memory_fraction(self, index: int, fraction: float) -> None: ...

    def reset_peaks(self, index: int) -> None: ...
