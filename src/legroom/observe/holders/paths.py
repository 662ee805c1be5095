"""By which path Python keeps an object: from the object backwards, until a name in the user's program is met.

The garbage collector knows who refers to whom. Asking it costs one pass over all its objects, in C, for each step
backwards; a path has few. A name is where a path ends (see `python_names`), unless what it leads to cannot be what grows: then the
search goes on to who holds that, for a function made anew with every turn (a hook, a report to be made later) is not what gathers
but lies in something that does. Nothing is called on the user's objects, and nothing of what is met is kept when the search is over.
"""

import asyncio
import gc
from collections import deque
from collections.abc import Mapping
from functools import _lru_cache_wrapper
from types import CellType, CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import torch

from legroom.observe.dispatch.attribution import is_user_file
from legroom.observe.holders.descriptions import GENERATORS, NO_ONE, HolderPath, StoredName, in_words
from legroom.observe.holders.python_names import (
    CONTAINERS,
    Root,
    Variables,
    attributes_of,
    file_of,
    key_of,
    locals_of,
)
from legroom.observe.source.files import built_at, name_around

MOST_LEVELS = 12
MOST_AT_A_LEVEL = 12
_NO_TURNS: Mapping[int, int] = {}


def find_path(
    target: Any, variables: Variables, *, least: int = 0, made: Mapping[int, int] = _NO_TURNS
) -> HolderPath:
    """Who keeps `target` alive. `least`: a container of fewer items is named only if nothing else leads there. `made`: `id` of a
    tensor → the turn in which it was made, as far as known: what has tensors of several turns is what grows.

    The caller may hold the target in local variables of plain functions; a list or a generator of its own would be found.
    """
    search = _Search(variables, least, made)
    try:
        return search.run(target)
    finally:
        search.forget()


def held_by_python(targets: list[Any], variables: Variables) -> set[int]:
    """`id`s of those that some Python object or variable refers to; the others are kept by the C++ side alone. `targets` may
    be the caller's only list of them."""
    wanted = {id(target) for target in targets}
    held = wanted & variables.locals.keys()
    for referrer in gc.get_referrers(*targets):
        if isinstance(referrer, FrameType) and (
            id(referrer) in variables.running or _is_ours(referrer.f_code)
        ):
            continue
        if referrer is not targets and _is_in_python(referrer):
            held |= wanted & {id(referent) for referent in gc.get_referents(referrer)}
    return held


