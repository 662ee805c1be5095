"""Finds the variables in the user's frames, and the running calls, that retain device memory.

Tensors inside a running torch call (the layers of an LSTM, a recomputed block) may not be assigned to any Python
variable yet. The running call retains these tensors, so the report shows the user's line that made the call. The caller
passes the location and time at which each storage was allocated (`StepStorage`).

The search must not change the program, so it calls no `repr` and no property, and keeps no references. Up to Python
3.12, reading `f_locals` leaves a copy of the local variables in the frame. The search clears this copy, because it
would keep the tensors alive.
"""

import contextlib
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from legroom.memory.event_base import Category, Frame
from legroom.memory.events import Holder
from legroom.observe.dispatch.attribution import user_lines
from legroom.observe.holders import autograd_graph
from legroom.observe.holders.python_names import CONTAINERS, attributes_of, file_of
from legroom.observe.holders.retained_size import Measure, RetainedStorages, is_legroom_class
from legroom.observe.instances import find_instances, find_iterators
from legroom.observe.source.loaded_modules import user_namespaces
from legroom.observe.source.user_files import is_user_file

_LEGROOM = __file__.rpartition("observe")[0]
MAX_ITEMS = 10_000
"""The maximum number of items of a container that are checked for views."""
_COPIES_LOCALS = sys.version_info < (3, 13)


class StepStorage(NamedTuple):
    key: int
    bytes: int
    frame: Frame | None
    in_backward: bool


class LargestHolders(NamedTuple):
    largest: list[Holder]
    total_bytes: int
    """The number of bytes that all variables and running calls retain together, with each storage counted once."""


class HolderSurvey(NamedTuple):
    """The storages that each variable and each running call retains at one moment, without references to the program's
    objects.
    """

    variables: list[Holder]
    by_variables: dict[int, int]
    """The size of each storage that the user's variables retain, by storage key."""
    by_calls: dict[Frame, dict[int, int]]
    """The keys and sizes of the storages that local variables of library functions retain, by the user's line that
    called the functions.
    """
    lines: list[Frame]
    backward_line: Frame | None
    saved: frozenset[int] = frozenset()

    def categories(self) -> dict[int, Category]:
        """Return the category of each storage, which follows from the object that retains it. Storages that an autograd
        graph saved are activations. All other storages are results or temporary tensors of the forward pass.
        """
        categories: dict[int, Category] = {}
        if autograd_graph.saved_tensors_are_readable():
            for storages in self.by_calls.values():
                categories.update(dict.fromkeys(storages, Category.TEMPORARY))
            categories.update(dict.fromkeys(self.by_variables, Category.RESULT))
        categories.update(dict.fromkeys(self.saved, Category.ACTIVATION))
        return categories

    def holders(
        self, allocated: Iterable[StepStorage] = (), module: str = "", most: int = 24
    ) -> LargestHolders:
        """Return the largest holders.

        A storage in `allocated` that no variable retains is attributed to the call that allocated it, if this call is
        still running. Otherwise, it is attributed to the graph of the running backward pass. `module` is the path of
        the running module.
        """
        by_calls = {line: dict(storages) for line, storages in self.by_calls.items()}
        known = self.by_variables.keys() | {key for storages in by_calls.values() for key in storages}
        for storage in allocated:
            by_running_call = not storage.in_backward and storage.frame in self.lines
            line = storage.frame if by_running_call else self.backward_line
            if storage.key not in known and line is not None:
                by_calls.setdefault(line, {})[storage.key] = storage.bytes
        total = dict(self.by_variables)
        holders = list(self.variables)
        for line, storages in by_calls.items():
            added = {key: size for key, size in storages.items() if key not in total}
            if added:
                total.update(added)
                holders.append(
                    Holder(self._describe_call(line, module), sum(added.values()), len(added), line)
                )
        holders.sort(key=lambda holder: -holder.bytes)
        return LargestHolders(holders[:most], sum(total.values()))

    def _describe_call(self, line: Frame, module: str) -> str:
        where = module if module and line == self.lines[0] else ""
        if line == self.backward_line:
            return f"(intermediate in the backward pass of {where})" if where else "(intermediate in the backward pass)"  # fmt: skip
        return f"(intermediate in {where})" if where else "(intermediate in a running call)"


def find_holders(frame: FrameType | None, measure: Measure, most: int = 8) -> LargestHolders:
    """Return the user's variables that retain the most device memory, largest first: variables in `frame` and its
    callers, in running functions of other threads, and in other modules of the user. Memory that no variable retains
    is attributed to iterators of running loops.
    """
    return survey_holders(frame, measure, every_holder=True).holders(most=most)


