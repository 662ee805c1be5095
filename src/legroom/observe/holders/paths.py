"""Finds the reference path that keeps an object alive, by searching backwards from the object to a name in the user's
program.

Python's garbage collector finds the referrers of an object. Each step backwards requires one pass over all tracked
objects. The search is still fast, because each pass is implemented in C and a path has only a few steps. A path ends at
an object that has a name in the program (see `variables`) and can grow. If a named object cannot grow, the search
continues with its referrers. For example, a function that is created in every iteration (a hook, a deferred report)
does not grow, but is stored in an object that grows. The search calls no method of the user's objects and keeps no
reference to them.
"""

import asyncio
import gc
from collections import OrderedDict, deque
from collections.abc import Mapping
from functools import _lru_cache_wrapper
from itertools import compress
from types import CellType, CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import torch
from torch import nn

from legroom.observe.holders.cycles import closing_name, completing_attribute
from legroom.observe.holders.descriptions import (
    GENERATORS,
    NO_HOLDER,
    HolderPath,
    StoredName,
    describe_path,
    registered_callback,
)
from legroom.observe.holders.python_names import (
    CONTAINERS,
    attributes_of,
    file_of,
    key_of,
    locals_of,
)
from legroom.observe.holders.retained_size import is_observer
from legroom.observe.holders.variables import Root, Variables
from legroom.observe.source.files import built_at, function_at
from legroom.observe.source.passing_calls import Callback
from legroom.observe.source.user_files import is_user_file

MIN_FUNCTIONS = 4
"""The number of functions with the same code that shows that the program may define a function in each iteration."""
MAX_LEVELS = 12
MAX_PER_LEVEL = 12
MAX_MODULE_LEVELS = 12
"""The number of additional levels that the search follows through modules. A layer of a model is usually nested in
several modules, and each module takes three levels.
"""
_UNKNOWN_ITERATIONS: Mapping[int, int] = {}


def find_path(
    target: Any,
    variables: Variables,
    *,
    min_length: int = 0,
    created_in: Mapping[int, int] = _UNKNOWN_ITERATIONS,
    other_than: str = "",
) -> HolderPath:
    """Return the path that keeps `target` alive.

    A container with fewer than `min_length` items is returned only if no other path exists. `created_in` maps the `id`
    of a tensor to the iteration in which it was created, if known. A container with tensors from several iterations is
    treated as the growing container. Variables with the name `other_than` are skipped.

    The caller must not reference the target from a list or a generator, because the search would find this reference.
    Local variables of ordinary functions may refer to the target.
    """
    search = _Search(variables, min_length, created_in, other_than)
    try:
        return search.run(target)
    finally:
        search.forget()


def held_by_python(targets: list[Any], variables: Variables) -> set[int]:
    """Return the `id`s of the targets that a Python object or variable references. All other targets are referenced
    only from C++. The search ignores only the references from `targets`, so the caller must not have any other list of
    these objects.
    """
    wanted = {id(target) for target in targets}
    held = wanted & variables.locals.keys()
    for referrer in gc.get_referrers(*targets):
        if isinstance(referrer, FrameType) and (
            id(referrer) in variables.running or _is_legroom_code(referrer.f_code)
        ):
            continue
        if referrer is not targets and _is_in_python(referrer):
            held |= wanted & {id(referent) for referent in gc.get_referents(referrer)}
    if held != wanted:
        held |= wanted & {id(each._result) for each in _finished_tasks()}
    return held


