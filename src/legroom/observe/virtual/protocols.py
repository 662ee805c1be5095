"""What the answers to `torch.cuda` questions need to know of a virtual GPU: two small protocols.

`VirtualGPU` keeps the devices and knows which storages live on them; the other modules only ask. The seam is
here, by itself, so that each of them can be tried with a handful of plain objects.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.memory.allocator.allocator import Allocator


class Device(Protocol):
    """One virtual device."""

    @property
    def index(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> GpuSpec: ...

    @property
    def capacity(self) -> int:
        """Total memory in bytes, as `nvidia-smi` would print it."""

    @property
    def context_bytes(self) -> int:
        """What the CUDA context takes of it before the first tensor."""

    @property
    def allocator(self) -> Allocator: ...


class Host(Protocol):
    """The machine that pretends to hold the devices."""

    @property
    def devices(self) -> Sequence[Device]: ...

    @property
    def current(self) -> int:
        """The selected device. Each thread has its own, as in CUDA; a new thread starts with device 0."""

    @current.setter
    def current(self, index: int) -> None: ...

    def device_of(self, value: torch.Tensor | torch.UntypedStorage) -> int | None:
        """The device that a tensor or storage lives on; None for host memory."""

    def mark(self, storage: torch.UntypedStorage, index: int) -> None:
        """This storage, made on the CPU, now stands for memory of a device. May raise torch.OutOfMemoryError."""

    def resized(self, storage: torch.UntypedStorage) -> None:
        """This storage may have been given other memory. May raise torch.OutOfMemoryError."""

    def empty_cache(self) -> None: ...

    def reset_peaks(self, index: int) -> None: ...
