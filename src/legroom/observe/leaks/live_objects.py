"""Lists all live tensors and modules, and records the scan in which each storage was first seen.

Python's garbage collector can list its objects without collecting them. Tensors that only C++ code references are found
through the autograd graphs of the listed tensors. An address may be reused, so weak references identify storages
between scans.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from legroom.observe.dispatch.storages import storage_of, tensors_in
from legroom.observe.holders.python_names import file_of
from legroom.observe.instances import find_instances
from legroom.observe.source.user_files import is_user_file

KINDS = (torch.Tensor, nn.Module)


class LiveObjects(NamedTuple):
    """The objects that were alive at one moment. Drop this object after the scan, because it keeps the listed objects
    alive.
    """

    tensors: list[torch.Tensor]
    modules: list[nn.Module]

    @classmethod
    def of(cls, found: Iterable[Any]) -> "LiveObjects":
        tensors: list[torch.Tensor] = []
        modules: list[nn.Module] = []
        for each in found:
            (tensors if issubclass(type(each), torch.Tensor) else modules).append(each)
        return cls(tensors, modules)

    @property
    def has_model_in_eval_mode(self) -> bool:
        return any(
            each.__dict__.get("training") is False and each.__dict__.get("_modules") for each in self.modules
        )


def find_live_objects() -> LiveObjects:
    return LiveObjects.of(find_instances(KINDS))


class StorageTracker:
    def __init__(self) -> None:
        self.counts: list[int] = []
        """The number of live storages at each scan."""
        self.new_counts: list[int] = []
        """The number of storages that each scan found first."""
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def update(
        self, tensors: Iterable[torch.Tensor], excluded: set[int], scan: int
    ) -> dict[int, list[torch.Tensor]]:
        """Return the live tensors, one per storage, grouped by the scan in which their storage was first seen. Scans are
        numbered from 1. A second update of the same scan removes newly excluded storages from the earlier counts.
        """
        before, self._known = self._known, {}
        by_first_scan: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is None:
                continue
            key = storage._cdata
            if key in self._known or key in excluded:
                continue
            known = before.get(key)
            if known is None or known[0]() is not storage:
                known = (weakref.ref(storage), scan)
            self._known[key] = known
            by_first_scan.setdefault(known[1], []).append(tensor)
        if len(self.counts) == scan:
            for key in before.keys() & excluded:
                first = before[key][1]
                self.new_counts[first - 1] -= 1
                self.counts[first - 1 :] = [count - 1 for count in self.counts[first - 1 :]]
            del self.counts[-1], self.new_counts[-1]
        self.counts.append(len(self._known))
        self.new_counts.append(len(by_first_scan.get(scan, [])))
        return by_first_scan


def other_views(tensors: Iterable[torch.Tensor], of: list[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """Return each tensor that is not in `of` but shares a storage with a tensor in `of`, with the `id` of this other
    tensor. A scan finds one tensor per storage, for example the base of a view, but the program may reference only the
    view.
    """
    ids = {id(each) for each in of}
    by_storage = {storage._cdata: id(each) for each in of if (storage := storage_of(each)) is not None}
    return [
        (each, by_storage[storage._cdata])
        for each in tensors
        if id(each) not in ids and (storage := storage_of(each)) is not None and storage._cdata in by_storage
    ]


def storage_keys(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {storage._cdata for each in tensors if (storage := storage_of(each)) is not None}


def gradients_and_optimizer_state(
    tensors: Iterable[torch.Tensor], optimizers: Iterable[weakref.ref[torch.optim.Optimizer]]
) -> set[int]:
    """Return the storage keys of gradients and optimizer state. A loop without a leak may create gradients and
    optimizer state at any time, but only once per parameter.
    """
    return storage_keys(_gradients_and_state(tensors, optimizers))


def trained_parameters_and_buffers(
    modules: Iterable[nn.Module], trained: Mapping[int, weakref.ref[torch.Tensor]]
) -> set[int]:
    """Return the storage keys of the parameters that an optimizer has trained, and of the buffers in the same modules."""
    alive = {key for key, reference in trained.items() if reference() is not None}
    keys: set[int] = set()
    for each in modules:
        parameters = each.__dict__.get("_parameters") or {}
        if any(id(parameter) in alive for parameter in parameters.values()):
            for tensor in (*parameters.values(), *each.__dict__.get("_buffers", {}).values()):
                storage = storage_of(tensor) if tensor is not None else None
                if storage is not None:
                    keys.add(storage._cdata)
    return keys


def _gradients_and_state(
    tensors: Iterable[torch.Tensor], optimizers: Iterable[weakref.ref[torch.optim.Optimizer]]
) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        if tensor.requires_grad and tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad
    updated: set[int] = set()
    for optimizer in filter(None, (reference() for reference in reversed(list(optimizers)))):
        # Lists in torch's own optimizers are bounded (LBFGS). In a user's optimizer, they may grow.
        depth = 1 if is_user_file(file_of(type(optimizer)) or "") else 2
        # If a newer optimizer updates the same parameter, the state of the older one is no longer used.
        yield from tensors_in(
            [state for parameter, state in optimizer.state.items() if id(parameter) not in updated],
            depth=depth,
        )
        updated.update(map(id, optimizer.state))
        for group in optimizer.param_groups:
            yield from (each.grad for each in group["params"] if each.grad is not None)


def has_gradient_graph(tensor: torch.Tensor) -> bool:
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.grad is not None
        and tensor.grad.grad_fn is not None
    )


def bytes_of(tensor: torch.Tensor) -> int:
    storage = storage_of(tensor)
    return 0 if storage is None else int(storage.nbytes())
