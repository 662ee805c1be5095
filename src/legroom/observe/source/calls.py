"""Which of the user's functions are ever called, and which again and again: read off the source, by name.

A method that would empty a buffer is no comfort if no one calls it. Names are compared, not objects, so what cannot be told counts as
called: a name that is mentioned anywhere, a method that overrides a library's (a hook of a trainer), a special method, a plain function
(a test, an entry point, may be called from outside).
"""

import ast
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from typing import NamedTuple

from legroom.observe.dispatch.attribution import is_user_file
from legroom.observe.source.files import COMPREHENSIONS, LOOPS, tree_of

CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "Queue", "field"}
_METHODS_OF_CONTAINERS = {name for kind in (list, dict, set, deque) for name in dir(kind)}


class Calls(NamedTuple):
    """Names of functions."""

    called: frozenset[str]
    """Mentioned in code that runs."""
    repeated: frozenset[str]
    """... within a loop, or by a function that is itself called again and again."""
    mentions: Mapping[str, frozenset[str]]
    """By function ("" outside all), the names that it mentions."""

    def reached_from(self, functions: Iterable[str]) -> set[str]:
        """These functions and all that they call, directly or by way of others."""
        return _closure(set(functions), self.mentions)


@lru_cache(maxsize=16)
def calls_in(files: tuple[str, ...]) -> Calls:
    """`files`: the user's."""
    survey = _Survey()
    for file in files:
        tree = tree_of(file)
        if tree is not None:
            survey.read(file, tree)
    return survey.outcome()


class _Survey:
    def __init__(self) -> None:
        self._mentions: dict[str, set[str]] = {}
        """By function ("" outside all), the names that it mentions."""
        self._in_loops: dict[str, set[str]] = {}
        self._by_others: set[str] = set()
        """Functions that a library or Python itself calls."""
        self._entries: set[str] = set()
        """Plain functions: what calls them may stand elsewhere."""
        self._containers: set[tuple[bool, str]] = set()
        """Attributes (True) and variables that are given an empty container somewhere: their `clear` is not a function of the user's."""

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
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in child.decorator_list:
                    self._descend(file, ast.Expression(decorator), kind, function, looped)
                    self._by_others.add(child.name)  # what a decorator makes of it is unknown
                if kind is None and not function:
                    self._entries.add(child.name)
                if kind is not None and not function and _is_called_by_others(file, kind, child.name):
                    self._by_others.add(child.name)
                self._descend(file, child, kind, child.name, False)
                continue
            if isinstance(child, ast.Name | ast.Attribute):
                self._mention(child, function, looped)
            elif isinstance(child, ast.Call) and function in CONSTRUCTORS and _is_of_self(child.func):
                # `self.reset()` while it is made empties nothing.
                for argument in (*child.args, *child.keywords):
                    self._descend(file, ast.Expression(argument), kind, function, looped)  # type: ignore[arg-type]
                continue
            if isinstance(child, ast.ClassDef):
                self._descend(file, child, child, "", False)
            elif isinstance(child, ast.For | ast.AsyncFor):  # what it runs over is asked for once
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
        if looped:
            self._in_loops.setdefault(function, set()).add(name)

    def outcome(self) -> Calls:
        called = _closure({"", *self._by_others, *self._entries, *CONSTRUCTORS}, self._mentions)
        begun = set(self._by_others)
        for function, names in self._in_loops.items():
            if function in called:
                begun |= names
        repeated = _closure(begun - set(CONSTRUCTORS), self._mentions)
        mentions = {name: frozenset(each) for name, each in self._mentions.items()}
        return Calls(frozenset(called), frozenset(repeated), mentions)


def _closure(begun: set[str], mentions: Mapping[str, Set[str]]) -> set[str]:
    reached, unread = set(begun), list(begun)
    while unread:
        new = mentions.get(unread.pop(), frozenset()) - reached
        reached |= new
        unread += new
    return reached


def _is_called_by_others(file: str, kind: ast.ClassDef, method: str) -> bool:
    """Whether Python or a library calls a method by itself: a special one, or one that stands for a library's."""
    if method.startswith("__") and method.endswith("__"):
        return method not in CONSTRUCTORS
    module = next(
        (each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == file), None
    )
    found = getattr(module, "__dict__", {}).get(kind.name)
    if not isinstance(found, type):
        return bool(kind.bases)
    others = [base for base in found.__mro__[1:] if not _is_users(base)]
    return method == "forward" or any(method in vars(base) for base in others)


def _is_users(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return isinstance(file, str) and is_user_file(file)


def _is_of_self(called: ast.expr) -> bool:
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