class _Search:
    def __init__(
        self, variables: Variables, min_length: int, created_in: Mapping[int, int], other_than: str
    ) -> None:
        self._variables = variables
        self._other_than = other_than
        self._min_length = min_length
        self._created_in = created_in
        self._own_lists: set[int] = set()
        self._seen: dict[int, Any] = {}
        """The objects that the search found, by `id`. One dict contains all of these objects, because the search must
        ignore its own references to them.
        """
        self._leads_to: dict[int, int] = {}
        """The `id` of the next object towards the target, by the `id` of the object before it."""

    def forget(self) -> None:
        self._seen.clear()

    def run(self, target: Any) -> HolderPath:
        level: list[Any] = [target]
        self._seen[id(target)] = target
        fallback: HolderPath | None = None
        levels = module_levels = 0
        while levels < MAX_LEVELS:
            if module_levels < MAX_MODULE_LEVELS and any(map(_is_part_of_module, level)):
                module_levels += 1
            else:
                levels += 1
            unfinished: list[Any] = []
            self._own_lists = {id(self._seen), id(level), id(unfinished)}
            for item in level:
                root = self._root_of(item)
                path = self._path(root, item) if root is not None else None
                if path is not None and self._can_grow(path):
                    return path
                if path is not None and (fallback is None or _is_better(path, fallback)):
                    fallback = path
                if id(item) not in self._variables.namespaces:
                    unfinished.append(item)
                elif path is None:  # another variable of the module may lead to the target
                    del self._seen[id(item)]
            level = self._next_level(unfinished) if unfinished else []
            if not level:
                break
        if fallback is not None and not level and fallback.how in ("closure", "generator"):
            # Nothing references the function, unless it references itself.
            cycle = self._unrooted(target)
            return cycle if cycle.how == "cycle" else fallback
        found = fallback or self._being_built()
        return found or self._unrooted(target, is_truncated=bool(level))

    def _can_grow(self, path: HolderPath) -> bool:
        """Return whether the path contains a named object that can grow. A function or generator cannot grow, but may
        be stored in an object that can grow.
        """
        if path.how in ("cache", "exception"):
            return True
        if path.names and not any(name.file is None or is_user_file(name.file) for name in path.names):
            return False  # internal to a library
        return path.iterations >= 2 or path.length >= self._min_length

    def _next_level(self, level: list[Any]) -> list[Any]:
        found = self._candidates(gc.get_referrers(*level), level)
        if found:
            return found
        # A finished task hides its result from the garbage collector.
        tasks = [each for each in _finished_tasks() if _task_result_in(each, level) is not None]
        return self._candidates(tasks, level)

    def _candidates(self, referrers: list[Any], level: list[Any]) -> list[Any]:
        found: list[Any] = []
        for referrer in referrers:
            if (
                id(referrer) in self._seen
                or id(referrer) in self._own_lists
                or isinstance(referrer, _NEVER_HOLDERS)
                or is_observer(type(referrer))
            ):
                continue
            if isinstance(referrer, FrameType) and (
                id(referrer) in self._variables.running or _is_legroom_code(referrer.f_code)
            ):
                continue
            child = _task_result_in(referrer, level)
            if child is None:  # not `or`: that would read the value of a tensor
                child = _referenced_in(referrer, level)
            if child is None or (isinstance(child, OrderedDict) and _is_result(referrer)):
                continue  # the hooks of a tensor with a graph are freed with the tensor
            self._seen[id(referrer)] = referrer
            self._leads_to[id(referrer)] = id(child)
            found.append(referrer)
        found.sort(key=_rank)
        named = [each for each in found[MAX_PER_LEVEL:] if id(each) in self._variables.locals]
        return [*found[:MAX_PER_LEVEL], *named[:MAX_PER_LEVEL]]

    # --- the end of a search

    def _root_of(self, item: Any) -> Root | None:
        namespace = self._variables.namespaces.get(id(item)) if isinstance(item, dict) else None
        if namespace is not None:
            return self._global(item, namespace)
        if isinstance(item, FunctionType):
            child = self._child(item)
            root = _closure(item, child, self._child(child))
            if root is not None:
                return root
        if isinstance(item, type):
            child = self._child(item)
            return _class_attribute(item, child, self._child(child) if isinstance(child, dict) else None)
        if isinstance(item, _lru_cache_wrapper):
            code = getattr(item.__wrapped__, "__code__", None)
            name = getattr(item, "__name__", "")
            if isinstance(code, CodeType):
                return Root(name, code.co_filename, "", 0, "cache")
        if isinstance(item, GENERATORS):
            root = _suspended(item, self._child(item))
            if root is not None:
                return root
        found = self._variables.locals.get(id(item), ())
        root = next((root for root in found if root.name != self._other_than), None)
        if root is not None and root.thread is not None and found.count(root) > 1:
            return root._replace(thread=None, threads=0)  # several threads share the object
        return root

    def _child(self, item: Any) -> Any:
        return self._seen.get(self._leads_to.get(id(item), 0))

    def _global(self, namespace: dict[str, Any], module: str) -> Root | None:
        name = key_of(namespace, self._child(namespace))
        if name is None or name == self._other_than:
            return None
        file = self._variables.names.get(id(namespace)) or namespace.get("__file__")
        shown = f"sys.{name}" if module == "sys" else name
        return Root(shown, file if isinstance(file, str) else None, "", 0, "variable")

    # --- from the root to the target

    def _path(self, root: Root, item: Any) -> HolderPath:
        """Describe the path from the root to the target. `item` is the value of the root name, or the namespace that
        contains the name.
        """
        chain = self._chain(item)
        if (isinstance(item, dict) and id(item) in self._variables.namespaces) or root.how in (
            "closure",
            "generator",
        ):
            chain = chain[1:]
            if isinstance(item, FunctionType) and chain:
                is_defaults = chain[0] is item.__defaults__ or chain[0] is item.__kwdefaults__
                chain = chain[1:] if is_defaults else chain
        elif isinstance(item, type):
            chain = chain[1:] if chain[1] is not _class_namespace(item, chain[1]) else chain[2:]
        while chain and (isinstance(chain[0], CellType) or _is_closure(chain[0])):
            chain = chain[1:]
        path = describe_path(root, chain, self._created_in)
        if not chain:
            return path
        if root.how == "closure" and path.callback is None and isinstance(item, FunctionType):
            path = path._replace(callback=_repeated_function(item))
        others = self._variables.others(root, chain[0])
        return path._replace(
            aliases=tuple(
                StoredName(each.name, each.name, False, each.file, each.function) for each in others
            )
        )

    def _being_built(self) -> HolderPath | None:
        """Return a list that a running statement builds, as in `losses = [step(x) for x in data]`. A list that is being
        built has no name until the statement ends.
        """
        long_enough = [
            item
            for item in self._seen.values()
            if isinstance(item, CONTAINERS) and len(item) >= self._min_length
        ]
        if not long_enough or not self._min_length:
            return None
        for file, line, function in self._variables.lines:
            name = built_at(file, line)
            if name is not None:
                function = function_at(file, line) if function.startswith("<") else function
                root = Root(name or function or "(a list being built)", file, function, line, "variable")
                return describe_path(root, self._chain(long_enough[-1]), self._created_in)
        return None

    def _unrooted(self, target: Any, *, is_truncated: bool = False) -> HolderPath:
        """Return the reference path of a target that no name references. The target is in a reference cycle, or no
        Python object references it. For a cycle, the result contains the attribute or variable that closes the cycle.
        If several objects from the user's code are in the cycle, the object closest to the target is used. With
        `is_truncated`, a name may exist, but the path to it is long, as in a list of linked objects.
        """
        candidates = [
            item
            for item in self._seen.values()
            if item is not target
            and not isinstance(item, CONTAINERS)
            # Tensors that Legroom packs into a graph (spilling) belong to the holder of the graph.
            and not (file_of(type(item)) or "").startswith(_LEGROOM)
        ]
        for item in [*filter(_is_of_user, candidates), *candidates]:
            closing = closing_name(item)
            if closing is None:
                continue
            if isinstance(item, FunctionType | FrameType):
                code = item.__code__ if isinstance(item, FunctionType) else item.f_code
                line = code.co_firstlineno if isinstance(item, FunctionType) else 0
                root = Root(closing, code.co_filename, code.co_name, line, "cycle")
                return describe_path(root, [target], self._created_in)
            path = self._path_of_instance(item)
            owner, closing = completing_attribute(item, closing)
            classes = frozenset(each.__name__ for each in owner.__mro__)
            return path._replace(
                stored_as=closing,
                is_attribute=True,
                file=file_of(owner),
                classes=classes,
                is_truncated=is_truncated,
            )
        named = [item for item in candidates if attributes_of(item) is not None]
        path = self._path_of_instance(named[-1]) if named else NO_HOLDER
        if is_truncated and not named:  # dicts that are nested in each other
            path = self._path_of_instance(next(reversed(self._seen.values())))
            return path._replace(how="linked", is_truncated=True) if path.repeated_key else NO_HOLDER
        path = path._replace(is_truncated=is_truncated)
        chain = self._chain(next(reversed(self._seen.values())))
        if path.how == "cycle" and not is_truncated and (callback := registered_callback(chain)) is not None:
            return path._replace(how="hook", callback=callback)
        # A running iterator may reference a container, for example of a dataset.
        if path.container:
            return path._replace(how="container")
        return path._replace(how="linked") if is_truncated and path.how == "cycle" else path

    def _path_of_instance(self, owner: Any) -> HolderPath:
        root = Root(type(owner).__name__, file_of(type(owner)), "", 0, "cycle")
        return describe_path(root, self._chain(owner), self._created_in)

    def _chain(self, item: Any) -> list[Any]:
        chain = []
        while item is not None:
            chain.append(item)
            item = self._child(item)
        return chain


