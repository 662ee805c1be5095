"""Simulates pinned host memory with a copy in ordinary memory for which `is_pinned()` returns True. Real pinning needs
a GPU.

`Tensor.pin_memory` is replaced on the class, so the replacement also works in the DataLoader's thread. Only weak
references to pinned storages are stored, so the storages are not kept alive.
"""

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, table


def count_as_pinned(tensor: torch.Tensor) -> None:
    if _active is not None:
        _active.remember(tensor.untyped_storage())


@contextlib.contextmanager
def pinned_memory(host: VirtualHost) -> Iterator[Iterable[Replacement]]:
    """Yield replacements for the tensor methods that pin memory. The storage methods of the same names call the tensor
    methods.
    """
    global _active
    pinned = _active = _Pinned(host)

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        return pinned.pin(tensor)

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        return pinned.holds(tensor)

    try:
        yield table(torch.Tensor, {"pin_memory": pin_memory, "is_pinned": is_pinned})
    finally:
        _active = None


class _Pinned:
    def __init__(self, host: VirtualHost) -> None:
        self._host = host
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def holds(self, tensor: torch.Tensor) -> bool:
        return bool(self._storages) and tensor.untyped_storage()._cdata in self._storages

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._host.device_of(tensor) is not None or tensor.layout is not torch.strided:
            raise RuntimeError(f"cannot pin '{_type_name(tensor)}' only dense CPU tensors can be pinned")
        if self.holds(tensor):
            return tensor
        copy = tensor.detach().clone()
        self.remember(copy.untyped_storage())
        return copy

    def remember(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        storages = self._storages
        storages[key] = weakref.ref(storage, lambda _dead: storages.pop(key, None))


_active: _Pinned | None = None


def _type_name(tensor: torch.Tensor) -> str:
    names = {
        torch.float16: "Half",
        torch.bfloat16: "BFloat16",
        torch.float32: "Float",
        torch.float64: "Double",
    }
    integers = {
        torch.uint8: "Byte",
        torch.int8: "Char",
        torch.int16: "Short",
        torch.int32: "Int",
        torch.bool: "Bool",
    }
    return f"torch.cuda.{(names | integers).get(tensor.dtype, 'Long')}Tensor"
