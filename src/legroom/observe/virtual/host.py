"""Virtual devices, and what the replaced `torch.cuda` functions need to know about the process that has them.

`VirtualGPU` is the `VirtualHost` of a program. Tests replace it with a small object.
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
        """Total memory in bytes, as `nvidia-smi` would print it."""
        return self.spec.total

    @property
    def context_bytes(self) -> int:
        """Bytes that the CUDA context uses."""
        return self.spec.context


class VirtualHost(Protocol):
    """A process with virtual devices."""

    @property
    def devices(self) -> Sequence[VirtualDevice]: ...

    @property
    def current(self) -> int:
        """The selected device. Each thread has its own, as in CUDA; a new thread starts with device 0."""

    @current.setter
    def current(self, index: int) -> None: ...

    def device_of(self, value: torch.Tensor | torch.UntypedStorage) -> int | None:
        """The device of a tensor or storage; None for host memory."""

    def mark(self, storage: torch.UntypedStorage, index: int, *, counted: bool = True) -> None:
        """Count a storage that was allocated on the CPU as memory of a device. May raise torch.OutOfMemoryError.

        `counted=False`: it is on the device, but its memory counts for another storage or process."""

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Update the size of a storage that may have been resized. May raise torch.OutOfMemoryError."""

    def factories_on(self, index: int) -> contextlib.AbstractContextManager[None]:
        """Within the block, tensors that are created without tensor inputs are placed on this device."""

    def empty_cache(self) -> None: ...

    def reset_peaks(self, index: int) -> None: ...