def survey_holders(frame: FrameType | None, measure: Measure, *, every_holder: bool = False) -> HolderSurvey:
    """Find the memory that the variables of all functions on the call stack retain, from `frame` outwards. A variable
    that refers to a Legroom object (`guard`) is included only if no other variable retains the same memory.

    With `every_holder`, Legroom objects are always included, and the survey includes other threads, other modules of
    the user, and references that retain no additional memory while the model exists (see `RetainedStorages`).
    """
    guards: list[Holder] = []
    by_guards: dict[int, int] = {}
    holders: list[Holder] = []
    by_variables: dict[int, int] = {}
    by_calls: dict[Frame, dict[int, int]] = {}
    lines, backward_line = user_lines(frame)
    by_others: set[int] = set()
    containers: list[tuple[int, dict[int, int]]] = []
    retained = RetainedStorages(measure, every_reference=every_holder)
    namespaces: set[int] = set()
    for user_frame, variables, is_library in _user_variables(frame, other_threads=every_holder):
        if variables is user_frame.f_globals:
            namespaces.add(id(variables))
        where = Frame(user_frame.f_code.co_filename, user_frame.f_lineno or 0, user_frame.f_code.co_name)
        for name, value in _named_values(variables, with_attributes=not is_library):
            storages = retained.by(value)
            if isinstance(value, (torch.Tensor, torch.optim.Optimizer)):
                by_others.update(storages)
            if is_library:
                by_calls.setdefault(where, {}).update(storages)
            elif storages:
                holder = Holder(name + _describe(value), sum(storages.values()), len(storages), where)
                if is_legroom_class(type(value)) and not every_holder:
                    guards.append(holder)
                    by_guards.update(storages)
                    continue
                by_variables.update(storages)
                if isinstance(value, CONTAINERS):
                    containers.append((len(holders), storages))
                    holder = holder._replace(unused_bytes=_unused_bytes(value, measure))
                holders.append(holder)
        value = None
        clear_locals_copy(user_frame, variables, is_library)
    for name, value in _other_module_values(namespaces) if every_holder else ():
        storages = retained.by(value)
        if storages:
            holders.append(Holder(name + _describe(value), sum(storages.values()), len(storages), None))
            by_variables.update(storages)
    value = None
    if every_holder:
        known = by_variables.keys() | {key for storages in by_calls.values() for key in storages}
        for holder, storages in _iterators_that_retain(_other_storages(known, measure), retained):
            holders.append(holder)
            by_variables.update(storages)
    for position, storages in containers:
        shared = sum(size for key, size in storages.items() if key in by_others)
        holders[position] = holders[position]._replace(shared_bytes=shared)
    retained.by(_tensors_with_graphs())
    if by_guards.keys() - by_variables.keys():
        holders += guards
        by_variables.update(by_guards)
    return HolderSurvey(holders, by_variables, by_calls, lines, backward_line, retained.saved)


def _unused_bytes(container: Any, measure: Measure) -> int:
    """Return the size of the parts of storages outside of the tensors in a container, which are views."""
    used: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    items, seen = [container], 0
    while items and seen < MAX_ITEMS:
        item = items.pop()
        seen += 1
        if isinstance(item, torch.Tensor):
            with contextlib.suppress(Exception):  # a tensor of a finished `torch.func` transform is invalid
                measured = measure(item)
                if measured is not None:
                    used[measured[0]] += item.numel() * item.element_size()
                    sizes[measured[0]] = (
                        item.untyped_storage().nbytes()
                    )  # without the rounding of the allocator
        elif type(item) in CONTAINERS:
            items += item.values() if isinstance(item, dict) else item
    return 0 if items else sum(max(size - used[key], 0) for key, size in sizes.items())


def _tensors_with_graphs() -> list[torch.Tensor]:
    """Return all tensors in the process that are part of an autograd graph. No variable refers to some of them yet, for
    example the items of an unfinished list comprehension, or the first arguments of a call.
    """
    found: list[torch.Tensor] = []
    with torch._C.DisableTorchFunction():
        for each in find_instances((torch.Tensor,)):
            # A tensor of a finished `torch.func` transform is invalid.
            with contextlib.suppress(Exception):
                if each.grad_fn is not None:
                    found.append(each)
    return found


UNNAMED_ITERATOR = "an iterator without a name"


