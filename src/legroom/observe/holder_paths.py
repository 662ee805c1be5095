"""By which path Python keeps an object: from the object backwards, until a name in the user's program is met.

The garbage collector knows who refers to whom. Asking it costs one pass over all its objects, in C, for each step
backwards; a path has few. It does not see the variables of functions that are still running, so those are read from
their frames. Nothing is called on the user's objects: no `repr`, no property, no `__eq__`; and nothing of what is met
is kept when the search is over.
"""

import gc
import inspect
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any, NamedTuple

import torch

from legroom.observe.attribution import is_user_file

_COPIES_LOCALS = sys.version_info < (3, 13)
_CONTAINERS = (list, dict, tuple, set, frozenset, deque)
_GENERATORS = (GeneratorType, CoroutineType, AsyncGeneratorType)
MOST_LEVELS = 10
MOST_AT_A_LEVEL = 12


class StoredName(NamedTuple):
    """A variable or attribute on the way to an object."""

    name: str
    """As a person would write it, from the root on: `node.parent`."""
    stored_as: str
    is_attribute: bool
    file: str | None
    function: str


class HolderPath(NamedTuple):
    """How a name in the program leads to an object."""

    name: str
    """As a person would write it: `losses`, `trainer.history`, `Probe.seen`; "" where no name leads there."""
    stored_as: str
    """The last name on the way: the variable or attribute into which things are put."""
    is_attribute: bool
    """Whether `stored_as` is an attribute."""
    how: str
    """`container`, `variable`, `cache`, `exception`, `closure`, `generator`, `cycle` or `unknown`."""
    described: str
    """What the object of that name is: `list, 412 items`."""
    length: int
    """How many items; 0 for what is no container."""
    bounded: bool
    """Whether the container limits itself (`deque(maxlen=...)`, `lru_cache(maxsize=...)`)."""
    file: str | None
    """Where the name lives."""
    function: str
    """The function whose local it is; "" for globals and attributes."""
    line: int
    """Where that function is now, or where what keeps it is defined; 0 where unknown."""
    names: tuple["StoredName", ...]
    """Every name on the way, the nearest to the object first."""
    contents: frozenset[int]
    """`id` of everything in the container, one level down and within tuples: to see what else it explains."""
    container: int = 0
    """`id` of the container itself; 0 where there is none."""


class _Root(NamedTuple):
    name: str
    file: str | None
    function: str
    line: int
    how: str
    is_attribute: bool = False


class Variables:
    """Where the names of running functions and of modules lead, at one moment. Holds `id`s only."""

    def __init__(self, frame: FrameType | None) -> None:
        """`frame`: where the caller's thread is; the other threads are looked at as well."""
        self.running: set[int] = set()
        self.locals: dict[int, _Root] = {}
        self.namespaces: dict[int, str] = {}
        self.names: dict[int, str | None] = {}
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType):
                self.namespaces[id(module.__dict__)] = name
        self._read_stack(frame)
        others = sys._current_frames()
        del others[
            threading.get_ident()
        ]  # this very frame: to hold it in its own variable would pin all of it
        for innermost in others.values():
            self._read_stack(innermost)

    def _read_stack(self, frame: FrameType | None) -> None:
        while frame is not None:
            self.running.add(id(frame))
            code = frame.f_code
            if is_user_file(code.co_filename):
                if code.co_flags & inspect.CO_OPTIMIZED:
                    for name, value in locals_of(frame):
                        self.locals.setdefault(
                            id(value),
                            _Root(name, code.co_filename, code.co_name, frame.f_lineno or 0, "variable"),
                        )
                        del value
                elif id(frame.f_globals) not in self.namespaces:
                    self.namespaces[id(frame.f_globals)] = "__main__"
                self.names.setdefault(id(frame.f_globals), code.co_filename)
            frame = frame.f_back


