"""Replays the allocations that CUDA kernels make in addition to their results (see `cuda_rules`)."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    OutputAlloc,
    OutputCopy,
    PersistentAlloc,
    ScratchAlloc,
    ScratchFree,
)
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.dispatch.allocations import DeviceAllocations
from legroom.observe.dispatch.attribution import OpLocation
from legroom.observe.dispatch.storages import storage_of


class AddStorage(Protocol):
    def __call__(
        self,
        key: int,
        storage: Any,
        device: int,
        location: OpLocation,
        func: Any,
        *,
        nbytes: int | None = None,
    ) -> None: ...


class KernelMemory:
    """Replays memory plans. Memory that a library never frees is allocated only once."""

    def __init__(self, rules: CudaRules) -> None:
        self.rules = rules
        self._persistent: set[tuple[int, str]] = set()

    def replay(
        self,
        plan: MemoryPlan,
        allocations: DeviceAllocations,
        add_storage: AddStorage,
        reallocate: Callable[[int, OpLocation, Any], None],
        device: int,
        location: OpLocation,
        func: Any,
        out: Any,
        new: dict[int, Any],
    ) -> None:
        """Replay the allocations of one operation in order.

        `new` maps storage keys to the storages that the operation allocated for its results.
        `reallocate(key, location, func)` moves a storage to other memory.
        """
        by_index = _keys_by_index(out)
        planned = {by_index.get(step.index) for step in plan.steps if isinstance(step, OutputAlloc)}
        for key in [key for key in new if key not in planned]:
            add_storage(key, new.pop(key), device, location, func)
        workspaces: dict[str, tuple[int, Any]] = {}
        try:
            for step in plan.steps:
                if isinstance(step, OutputAlloc):
                    key = by_index.get(step.index, 0)
                    if key in new:
                        add_storage(key, new.pop(key), device, location, func, nbytes=step.bytes)
                elif isinstance(step, ScratchAlloc):
                    number, block = allocations.allocate_workspace(step.bytes, device, location, func)
                    workspaces[step.name] = number, block
                    if step.alternatives:
                        allocations.alternatives[number] = step.alternatives
                    if step.optional:
                        allocations.optional.add(number)
                elif isinstance(step, ScratchFree):
                    allocations.free_workspace(*workspaces.pop(step.name), device)
                elif isinstance(step, OutputCopy):
                    reallocate(by_index[step.index], location, func)
                elif isinstance(step, PersistentAlloc) and (device, step.name) not in self._persistent:
                    allocations.allocate_workspace(step.bytes, device, location, func)
                    self._persistent.add((device, step.name))
        finally:
            for number, block in reversed(
                workspaces.values()
            ):  # C++ destroys local variables in reverse order
                allocations.free_workspace(number, block, device)


def _keys_by_index(out: Any) -> dict[int, int]:
    """Return the key of each result's storage, by the index of the result. Lists of results are flattened."""
    storages = map(storage_of, _flatten(out))
    return {index: storage._cdata for index, storage in enumerate(storages) if storage is not None}


def _flatten(out: Any) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, tuple | list):
        for item in out:
            yield from _flatten(item)
