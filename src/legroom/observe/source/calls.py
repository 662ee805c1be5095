"""Determines from the source code which of the user's functions are called, and which functions are called repeatedly.

For example, a method that empties a buffer prevents a leak only if some code calls it. Functions with the same name are
not distinguished. A function whose name occurs anywhere in the code is treated as called. Special methods and methods
that override a library method, such as a trainer hook, are also treated as called. Functions at module level are also
treated as called, because code outside the loaded files, such as a test, may call them.
"""

import ast
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

from legroom.observe.source.files import COMPREHENSIONS, LOOPS, parse
from legroom.observe.source.user_files import is_user_file

CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "Queue", "field"}
_METHODS_OF_CONTAINERS = {name for kind in (list, dict, set, deque) for name in dir(kind)}


class Calls(NamedTuple):
    called: frozenset[str]
    repeated: frozenset[str]
    """Functions whose names are used in a loop, or in a function that is itself called repeatedly."""
    passed: frozenset[str]
    """Functions whose names are used without a call, such as the target function of a thread."""
    mentions: Mapping[str, frozenset[str]]
    """Maps each function ("" at module level) to the names that occur in it."""

    def reached_from(self, functions: Iterable[str]) -> set[str]:
        return _closure(set(functions), self.mentions)


@lru_cache(maxsize=16)
def calls_in(files: tuple[str, ...]) -> Calls:
    modules = {
        file: module
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
    }
    found = [names_in(file) for file in files]
    attributes = {container for each in found for container in each.containers if container[0]}
    mentions: dict[str, set[str]] = {}
    in_loops: dict[str, set[str]] = {}
    passed: set[str] = set()
    externally: set[str] = set()
    plain: set[str] = set()
    for file, each in zip(files, found, strict=True):
        for function, name, is_passed, in_loop, container in each.mentions:
            if container in attributes or container in each.containers:
                continue
            mentions.setdefault(function, set()).add(name)
            if is_passed:
                passed.add(name)
            if in_loop:
                in_loops.setdefault(function, set()).add(name)
        externally |= each.decorated
        externally |= {
            method[-1] for method in each.methods if _is_called_externally(modules.get(file), *method)
        }
        plain |= each.plain_functions
    called = _closure({"", *externally, *plain, *CONSTRUCTORS}, mentions)
    starts = externally.union(*(names for function, names in in_loops.items() if function in called))
    repeated = _closure(starts - set(CONSTRUCTORS), mentions)
    frozen = {name: frozenset(each) for name, each in mentions.items()}
    return Calls(frozenset(called), frozenset(repeated), frozenset(passed), frozen)


_Mention = tuple[str, str, bool, bool, tuple[bool, str] | None]
"""A use of a name in a function. The first four items are the function ("" at module level), the name, whether the
name is used without a call, and whether the use is in a loop. For a container method such as `clear`, the last item is
the object whose method is used. If this object is a container, the use is not a call to one of the user's functions. A
plain tuple is used because the garbage collector does not track it, so heap scans do not visit it.
"""


@lru_cache(maxsize=4096)
def names_in(file: str) -> "_FileCalls":
    """Return the names that occur in a file. The result is cached, because parsing all files of a large program takes
    seconds.
    """
    tree = parse(file)
    return _FileCalls(tree if tree is not None else ast.Module([], []))


class _FileCalls:
    def __init__(self, tree: ast.Module) -> None:
        self.mentions: set[_Mention] = set()
        self.decorated: set[str] = set()
        """Functions with a decorator. The decorator may register the function, and any code can then call it."""
        self.methods: list[tuple[str, bool, str]] = []
        """For each method, the name of its class, whether the class has base classes, and the name of the method."""
        self.plain_functions: set[str] = set()
        """Functions at module level. Code that is not loaded, such as a test, may call them."""
        self.containers: set[tuple[bool, str]] = set()
        """The attributes (True, name) and variables (False, name) to which the file assigns a container."""
        self._called_nodes: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and _is_container(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in (inner for each in targets for inner in ast.walk(each)):
                    if isinstance(target, ast.Name | ast.Attribute):
                        self.containers.add(_kind_and_name(target))
        self._descend(tree, None, "", False)
        self._called_nodes.clear()

    def _descend(self, node: ast.AST, kind: ast.ClassDef | None, function: str, looped: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                self._called_nodes.add(id(child.func))
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in child.decorator_list:
                    self._descend(ast.Expression(decorator), kind, function, looped)
                    self.decorated.add(child.name)
                if kind is None and not function:
                    self.plain_functions.add(child.name)
                if kind is not None and not function:
                    self.methods.append((kind.name, bool(kind.bases), child.name))
                self._descend(child, kind, child.name, False)
                continue
            if isinstance(child, ast.Name | ast.Attribute):
                self._mention(child, function, looped)
            elif isinstance(child, ast.Call) and function in CONSTRUCTORS and _is_method_of_self(child.func):
                # `self.reset()` in the constructor empties nothing.
                for argument in (*child.args, *child.keywords):
                    self._descend(ast.Expression(argument), kind, function, looped)  # type: ignore[arg-type]
                continue
            if isinstance(child, ast.ClassDef):
                self._descend(child, child, "", False)
            elif isinstance(child, ast.For | ast.AsyncFor):  # the iterable is evaluated once
                self._descend(ast.Expression(child.iter), kind, function, looped)
                self._descend(ast.Module([*child.body, *child.orelse], []), kind, function, True)
            else:
                loops = looped or isinstance(child, (*LOOPS, *COMPREHENSIONS))
                self._descend(child, kind, function, loops)

    def _mention(self, node: ast.Name | ast.Attribute, function: str, looped: bool) -> None:
        container = None
        if isinstance(node, ast.Attribute) and node.attr in _METHODS_OF_CONTAINERS:
            container = _kind_and_name(node.value)
        self.mentions.add((function, _last_name(node), id(node) not in self._called_nodes, looped, container))


def _closure(starts: set[str], mentions: Mapping[str, Set[str]]) -> set[str]:
    reached, unread = set(starts), list(starts)
    while unread:
        new = mentions.get(unread.pop(), frozenset()) - reached
        reached |= new
        unread += new
    return reached


def _is_called_externally(module: ModuleType | None, kind: str, has_bases: bool, method: str) -> bool:
    """Return whether Python or a library calls the method: it is a special method, or it overrides a library's method."""
    if method.startswith("__") and method.endswith("__"):
        return method not in CONSTRUCTORS
    found = getattr(module, "__dict__", {}).get(kind)
    if not isinstance(found, type):
        return has_bases
    others = [base for base in found.__mro__[1:] if not _is_user_class(base)]
    return method == "forward" or any(method in vars(base) for base in others)


def _is_user_class(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return isinstance(file, str) and is_user_file(file)


def _is_method_of_self(called: ast.expr) -> bool:
    return (
        isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self"
    )


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Tuple):
        return any(map(_is_container, value.elts))
    if isinstance(value, ast.Call):
        return _last_name(value.func) in _CONTAINERS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp)


def _kind_and_name(node: ast.AST) -> tuple[bool, str]:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute), _last_name(node)


def _last_name(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