class _Search:
    def __init__(self, variables: Variables, least: int, made: Mapping[int, int]) -> None:
        self._variables = variables
        self._least = least
        self._made = made
        self._ours: set[int] = set()
        """`id`s of the lists that the search itself has in hand."""
        self._met: dict[int, Any] = {}
        """Every object met, by `id`: one dict, so that there is only this to overlook among the referrers."""
        self._leads_to: dict[int, int] = {}
        """`id` of an object → of the one it refers to, nearer to the target."""

    def forget(self) -> None:
        self._met.clear()

    def run(self, target: Any) -> HolderPath:
        level: list[Any] = [target]
        self._met[id(target)] = target
        second_best: HolderPath | None = None
        for _ in range(MOST_LEVELS):
            leading: list[Any] = []
            self._ours = {id(self._met), id(level), id(leading)}
            for item in level:
                root = self._root_of(item)
                path = self._path(root, item) if root is not None else None
                if path is not None and self._is_enough(path):
                    return path
                if path is not None and (second_best is None or path.length > second_best.length):
                    second_best = path
                if path is None or id(item) not in self._variables.namespaces:
                    leading.append(item)
            level = self._next_level(leading) if leading else []
            if not level:
                break
        return second_best or self._being_built() or self._unrooted(target)

    def _is_enough(self, path: HolderPath) -> bool:
        """Whether a path leads to something that can grow. A function or generator may itself lie in what does."""
        if path.how in ("cache", "exception"):
            return True
        if path.names and not any(name.file is None or is_user_file(name.file) for name in path.names):
            return False  # in a library's own hands
        return path.turns >= 2 or path.length >= self._least

    def _next_level(self, level: list[Any]) -> list[Any]:
        found = self._among(gc.get_referrers(*level), level)
        if found:
            return found
        # A task that is done hides its result from the collector.
        tasks = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Future)]
        return self._among([each for each in tasks if _which_result(each, level) is not None], level)

    def _among(self, referrers: list[Any], level: list[Any]) -> list[Any]:
        """Those of the referrers that may lead to a name, likeliest first."""
        found: list[Any] = []
        for referrer in referrers:
            if id(referrer) in self._met or id(referrer) in self._ours or isinstance(referrer, _NO_HOLDERS):
                continue
            if isinstance(referrer, FrameType) and (
                id(referrer) in self._variables.running or _is_ours(referrer.f_code)
            ):
                continue
            child = _which_result(referrer, level)
            if child is None:  # never by its truth: that would ask a tensor for its value
                child = _which(referrer, level)
            if child is None:
                continue
            self._met[id(referrer)] = referrer
            self._leads_to[id(referrer)] = id(child)
            found.append(referrer)
        found.sort(key=_rank)
        return found[:MOST_AT_A_LEVEL]

    # --- where a search ends

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
                return Root(name, code.co_filename, code.co_name, 0, "cache")
        if isinstance(item, GENERATORS):
            root = _suspended(item, self._child(item))
            if root is not None:
                return root
        return next(iter(self._variables.locals.get(id(item), ())), None)

    def _child(self, item: Any) -> Any:
        return self._met.get(self._leads_to.get(id(item), 0))

    def _global(self, namespace: dict[str, Any], module: str) -> Root | None:
        name = key_of(namespace, self._child(namespace))
        if name is None:
            return None
        file = self._variables.names.get(id(namespace)) or namespace.get("__file__")
        shown = f"sys.{name}" if module == "sys" else name
        return Root(shown, file if isinstance(file, str) else None, "", 0, "variable")

    # --- from the root to the target, in words

    def _path(self, root: Root, item: Any) -> HolderPath:
        """`item` is what the root names, or the namespace in which the name stands."""
        chain = self._chain(item)
        if (isinstance(item, dict) and id(item) in self._variables.namespaces) or root.how in (
            "closure",
            "generator",
        ):
            chain = chain[1:]
        elif isinstance(item, type):
            chain = chain[1:] if chain[1] is not _class_namespace(item, chain[1]) else chain[2:]
        while chain and (isinstance(chain[0], CellType) or _is_closure(chain[0])):
            chain = chain[1:]
        path = in_words(root, chain, self._made)
        if not chain or path.stored_as != root.name:
            return path
        others = self._variables.others(root, chain[0])
        return path._replace(
            aliases=tuple(
                StoredName(each.name, each.name, False, each.file, each.function) for each in others
            )
        )

    def _being_built(self) -> HolderPath | None:
        """A list that a statement is still filling: `losses = [step(x) for x in data]`. No name leads there before it is done."""
        grown = [
            item for item in self._met.values() if isinstance(item, CONTAINERS) and len(item) >= self._least
        ]
        if not grown or not self._least:
            return None
        for file, line, function in self._variables.lines:
            name = built_at(file, line)
            if name is not None:
                function = name_around(file, line) if function.startswith("<") else function
                root = Root(name or function or "(a list being built)", file, function, line, "variable")
                return in_words(root, self._chain(grown[-1]), self._made)
        return None

    def _unrooted(self, target: Any) -> HolderPath:
        """No name leads there: an instance's attribute, a reference cycle, or nothing in Python."""
        chain: list[Any] = []
        for item in reversed(self._met.values()):
            if (
                isinstance(item, CONTAINERS)
                or item is target
                or (file_of(type(item)) or "").startswith(_OURS)
            ):
                continue  # what Legroom packs into a graph (spilled tensors) belongs to who keeps the graph
            if attributes_of(item) is not None:
                chain = self._chain(item)
                break
        if not chain:
            return NO_ONE
        owner = chain[0]
        path = in_words(Root(type(owner).__name__, file_of(type(owner)), "", 0, "cycle"), chain, self._made)
        closing = _closes_cycle(owner)
        return path if closing is None else path._replace(stored_as=closing, is_attribute=True)

    def _chain(self, item: Any) -> list[Any]:
        chain = []
        while item is not None:
            chain.append(item)
            item = self._child(item)
        return chain


def _closes_cycle(owner: Any) -> str | None:
    """The attribute of an object by which it reaches itself, directly or through one other."""
    attributes = attributes_of(owner) or {}
    for distance in (0, 1, 2):
        for name, value in attributes.items():
            reached = [value]
            for _ in range(distance):
                reached = gc.get_referents(*reached)
            if any(each is owner for each in reached):
                return name
    return None


def _closure(function: FunctionType, child: Any, grandchild: Any) -> Root | None:
    """The variable that a function took along from around it, or the argument whose default is kept with it."""
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


def _is_closure(item: Any) -> bool:
    return isinstance(item, tuple) and any(isinstance(each, CellType) for each in item)


def _class_namespace(kind: type, child: Any) -> Any:
    """The dict behind a class's attributes, if that is what `child` is: it has the same names."""
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


def _which_result(item: Any, level: list[Any]) -> Any:
    """The member of `level` that is a done task's result."""
    result = item._result if issubclass(type(item), asyncio.Future) else None
    return next((each for each in level if each is result), None) if result is not None else None


def _which(referrer: Any, level: list[Any]) -> Any:
    """The member of `level` that `referrer` refers to."""
    if len(level) == 1:
        return level[0]
    wanted = {id(item): item for item in level}
    for referent in gc.get_referents(referrer):
        if id(referent) in wanted:
            return wanted[id(referent)]
    return None


_NO_HOLDERS = (ModuleType, CodeType, Variables, _Search)


def _is_in_python(referrer: Any) -> bool:
    """A node of the autograd graph keeps tensors on behalf of those that the graph leads to: no one in Python. (A list may keep
    such a node, though: the `ctx` of a function of the user's own.)"""
    return not isinstance(referrer, (*_NO_HOLDERS, torch._C._FunctionBase))


def _rank(referrer: Any) -> int:
    """What most likely leads to a name first."""
    if isinstance(referrer, list | dict | deque | set):
        return 0
    return 2 if isinstance(referrer, FrameType | TracebackType | BaseException) else 1


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_OURS)


_OURS = __file__.rpartition("observe")[0]