def locals_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """A function's variables. CPython up to 3.12 keeps the copy that this makes in the frame: it is emptied again."""
    variables = frame.f_locals
    try:
        for name in list(variables):
            if isinstance(name, str):
                yield name, variables[name]
    finally:
        if _COPIES_LOCALS and variables is not frame.f_globals:
            variables.clear()


def find_path(target: Any, variables: Variables, *, least: int = 0) -> HolderPath:
    """Who keeps `target` alive. `least`: a container of fewer items is named only if nothing else leads there.

    The caller may hold the target in local variables of plain functions; a list or a generator of its own would be found.
    """
    search = _Search(variables, least)
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
    def __init__(self, variables: Variables, least: int) -> None:
        self._variables = variables
        self._least = least
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
                if root is None:
                    leading.append(item)
                    continue
                path = self._path(root, item)
                if path.length >= self._least or path.how not in ("variable", "container"):
                    return path
                if second_best is None or path.length > second_best.length:
                    second_best = path
            level = self._next_level(leading) if leading else []
            if not level:
                break
        return second_best or self._unrooted(target)

    def _next_level(self, level: list[Any]) -> list[Any]:
        referrers = gc.get_referrers(*level)
        found: list[Any] = []
        for referrer in referrers:
            if id(referrer) in self._met or id(referrer) in self._ours or isinstance(referrer, _NO_HOLDERS):
                continue
            if isinstance(referrer, FrameType) and (
                id(referrer) in self._variables.running or _is_ours(referrer.f_code)
            ):
                continue
            child = _which(referrer, level)
            if child is None:
                continue
            self._met[id(referrer)] = referrer
            self._leads_to[id(referrer)] = id(child)
            found.append(referrer)
        found.sort(key=_rank)
        return found[:MOST_AT_A_LEVEL]

    # --- where a search ends

    def _root_of(self, item: Any) -> _Root | None:
        namespace = self._variables.namespaces.get(id(item)) if isinstance(item, dict) else None
        if namespace is not None:
            return self._global(item, namespace)
        if isinstance(item, FunctionType):
            child = self._child(item)
            root = _closure(item, self._child(child) if child is item.__closure__ else child)
            if root is not None:
                return root
        if isinstance(item, type):
            child = self._child(item)
            return _class_attribute(item, child, self._child(child) if isinstance(child, dict) else None)
        if isinstance(item, _lru_cache_wrapper):
            code = getattr(item.__wrapped__, "__code__", None)
            name = getattr(item, "__name__", "")
            if isinstance(code, CodeType):
                return _Root(name, code.co_filename, code.co_name, code.co_firstlineno, "cache")
        if isinstance(item, _GENERATORS):
            root = _suspended(item, self._child(item))
            if root is not None:
                return root
        return self._variables.locals.get(id(item))

    def _child(self, item: Any) -> Any:
        return self._met.get(self._leads_to.get(id(item), 0))

    def _global(self, namespace: dict[str, Any], module: str) -> _Root | None:
        name = _key_of(namespace, self._child(namespace))
        if name is None:
            return None
        file = self._variables.names.get(id(namespace)) or namespace.get("__file__")
        shown = f"sys.{name}" if module == "sys" else name
        return _Root(shown, file if isinstance(file, str) else None, "", 0, "variable")

    # --- from the root to the target, in words

    def _path(self, root: _Root, item: Any) -> HolderPath:
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
        return _in_words(root, chain)

    def _unrooted(self, target: Any) -> HolderPath:
        """No name leads there: an instance's attribute, a reference cycle, or nothing in Python."""
        chain: list[Any] = []
        for item in reversed(self._met.values()):
            if not isinstance(item, _CONTAINERS) and attributes_of(item) is not None and item is not target:
                chain = self._chain(item)
                break
        if not chain:
            return NO_ONE
        owner = chain[0]
        path = _in_words(_Root(type(owner).__name__, _file_of(type(owner)), "", 0, "cycle"), chain)
        closing = _closes_cycle(owner)
        return path if closing is None else path._replace(stored_as=closing, is_attribute=True)

    def _chain(self, item: Any) -> list[Any]:
        chain = []
        while item is not None:
            chain.append(item)
            item = self._child(item)
        return chain


