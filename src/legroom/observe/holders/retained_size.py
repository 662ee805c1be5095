"""Computes the device memory that an object retains, directly and through all objects that it references.

A process may have hundreds of thousands of objects that reference no tensor (samples in a dataset, a tokenizer's
vocabulary). The user waits for the report, so the search must be fast. The search proceeds level by level, and handles
all objects of one type with a single call to a function that is implemented in C. Only tensors, modules and optimizers
are handled one by one.

The search runs no code from the user's classes, and keeps no references after a `RetainedStorages` is freed.

A report shows what the program needs at one moment. It omits references that retain no additional memory in a program
that trains: the parameters that an optimizer or a graph references, and Legroom's objects that only observe tensors
(`watch`). With `every_reference`, the search follows these references as well, because each of them keeps memory alive
after the variable of the model is deleted.
"""

import gc
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, compress, groupby
from operator import not_
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from legroom.observe.holders import autograd_graph
from legroom.observe.holders.python_names import LEAVES
from legroom.observe.source.loaded_modules import module_namespaces
from legroom.observe.training_threads import other_threads_train

Measure = Callable[[torch.Tensor], tuple[int, int] | None]
"""A function that returns the key of a tensor's storage and its size in bytes, or None if the tensor is not on a
device.
"""

MAX_OBJECTS = 1_000_000
"""The maximum number of objects that the search from one object visits."""
_Referents = Callable[[list[Any]], Iterable[Any]]


class RetainedStorages:
    """Computes the storages that objects retain at one moment. Several objects often reference the same object, so
    results are cached.
    """

    def __init__(self, measure: Measure, *, every_reference: bool = False) -> None:
        self._measure = measure
        self._every_reference = every_reference
        self._without_memory: set[int] = set()
        self._leaves: set[type] = set(LEAVES)
        if every_reference:
            self._leaves.discard(FrameType)  # a variable may refer to an exception, and thus to its frames
        self._referents: dict[type, _Referents] = {}
        self._saved: dict[Any, dict[int, int]] = {}
        self._storages: dict[int, int] = {}
        self._results: dict[int, tuple[Any, dict[int, int]]] = {}
        # The same object is often a variable of several functions.

    def by(self, value: Any) -> dict[int, int]:
        """Return the size of each storage that `value` keeps alive on a device, by storage key."""
        if id(value) not in self._results:
            self._results[id(value)] = value, self._search(value)
        return self._results[id(value)][1]

    @property
    def saved(self) -> frozenset[int]:
        return frozenset(chain.from_iterable(self._saved.values()))

    def _search(self, value: Any) -> dict[int, int]:
        self._storages = {}
        seen: set[int] = set()
        level = self._without_leaves([value])
        while level and len(seen) < MAX_OBJECTS:
            new = dict(zip(map(id, level), level, strict=True))
            for key in new.keys() & self._results.keys():
                self._storages |= self._results[key][1]
                del new[key]
            for known in (seen, self._without_memory):
                for key in new.keys() & known:
                    del new[key]
            seen.update(new)
            by_type: dict[type, list[Any]] = {}
            for kind, items in groupby(new.values(), type):  # neighbors usually have the same type
                by_type.setdefault(kind, []).extend(items)
            level = self._without_leaves(
                chain.from_iterable(self._referents_of(kind, items) for kind, items in by_type.items())
            )
        if not self._storages:
            self._without_memory |= seen
        return self._storages

    def _without_leaves(self, items: Iterable[Any]) -> list[Any]:
        every = list(items)
        return list(compress(every, map(not_, map(self._leaves.__contains__, map(type, every)))))

    def _referents_of(self, kind: type, items: list[Any]) -> Iterable[Any]:
        # Not in `_referents`: storing a bound method there would put this object into a reference cycle.
        if issubclass(kind, torch.Tensor):
            return self._from_tensors(items)
        referents = self._referents.get(kind)
        if referents is None:
            referents = self._referents[kind] = self._find_referents(kind)
        return referents(items)

    def _find_referents(self, kind: type) -> _Referents:
        is_leaf = issubclass(kind, LEAVES) and not (self._every_reference and kind is FrameType)
        if is_leaf or kind.__module__.startswith(_TEST_RUNNER):
            self._leaves.add(kind)
            return _no_referents
        if self._every_reference:
            return self._find_all_referents(kind)
        if is_observer(kind):
            self._leaves.add(kind)
            return _no_referents
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
        return (
            _from_referents if "__module__" in vars(kind) else _from_builtins
        )  # a Python class, or a builtin

    def _find_all_referents(self, kind: type) -> _Referents:
        if issubclass(kind, dict):
            return partial(_from_dicts_and_keys, set(module_namespaces()))
        return _from_all_functions if issubclass(kind, FunctionType) else _from_referents

    def _from_tensors(self, tensors: list[Any]) -> Iterable[Any]:
        roots, gradients = [], []
        reads_autograd = not other_threads_train()
        for tensor in tensors:
            self._add(tensor, self._storages)
            if not reads_autograd:  # a backward pass on another thread may free the objects that are read
                continue
            if not tensor.is_leaf:
                roots.append(tensor.grad_fn)
            elif tensor.grad is not None:
                gradients.append(tensor.grad)
        for node in autograd_graph.nodes(roots):
            saved = self._saved.get(node)
            if saved is None:
                saved = self._saved[node] = {}
                for each in chain(autograd_graph.saved_by(node), autograd_graph.checkpoint_tensors(node)):
                    self._add(each, saved)
            self._storages.update(saved)
            # The node that accumulates a gradient references the parameter, even after the backward pass.
            parameter = getattr(node, "variable", None) if self._every_reference else None
            if isinstance(parameter, torch.Tensor):
                gradients.append(parameter)
        return gradients

    def _add(self, tensor: torch.Tensor, storages: dict[int, int]) -> None:
        measured = self._measure(tensor)
        if measured is not None:
            storages[measured[0]] = measured[1]


