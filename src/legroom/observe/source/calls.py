"""Determines from the source code which of the user's functions are called, and which functions are called repeatedly.

A method that empties a buffer has no effect if no code calls it. Functions are compared by name. If it is uncertain
whether a function is called, the function is treated as called. A function is treated as called if its name occurs
anywhere in the code, or if it is a special method. Functions that override a method of a library (a hook of a trainer),
and plain functions that may be called from outside (a test, an entry point), are also treated as called.
"""

import ast
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

from legroom.observe.source.files import COMPREHENSIONS, LOOPS, tree_of
from legroom.observe.source.user_files import is_user_file

CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "Queue", "field"}
_METHODS_OF_CONTAINERS = {name for kind in (list, dict, set, deque) for name in dir(kind)}


class Calls(NamedTuple):
    """The names of the functions that a program calls or passes."""

    called: frozenset[str]
    """Functions whose names occur in code that runs."""
    repeated: frozenset[str]
    """Functions whose names occur in a loop, or in a function that is itself called repeatedly."""
    passed: frozenset[str]
    """Functions whose names occur without a call, such as the function that a thread runs."""
    mentions: Mapping[str, frozenset[str]]
    """Maps each function ("" at module level) to the names that occur in it."""

    def reached_from(self, functions: Iterable[str]) -> set[str]:
        """Return the given functions and all functions that they call, directly or indirectly."""
        return _closure(set(functions), self.mentions)


@lru_cache(maxsize=16)
def calls_in(files: tuple[str, ...]) -> Calls:
    """Find the calls in the user's `files`."""
    collector = _CallCollector()
    for file in files:
        tree = tree_of(file)
        if tree is not None:
            collector.read(file, tree)
    return collector.result()


class _CallCollector:
    def __init__(self) -> None:
        self._modules = {
            file: each
            for each in list(sys.modules.values())
            if isinstance(file := getattr(each, "__file__", None), str)
        }
        self._mentions: dict[str, set[str]] = {}
        """Maps each function ("" at module level) to the names that occur in it."""
        self._in_loops: dict[str, set[str]] = {}
        self._called_nodes: set[int] = set()
        """`id`s of the syntax nodes that name a called function."""
        self._passed: set[str] = set()
        self._called_externally: set[str] = set()
        """Functions that a library or Python calls."""
        self._plain_functions: set[str] = set()
        """Functions that may be called from code that is not loaded."""
        self._containers: set[tuple[bool, str]] = set()
        """Attributes (True) and variables (False) to which a container is assigned somewhere. The `clear` method of
        these objects is not a user's function.
        """

    def read(self, file: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and _is_container(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in (inner for each in targets for inner in ast.walk(each)):
                    if isinstance(target, ast.Name | ast.Attribute):
                        self._containers.add(_kind_and_name(target))
        self._descend(file, tree, None, "", False)

    def _descend(
        self, file: str, node: ast.AST, kind: ast.ClassDef | None, function: str, looped: bool
    ) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                self._called_nodes.add(id(child.func))
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in child.decorator_list:
                    self._descend(file, ast.Expression(decorator), kind, function, looped)
                    self._called_externally.add(child.name)  # the decorator may register it anywhere
                if kind is None and not function:
                    self._plain_functions.add(child.name)
                if (
                    kind is not None
                    and not function
                    and _is_called_externally(self._modules.get(file), kind, child.name)
                ):
                    self._called_externally.add(child.name)
                self._descend(file, child, kind, child.name, False)
                continue
            if isinstance(child, ast.Name | ast.Attribute):
                self._mention(child, function, looped)
            elif isinstance(child, ast.Call) and function in CONSTRUCTORS and _is_method_of_self(child.func):
                # `self.reset()` in the constructor empties nothing.
                for argument in (*child.args, *child.keywords):
                    self._descend(file, ast.Expression(argument), kind, function, looped)  # type: ignore[arg-type]
                continue
            if isinstance(child, ast.ClassDef):
                self._descend(file, child, child, "", False)
            elif isinstance(child, ast.For | ast.AsyncFor):  # the iterable is evaluated once
                self._descend(file, ast.Expression(child.iter), kind, function, looped)
                self._descend(file, ast.Module([*child.body, *child.orelse], []), kind, function, True)
            else:
                loops = looped or isinstance(child, (*LOOPS, *COMPREHENSIONS))
                self._descend(file, child, kind, function, loops)

    def _mention(self, node: ast.Name | ast.Attribute, function: str, looped: bool) -> None:
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _METHODS_OF_CONTAINERS
            and _kind_and_name(node.value) in self._containers
        ):
            return
        name = _last_name(node)
        self._mentions.setdefault(function, set()).add(name)
        if id(node) not in self._called_nodes:
            self._passed.add(name)
        if looped:
            self._in_loops.setdefault(function, set()).add(name)

    def result(self) -> Calls:
        called = _closure(
            {"", *self._called_externally, *self._plain_functions, *CONSTRUCTORS}, self._mentions
        )
        starts = set(self._called_externally)
        for function, names in self._in_loops.items():
            if function in called:
                starts |= names
        repeated = _closure(starts - set(CONSTRUCTORS), self._mentions)
        mentions = {name: frozenset(each) for name, each in self._mentions.items()}
        return Calls(frozenset(called), frozenset(repeated), frozenset(self._passed), mentions)


def _closure(starts: set[str], mentions: Mapping[str, Set[str]]) -> set[str]:
    reached, unread = set(starts), list(starts)
    while unread:
        new = mentions.get(unread.pop(), frozenset()) - reached
        reached |= new
        unread += new
    return reached


def _is_called_externally(module: ModuleType | None, kind: ast.ClassDef, method: str) -> bool:
    """Return whether Python or a library calls a method: a special method, or a method that overrides a library's
    method.
    """
    if method.startswith("__") and method.endswith("__"):
        return method not in CONSTRUCTORS
    found = getattr(module, "__dict__", {}).get(kind.name)
    if not isinstance(found, type):
        return bool(kind.bases)
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