NO_ONE = HolderPath("", "", False, "unknown", "", 0, False, None, "", 0, (), frozenset())
"""No path was found."""


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


def _in_words(root: _Root, chain: list[Any]) -> HolderPath:
    """The name of what grows: the largest container on the way, or else the last name before the target."""
    name, stored_as, is_attribute = root.name, root.name.rpartition(".")[2], root.is_attribute
    file, function, line, how = root.file, root.function, root.line, root.how
    best = StoredName(name, stored_as, is_attribute, file, function)
    names = [best]
    best_container: Any = None
    for position, item in enumerate(chain):
        if isinstance(item, BaseException | TracebackType | FrameType) and how in ("variable", "closure"):
            how = "exception"
        if isinstance(item, _lru_cache_wrapper):
            code = getattr(item.__wrapped__, "__code__", None)
            if isinstance(code, CodeType):
                how, file, line = "cache", code.co_filename, code.co_firstlineno
                best = StoredName(code.co_name, code.co_name, False, file, code.co_name)
                best_container = None
                break
        if isinstance(item, _GENERATORS) and how == "variable":
            how = "generator"
        if how == "exception" and isinstance(item, FrameType):
            break
        owner = chain[position - 1] if position else None
        contains = isinstance(item, _CONTAINERS) and not _is_namespace_of(item, owner)
        if contains and (best_container is None or len(item) > len(best_container)):
            best_container, best = item, StoredName(name, stored_as, is_attribute, file, function)
        following = chain[position + 1] if position + 1 < len(chain) else None
        if following is None:
            break
        step = _attribute(owner, following) if _is_namespace_of(item, owner) else _step_into(item, following)
        if step is not None:
            text, key, attribute, owner_file = step
            name += text
            if key:
                stored_as, is_attribute = key, attribute
            if owner_file is not None:
                file, function, line = owner_file, "", 0
            names.append(StoredName(name, stored_as, is_attribute, file, function))
            if best_container is None:
                best = names[-1]
    grown = best_container
    if grown is not None and how in ("variable", "closure"):
        how = "container" if how == "variable" else "closure"
    described, length, bounded = _described(grown) if grown is not None else (_kind(chain), 0, False)
    contents = frozenset(_contents(grown)) if grown is not None else frozenset()
    bounded = bounded or (how == "cache" and _is_bounded_cache(chain))
    return HolderPath(
        best.name, best.stored_as, best.is_attribute, how, described, length, bounded, best.file, best.function,
        line, tuple(reversed(names)), contents, id(grown) if grown is not None else 0,
    )  # fmt: skip


def _is_bounded_cache(chain: list[Any]) -> bool:
    cache = next((item for item in chain if isinstance(item, _lru_cache_wrapper)), None)
    return cache is not None and (cache.cache_info().maxsize or _LARGE) < _LARGE


_LARGE = 1025
"""A cache of more entries than that does not limit anything."""


def _kind(chain: list[Any]) -> str:
    last = chain[-1] if chain else None
    return "tensor" if isinstance(last, torch.Tensor) else type(last).__name__


def _described(container: Any) -> tuple[str, int, bool]:
    length = len(container)
    bounded = isinstance(container, deque) and container.maxlen is not None
    items = f"{length:,} item{'s' if length != 1 else ''}"
    return f"{type(container).__name__}, {items}", length, bounded


def _contents(container: Any, depth: int = 2) -> Iterator[int]:
    values = container.values() if isinstance(container, dict) else container
    for value in list(values):
        yield id(value)
        if depth and isinstance(value, tuple | list | dict) and len(value) < 1000:
            yield from _contents(value, depth - 1)
        elif depth and not isinstance(value, torch.Tensor):
            attributes = attributes_of(value)
            if attributes is not None and len(attributes) < 100:
                yield from (id(each) for each in attributes.values())