def _iterators_that_retain(
    wanted: set[int], retained: RetainedStorages
) -> Iterator[tuple[Holder, dict[int, int]]]:
    """Yield iterators that retain the wanted storages. Python does not show the iterator of a running `for` loop as a
    variable, and the garbage collector does not report that the running function references the iterator.
    """
    if not wanted:
        return
    found: list[tuple[Any, dict[int, int]]] = []
    for each in find_iterators():
        storages = {key: size for key, size in retained.by(each).items() if key in wanted}
        if storages:
            found.append((each, storages))
    # An iterator may read from another one. The iterator of a Python class is usually the outer one.
    found.sort(key=lambda item: (-sum(item[1].values()), "__module__" not in vars(type(item[0]))))
    for each, storages in found:
        if wanted & storages.keys():
            wanted -= storages.keys()
            path = UNNAMED_ITERATOR + _describe(each)
            yield Holder(path, sum(storages.values()), len(storages), None), storages


def _other_storages(known: set[int], measure: Measure) -> set[int]:
    """Return the keys of the storages of all tensors in the process, except for the `known` keys."""
    found: set[int] = set()
    for each in find_instances((torch.Tensor,)):
        with contextlib.suppress(Exception):  # a tensor of a finished `torch.func` transform is invalid
            measured = measure(each)
            if measured is not None and measured[1]:
                found.add(measured[0])
    return found - known


def tensors_in_frames(frame: FrameType | None) -> Iterator[torch.Tensor]:
    """Yield the tensors in local variables of `frame` and its callers, including items of lists and tuples."""
    while frame is not None:
        variables = frame.f_locals
        for value in list(variables.values()):
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, tuple | list) and len(value) < 1000:
                yield from (item for item in value if isinstance(item, torch.Tensor))
        value = None
        clear_locals_copy(frame, variables)
        frame = frame.f_back


def _user_variables(
    frame: FrameType | None, *, other_threads: bool = False
) -> Iterator[tuple[FrameType, Any, bool]]:
    """Yield (frame, variables, is_library) for each of the user's functions and modules. Variables of library functions
    are yielded with the user's frame that called these functions.
    """
    seen_modules: set[int] = set()
    yield from _variables_of_stack(frame, seen_modules)
    if other_threads:
        current = threading.get_ident()
        for innermost in [each for thread, each in sys._current_frames().items() if thread != current]:
            yield from _variables_of_stack(innermost, seen_modules)


def _variables_of_stack(
    frame: FrameType | None, seen_modules: set[int]
) -> Iterator[tuple[FrameType, Any, bool]]:
    library: list[FrameType] = []
    while frame is not None:
        if not is_user_file(frame.f_code.co_filename):
            library.append(frame)
            frame = frame.f_back
            continue
        for inner in library:
            if inner.f_code.co_flags & inspect.CO_OPTIMIZED and not inner.f_code.co_filename.startswith(
                _LEGROOM
            ):
                yield frame, inner.f_locals, True
        library.clear()
        variables = frame.f_locals
        is_function = variables is not frame.f_globals
        yield frame, variables, False  # reading `f_locals` again later would refill the cleared copy
        is_outermost = frame.f_back is None or frame.f_back.f_globals is not frame.f_globals
        if is_function and is_outermost and id(frame.f_globals) not in seen_modules:
            seen_modules.add(id(frame.f_globals))
            yield frame, frame.f_globals, False
        frame = frame.f_back


def _other_module_values(seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of variables in the user's modules, except for modules whose variables are in `seen`.
    An object that several modules import is yielded for each module, because each module keeps it alive.
    """
    for module, variables in user_namespaces():
        if id(variables) not in seen:
            seen.add(id(variables))  # a module may have two names
            for name, value in _named_values(dict(variables), with_attributes=True):
                yield f"{module}.{name}", value


def _named_values(variables: Any, *, with_attributes: bool) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each variable. The attributes of an instance of a user's class are yielded
    instead of the instance (`trainer.history`). A model is yielded itself, followed by the containers among its
    attributes.
    """
    for name, value in list(variables.items()):  # another thread may add variables
        if not isinstance(name, str) or name.startswith("__"):
            continue
        file = file_of(type(value)) if with_attributes else None
        attributes = attributes_of(value) if file is not None and is_user_file(file) else None
        if attributes is None or isinstance(value, nn.Module):
            yield name, value
        for attribute, held in list((attributes or {}).items()):
            if not isinstance(value, nn.Module) or (
                type(held) in CONTAINERS and not attribute.startswith("_")
            ):
                yield f"{name}.{attribute}", held


def clear_locals_copy(frame: FrameType, variables: Any, is_library: bool = False) -> None:
    """Clear the copy of local variables that reading `f_locals` created. The namespace of a module or class is not
    cleared.
    """
    if (
        _COPIES_LOCALS
        and variables is not frame.f_globals
        and (is_library or frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    ):
        variables.clear()


def _describe(value: Any) -> str:
    if isinstance(value, CONTAINERS):
        return f" ({type(value).__name__}, {len(value):,} item{'s' if len(value) != 1 else ''})"
    return f" ({type(value).__name__})"