def _is_of_user(item: Any) -> bool:
    if isinstance(item, FunctionType):
        return is_user_file(item.__code__.co_filename)
    return is_user_file(item.f_code.co_filename if isinstance(item, FrameType) else file_of(type(item)) or "")


def _closure(function: FunctionType, child: Any, grandchild: Any) -> Root | None:
    """Return the closure variable, or the argument with a default value, through which `function` references
    `child`.
    """
    code = function.__code__

    def root(name: str) -> Root:
        return Root(name, code.co_filename, code.co_name, code.co_firstlineno, "closure")

    cell = grandchild if child is function.__closure__ else child
    for name, each in zip(code.co_freevars, function.__closure__ or (), strict=False):
        if each is cell:
            return root(name)
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    if child is defaults and defaults:
        named = zip(positional[-len(defaults) :], defaults, strict=False)
        return next((root(name) for name, value in named if value is grandchild), None)
    if child is function.__kwdefaults__ and isinstance(child, dict):
        keyword = key_of(child, grandchild)
        return root(keyword) if keyword is not None else None
    return None


def _repeated_function(function: FunctionType) -> Callback | None:
    """Return the function if several functions with the same code are alive, as if each iteration registers a hook."""
    code = function.__code__
    alive = sum(isinstance(each, FunctionType) for each in gc.get_referrers(code))
    return Callback(code.co_name, code.co_filename, code.co_firstlineno) if alive >= MIN_FUNCTIONS else None


