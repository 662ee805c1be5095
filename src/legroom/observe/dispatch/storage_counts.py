"""Reads the reference counts of storages, and handles weak references that expire before the storage is freed.

Reference counts and weak references of storages depend on torch internals. This module checks once, on a small storage,
how they behave in this version of torch.
"""

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch


def _in_memory(key: int) -> int:
    """Read the reference count from the memory of torch's C++ object. The count follows the pointer to the virtual
    function table. CPU builds of old releases (2.6) have no function that returns this count.
    """
    return ctypes.c_uint32.from_address(key + ctypes.sizeof(ctypes.c_void_p)).value


def _is_correct(count: Callable[[int], int]) -> bool:
    make_storage: Any = torch.UntypedStorage
    storage = make_storage(1)
    counts = [count(storage._cdata)]
    first = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    counts.append(count(storage._cdata))
    second = first.detach()
    counts.append(count(storage._cdata))
    del first, second
    counts.append(count(storage._cdata))
    return counts == [1, 2, 3, 1]


def _first_correct(*functions: Callable[[int], int] | None) -> Callable[[int], int] | None:
    return next((each for each in functions if each is not None and _is_correct(each)), None)


def _can_end_early() -> bool:
    tensor = torch.empty(1, dtype=torch.uint8, device="cpu")
    storage = tensor.untyped_storage()
    reference = weakref.ref(storage)
    cycle: list[Any] = [storage]
    cycle.append(cycle)
    del storage, cycle
    gc.collect(0)
    return reference() is None


with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
    count_references: Callable[[int], int] | None = _first_correct(
        getattr(torch._C, "_storage_Use_Count", None), _in_memory
    )
    """Returns the number of references to the storage at an address (`_cdata`). If this version of torch does not
    expose the count, the value is None, and gradients are assumed to be added out of place.
    """
    weak_references_end_early = _can_end_early()
    """True if a weak reference to a storage can expire although tensors still use the storage. In torch 2.6 to 2.8, the
    garbage collector may free only the Python object of a storage, for example after `torch.save`.
    """


def surviving_storage(key: int) -> Any:
    """Return the storage at `key` if only its Python object is being freed, otherwise None.

    Call this function in the callback of a weak reference, because the storage then still exists. Without reference
    counts, the result is always None, and the memory is counted as freed too early.
    """
    if not weak_references_end_early or count_references is None or count_references(key) <= 1:
        return None
    return torch.UntypedStorage._new_with_weak_ptr(key)
