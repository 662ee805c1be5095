"""Preserves the device of storages on a virtual GPU when they are copied, moved, saved and loaded.

`torch.save` writes the device of each storage, and `torch.load` restores the storage to that device or to
`map_location`. `torch.save` and `torch.load` use a registry of function pairs. One function returns the location tag
of a storage, and the other moves a storage to the tagged location. This module registers a pair for virtual devices.
The module also replaces methods of `UntypedStorage`, for calls such as `storage.cuda()` in a `map_location` function.
`copy.deepcopy(model)` also needs these methods, because it copies storages without the dispatcher.

While the placement mode is active, `storage.device` is the virtual device. While torch's own functions run, storages
and tensors report the CPU as their device.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, table
from legroom.observe.virtual.placement import is_placement_active
from legroom.observe.virtual.torch_api.devices import index_of

BEFORE_TORCH = 0
"""The priority of the functions that this module registers. PyTorch's functions for the CPU have priority 10 and would
accept every storage.
"""


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    original_clone: Any = torch.UntypedStorage.clone
    original_to = torch.UntypedStorage.to
    original_resize: Any = torch.UntypedStorage.resize_

    def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return _copy(storage, host.device_of(storage))

    def _copy(storage: torch.UntypedStorage, index: int | None) -> torch.UntypedStorage:
        with torch._C.DisableTorchFunction():  # inside, the device of the storage is the CPU
            copy: torch.UntypedStorage = original_clone(storage)
        if index is not None:
            host.mark(copy, index)
        return copy

    def cuda(
        storage: torch.UntypedStorage, device: Any = None, non_blocking: bool = False
    ) -> torch.UntypedStorage:
        index = index_of(host, device)
        return storage if host.device_of(storage) == index else _copy(storage, index)

    def cpu(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return storage if host.device_of(storage) is None else _copy(storage, None)

    def to(storage: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
        kind = torch.device(device).type
        if kind == "cuda":
            return cuda(storage, device)
        if kind == "cpu":
            return cpu(storage)
        return original_to(storage, device=device, non_blocking=non_blocking)

    def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        # FSDP resizes storages to free and allocate the memory of its parameters.
        before = storage.nbytes()
        resized: torch.UntypedStorage = original_resize(storage, size)
        try:
            host.resized(storage)
        except torch.OutOfMemoryError:
            original_resize(storage, before)
            raise
        return resized

    original_device: Any = torch.UntypedStorage.device

    def device(storage: torch.UntypedStorage) -> torch.device:
        is_enabled = torch._C._is_torch_function_mode_enabled() and is_placement_active()
        index = host.device_of(storage) if is_enabled else None
        real: torch.device = original_device.__get__(storage)
        return real if index is None else torch.device("cuda", index)

    methods = {
        "clone": clone, "cuda": cuda, "cpu": cpu, "to": to, "resize_": resize_, "device": property(device),
    }  # fmt: skip
    yield from table(torch.UntypedStorage, methods)


@contextlib.contextmanager
def saved_and_loaded(host: VirtualHost) -> Iterator[None]:
    registry = torch.serialization._package_registry
    validate: Any = torch.serialization._validate_device
    original_clone: Any = torch.UntypedStorage.clone

    def tag(storage: Any) -> str | None:
        index = host.device_of(getattr(storage, "_untyped_storage", storage))
        return None if index is None else f"cuda:{index}"

    def restore(storage: Any, location: str) -> Any:
        if location != "cuda" and not location.startswith("cuda:"):
            return None
        index = index_of(host, validate(location, "cuda"))
        if (
            not storage.resizable()
        ):  # storages on a GPU can be resized, storages that were read from a file cannot
            with torch._C.DisableTorchFunction():
                storage = original_clone(storage)
        host.mark(storage, index)
        return storage

    torch.serialization.register_package(BEFORE_TORCH, tag, restore)
    try:
        yield
    finally:
        registry[:] = [entry for entry in registry if entry[1] is not tag]
