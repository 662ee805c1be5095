"""How much device memory an object keeps alive, by all that it leads to.

A process has hundreds of thousands of objects that lead nowhere (rows of a data set, a tokenizer's words), and the question is asked
when a run has died and somebody waits. So objects are followed level by level and each kind at once, which is done in C; only
tensors, modules and optimizers are looked at one by one.

Looking changes nothing: no code of the user's classes runs, nothing is kept when a `Reach` is gone. Legroom's own objects lead nowhere: they
follow what others hold.
"""

import gc
from collections.abc import Callable, Iterable
from itertools import chain, compress, groupby
from operator import not_
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from legroom.observe.holders import autograd_graph

Measure = Callable[[torch.Tensor], tuple[int, int] | None]
"""A tensor → (key of its storage, device bytes), or None when it is not on a device."""

MOST_OBJECTS = 1_000_000
"""No more are followed from one object."""
_LEAVES = (
    str, bytes, bytearray, int, float, complex, type(None), range, ModuleType, type, torch.dtype, torch.device, FrameType,
)  # fmt: skip
_Way = Callable[[list[Any]], Iterable[Any]]
"""From objects of one kind to what they hold."""


class Reach:
    """Answers for several objects of one moment; what it has learned from one serves the next."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._barren: set[int] = set()
        """What was followed and led to no device memory, by `id`."""
        self._leaves: set[type] = set(_LEAVES)
        self._ways: dict[type, _Way] = {}
        self._saved: dict[Any, dict[int, int]] = {}
        """What each node of a graph keeps."""
        self._storages: dict[int, int] = {}
        self._answers: dict[int, tuple[Any, dict[int, int]]] = {}
        """By `id`: what is passed from function to function is asked about again and again."""

    def of(self, value: Any) -> dict[int, int]:
        """Storage key → bytes, of everything on a device that `value` keeps alive."""
        if id(value) not in self._answers:
            self._answers[id(value)] = value, self._follow(value)
        return self._answers[id(value)][1]

    @property
    def saved(self) -> frozenset[int]:
        """Storage keys of what the graphs met so far keep for a backward pass."""
        return frozenset(chain.from_iterable(self._saved.values()))

    def _follow(self, value: Any) -> dict[int, int]:
        self._storages = {}
        seen: set[int] = set()
        level = self._worth_following([value])
        while level and len(seen) < MOST_OBJECTS:
            fresh = dict(zip(map(id, level), level, strict=True))
            for known in (seen, self._barren):
                for key in fresh.keys() & known:
                    del fresh[key]
            seen.update(fresh)
            by_kind: dict[type, list[Any]] = {}
            for kind, items in groupby(fresh.values(), type):  # neighbours are mostly of one kind
                by_kind.setdefault(kind, []).extend(items)
            level = self._worth_following(
                chain.from_iterable(self._held_by(kind, items) for kind, items in by_kind.items())
            )
        if not self._storages:
            self._barren |= seen
        return self._storages

    def _worth_following(self, items: Iterable[Any]) -> list[Any]:
        every = list(items)
        return list(compress(every, map(not_, map(self._leaves.__contains__, map(type, every)))))

    def _held_by(self, kind: type, items: list[Any]) -> Iterable[Any]:
        # Not among the ways: with a method of its own there, this object would live on in a cycle.
        if issubclass(kind, torch.Tensor):
            return self._from_tensors(items)
        way = self._ways.get(kind)
        if way is None:
            way = self._ways[kind] = self._find_way(kind)
        return way(items)

    def _find_way(self, kind: type) -> _Way:
        if issubclass(kind, _LEAVES) or _is_ours(kind):
            self._leaves.add(kind)
            return _nowhere
        if issubclass(kind, torch.optim.Optimizer):
            return _from_optimizers
        if issubclass(kind, nn.Module):
            return _from_modules
        if issubclass(kind, dict):
            return _from_dicts
        if issubclass(kind, list | tuple | set | frozenset):
            return _from_referents
        if issubclass(kind, FunctionType):
            return _from_functions
        if issubclass(kind, MethodType):
            return _from_methods
        return _from_referents if "__module__" in vars(kind) else _from_builtins  # a class of somebody's

    def _from_tensors(self, tensors: list[Any]) -> Iterable[Any]:
        roots, gradients = [], []
        for tensor in tensors:
            self._count(tensor, self._storages)
            if not tensor.is_leaf:
                roots.append(tensor.grad_fn)
            elif tensor.grad is not None:
                gradients.append(tensor.grad)
        for node in autograd_graph.nodes(roots):
            saved = self._saved.get(node)
            if saved is None:
                saved = self._saved[node] = {}
                for each in chain(autograd_graph.saved_by(node), autograd_graph.kept_to_recompute(node)):
                    self._count(each, saved)
            self._storages.update(saved)
        return gradients

    def _count(self, tensor: torch.Tensor, storages: dict[int, int]) -> None:
        measured = self._measure(tensor)
        if measured is not None:
            storages[measured[0]] = measured[1]


def _is_ours(kind: type) -> bool:
    """Of Legroom's own classes, a module is part of the model that it was put into; all others only watch."""
    return kind.__module__.startswith("legroom.") and not issubclass(kind, nn.Module)


def _nowhere(leaves: list[Any]) -> Iterable[Any]:
    return ()


def _from_optimizers(optimizers: list[Any]) -> Iterable[Any]:
    return [optimizer.state for optimizer in optimizers]


def _from_modules(modules: list[Any]) -> Iterable[Any]:
    held: list[Any] = []
    for module in modules:
        held += (module._parameters, module._buffers, module._modules)
        held += (value for name, value in vars(module).items() if not name.startswith("_"))
    return held


def _from_dicts(dicts: list[Any]) -> Iterable[Any]:
    return list(chain.from_iterable(map(dict.values, dicts)))


def _from_referents(objects: list[Any]) -> Iterable[Any]:
    """The items of sequences, the attributes of objects (which CPython keeps in a dictionary, or for speed in the object itself)."""
    return gc.get_referents(*objects)


def _from_functions(functions: list[Any]) -> Iterable[Any]:
    return chain.from_iterable(map(autograd_graph.enclosed, functions))


def _from_methods(methods: list[Any]) -> Iterable[Any]:
    return [method.__self__ for method in methods]


def _from_builtins(others: list[Any]) -> Iterable[Any]:
    """A generator, an iterator, a deque: what they plainly hold, not whatever else they know of."""
    return [held for held in gc.get_referents(*others) if isinstance(held, _PLAINLY_HELD)]


_PLAINLY_HELD = (dict, list, tuple, torch.Tensor, nn.Module, torch.optim.Optimizer)