# --- single steps ----------------------------------------------------------------------------------------------------


def _step_into(item: Any, following: Any) -> tuple[str, str, bool, str | None] | None:
    """How `item` leads to `following`: (text to add to the name, the key or attribute, is it one, file of its class)."""
    if isinstance(item, dict):
        key = _key_of(item, following)
        if key is None:
            return None
        return f'["{key[:40]}"]', "", False, None
    if isinstance(item, _CONTAINERS):
        return None
    if isinstance(
        item, MethodType | CellType | FunctionType | TracebackType | FrameType | BaseException | type
    ):
        return None
    return _attribute(item, following)


def _attribute(owner: Any, following: Any) -> tuple[str, str, bool, str | None] | None:
    attributes = attributes_of(owner)
    key = _key_of(attributes, following) if attributes is not None else None
    return (f".{key}", key, True, _file_of(type(owner))) if key is not None else None


def attributes_of(item: Any) -> dict[str, Any] | None:
    """An instance's attributes, without running any code of its class."""
    if isinstance(item, (*_CONTAINERS, type, ModuleType, torch.Tensor, FunctionType)):
        return None
    try:
        attributes = object.__getattribute__(item, "__dict__")
        if isinstance(attributes, dict) and attributes:
            return attributes
    except (AttributeError, TypeError):
        pass
    slots: dict[str, Any] = {}
    for kind in type(item).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            descriptor = kind.__dict__.get(name)
            if inspect.ismemberdescriptor(descriptor):
                try:
                    slots[name] = descriptor.__get__(item)
                except AttributeError:
                    continue
    return slots or None


def _key_of(mapping: dict[Any, Any], value: Any) -> str | None:
    for key, each in list(mapping.items()):
        if each is value and isinstance(key, str):
            return key
    return None


def _is_namespace_of(item: Any, owner: Any) -> bool:
    """Whether a dict is an instance's attributes rather than a container of the user's."""
    return isinstance(item, dict) and owner is not None and attributes_of(owner) is item


def _closure(function: FunctionType, cell: Any) -> _Root | None:
    for name, each in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        if each is cell:
            code = function.__code__
            return _Root(name, code.co_filename, code.co_name, code.co_firstlineno, "closure")
    if any(cell is each for each in (function.__defaults__, function.__kwdefaults__)):
        code = function.__code__
        return _Root(
            f"default argument of {code.co_name}",
            code.co_filename,
            code.co_name,
            code.co_firstlineno,
            "closure",
        )
    return None


def _is_closure(item: Any) -> bool:
    return isinstance(item, tuple) and any(isinstance(each, CellType) for each in item)


def _class_namespace(kind: type, child: Any) -> Any:
    """The dict behind a class's attributes, if that is what `child` is: it has the same names."""
    return (
        child if isinstance(child, dict) and "__module__" in child and "__module__" in kind.__dict__ else None
    )


def _class_attribute(kind: type, child: Any, grandchild: Any) -> _Root | None:
    for name, value in kind.__dict__.items():
        if value is child or (grandchild is not None and value is grandchild):
            return _Root(f"{kind.__name__}.{name}", _file_of(kind), "", 0, "variable", is_attribute=True)
    return None


def _suspended(generator: Any, child: Any) -> _Root | None:
    frame = next(
        (f for f in (getattr(generator, name, None) for name in ("gi_frame", "cr_frame", "ag_frame")) if f),
        None,
    )
    if frame is None or not is_user_file(frame.f_code.co_filename):
        return None
    name = next((name for name, value in locals_of(frame) if value is child), "")
    code = frame.f_code
    return _Root(name or code.co_name, code.co_filename, code.co_name, frame.f_lineno or 0, "generator")


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


def _file_of(kind: type) -> str | None:
    module = sys.modules.get(getattr(kind, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None