def _is_closure(item: Any) -> bool:
    return isinstance(item, tuple) and any(isinstance(each, CellType) for each in item)


def _class_namespace(kind: type, child: Any) -> Any:
    return (
        child if isinstance(child, dict) and "__module__" in child and "__module__" in kind.__dict__ else None
    )


def _class_attribute(kind: type, child: Any, grandchild: Any) -> Root | None:
    for name, value in kind.__dict__.items():
        if value is child or (grandchild is not None and value is grandchild):
            return Root(f"{kind.__name__}.{name}", file_of(kind), "", 0, "variable", True, kind)
    return None


def _suspended(generator: Any, child: Any) -> Root | None:
    frame = next(
        (f for f in (getattr(generator, name, None) for name in ("gi_frame", "cr_frame", "ag_frame")) if f),
        None,
    )
    if frame is None or not is_user_file(frame.f_code.co_filename):
        return None
    name = next((name for name, value in locals_of(frame) if value is child), "")
    code = frame.f_code
    return Root(name or code.co_name, code.co_filename, code.co_name, frame.f_lineno or 0, "generator")


def _finished_tasks() -> list[Any]:
    # A finished task hides its result from the garbage collector.
    objects = gc.get_objects()
    return list(compress(objects, map({asyncio.Task, asyncio.Future}.__contains__, map(type, objects))))


def _task_result_in(item: Any, level: list[Any]) -> Any:
    result = item._result if issubclass(type(item), asyncio.Future) else None
    return next((each for each in level if each is result), None) if result is not None else None


def _referenced_in(referrer: Any, level: list[Any]) -> Any:
    if len(level) == 1:
        return level[0]
    wanted = {id(item): item for item in level}
    for referent in gc.get_referents(referrer):
        if id(referent) in wanted:
            return wanted[id(referent)]
    return None


_NEVER_HOLDERS = (ModuleType, CodeType, Variables, _Search)


def _is_in_python(referrer: Any) -> bool:
    """Return whether a referrer is a Python object that retains the tensor. Autograd nodes are not counted, because the
    tensors that own the graph keep the nodes alive. A list that references an autograd node (the `ctx` of the user's
    autograd function) is counted.
    """
    return not isinstance(referrer, (*_NEVER_HOLDERS, torch._C._FunctionBase))


def _is_better(path: HolderPath, fallback: HolderPath) -> bool:
    """Return whether a path explains the growth better than another path. A variable that refers to functions nested in
    each other (`step = wrap(step)`) is better than a variable of one of these functions.
    """
    return path.length > fallback.length or path.nested_functions > max(fallback.nested_functions, 1)


def _is_result(item: Any) -> bool:
    """Return whether an object is a tensor with a graph."""
    return isinstance(item, torch.Tensor) and not item.is_leaf


def _is_part_of_module(item: Any) -> bool:
    """Return whether an object is a module, the dict of its attributes, or the dict of its submodules."""
    if isinstance(item, dict):
        return "_modules" in item or any(isinstance(each, nn.Module) for each in list(item.values())[:1])
    return isinstance(item, nn.Module)


def _rank(referrer: Any) -> int:
    if isinstance(referrer, list | dict | deque | set):
        return 0
    return 2 if isinstance(referrer, FrameType | TracebackType | BaseException) else 1


def _is_legroom_code(code: CodeType) -> bool:
    return code.co_filename.startswith(_LEGROOM)


_LEGROOM = __file__.rpartition("observe")[0]