def is_legroom_class(kind: type) -> bool:
    # An `nn.Module` is part of the model that contains it, so it does not count.
    return kind.__module__.startswith("legroom.") and not issubclass(kind, nn.Module)


def is_observer(kind: type) -> bool:
    return is_legroom_class(kind) and not kind.__module__.startswith(_RETAINING_PACKAGES)


_TEST_RUNNER = ("_pytest.", "pluggy.")
"""Modules whose objects are not followed. Each pytest object references the whole session, which may have thousands of
tests.
"""
_RETAINING_PACKAGES = ("legroom.train.", "legroom.scale.", "legroom.tuning.", "legroom.integrations.")


def _no_referents(leaves: list[Any]) -> Iterable[Any]:
    return ()


_MODULE_DICTS = ("_parameters", "_buffers", "_modules")


def _from_optimizers(optimizers: list[Any]) -> Iterable[Any]:
    return [vars(optimizer).get("state") for optimizer in optimizers]


def _from_modules(modules: list[Any]) -> Iterable[Any]:
    values: list[Any] = []
    for module in modules:
        values += map(vars(module).get, _MODULE_DICTS)  # a copy that is being created has no dicts yet
        values += (value for name, value in vars(module).items() if not name.startswith("_"))
    return values


def _from_dicts(dicts: list[Any]) -> Iterable[Any]:
    return list(chain.from_iterable(map(dict.values, dicts)))


def _from_referents(objects: list[Any]) -> Iterable[Any]:
    """Return the items of sequences and the attributes of objects. CPython stores attributes in a dict or in the object
    itself.
    """
    return gc.get_referents(*objects)


def _from_dicts_and_keys(namespaces: set[int], dicts: list[Any]) -> Iterable[Any]:
    """Return the keys and values of dicts, except for the variables of modules. An object that references these
    variables, such as the frame of an exception, is not the reason that they are alive.
    """
    return gc.get_referents(*[each for each in dicts if id(each) not in namespaces])


def _from_all_functions(functions: list[Any]) -> Iterable[Any]:
    """Return the objects that functions reference, except for the variables of their modules."""
    for each in functions:
        yield from autograd_graph.closure_values(each)
        yield from (each.__defaults__, each.__kwdefaults__, each.__dict__)


def _from_functions(functions: list[Any]) -> Iterable[Any]:
    return chain.from_iterable(map(autograd_graph.closure_values, functions))


def _from_methods(methods: list[Any]) -> Iterable[Any]:
    return [method.__self__ for method in methods]


def _from_builtins(others: list[Any]) -> Iterable[Any]:
    """Return the containers, tensors, modules and optimizers that a generator, an iterator or a deque references."""
    return [each for each in gc.get_referents(*others) if isinstance(each, _FOLLOWED_FROM_BUILTINS)]


_FOLLOWED_FROM_BUILTINS = (dict, list, tuple, torch.Tensor, nn.Module, torch.optim.Optimizer)
