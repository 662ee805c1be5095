"""One look at every tensor alive: which storages there are, since when, and what can be said of the graphs.

Python's garbage collector lists its objects without collecting anything. Tensors that only the C++ side holds are
reached through the graphs of those it lists. Storages are recognised from look to look by weak references, since an
address may be used again.
"""

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import nn

from legroom.observe.dispatch.attribution import is_user_file
from legroom.observe.dispatch.storages import storage_of, tensors_in
from legroom.observe.holders.python_names import file_of


class Around(NamedTuple):
    """What there is at one moment. Not to be kept longer than the look."""

    tensors: list[torch.Tensor]
    """All that Python knows of."""
    modules: list[nn.Module]

    @property
    def evaluating(self) -> bool:
        """Whether a model is in evaluation mode."""
        return any(
            each.__dict__.get("training") is False and each.__dict__.get("_modules") for each in self.modules
        )


def look_around() -> Around:
    """Every tensor and every module."""
    kinds = {torch.Tensor: _with_memory(_derived(torch.Tensor)), nn.Module: _derived(nn.Module)}
    wanted = kinds[torch.Tensor] | kinds[nn.Module]
    objects = gc.get_objects()
    # Chained in C: asking each of some hundred thousand objects in Python takes several times as long.
    found = list(compress(objects, map(wanted.__contains__, map(type, objects))))
    del objects
    return Around(
        [each for each in found if type(each) in kinds[torch.Tensor]],
        [each for each in found if type(each) in kinds[nn.Module]],
    )


def _with_memory(kinds: set[type]) -> set[type]:
    """Without the stand-ins that compiling leaves behind: they hold nothing, and their nodes are numbered by other threads."""
    return {kind for kind in kinds if not kind.__module__.startswith("torch._subclasses.")}


def _derived(kind: type) -> set[type]:
    """A class and all that are derived from it."""
    kinds, unread = {kind}, [kind]
    while unread:
        derived: set[type] = set(type.__subclasses__(unread.pop())) - kinds
        kinds |= derived
        unread += derived
    return kinds


class Followed:
    """Storages from look to look: when each was first seen."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int, int]] = {}

    def look(
        self, tensors: Iterable[torch.Tensor], excluded: set[int], now: int
    ) -> dict[int, list[torch.Tensor]]:
        """The tensors alive by the look at which their storage was first seen (one tensor for each storage)."""
        before, self._known = self._known, {}
        by_birth: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is None:
                continue
            key = storage._cdata
            if key in self._known or key in excluded:
                continue
            known = before.get(key)
            if known is None or known[0]() is not storage:
                known = (weakref.ref(storage), now, storage.nbytes())
            self._known[key] = known
            by_birth.setdefault(known[1], []).append(tensor)
        return by_birth

    @property
    def count(self) -> int:
        return len(self._known)

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self._known.values())


def accounted_for(
    tensors: Iterable[torch.Tensor], optimizers: Iterable[weakref.ref[torch.optim.Optimizer]]
) -> set[int]:
    """Storages that a sound loop may add at any time, once for each parameter: gradients, and the optimizer's state."""
    keys: set[int] = set()
    for tensor in _claimed(tensors, optimizers):
        storage = storage_of(tensor)
        if storage is not None:
            keys.add(storage._cdata)
    return keys


def of_trained(modules: Iterable[nn.Module], trained: Mapping[int, weakref.ref[torch.Tensor]]) -> set[int]:
    """Storages of parameters that an optimizer has trained (`id` → the parameter), and of the buffers beside them."""
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


def _claimed(
    tensors: Iterable[torch.Tensor], optimizers: Iterable[weakref.ref[torch.optim.Optimizer]]
) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        if tensor.requires_grad and tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad
    for reference in optimizers:
        optimizer = reference()
        if optimizer is not None:
            # Lists in an optimizer of torch's are limited (LBFGS); in one of the user's own they may grow.
            yield from tensors_in(
                optimizer.state.values(), depth=1 if is_user_file(file_of(type(optimizer)) or "") else 2
            )
