"""Finds the call that passes a value to the function of the user's code that stores it.

A method such as `meter.update(loss)` stores its argument, so two lines belong to the leak: the call, and the line in
`update`. The call is the line to change if the caller passes a value with a graph, or if the loop registers a callback
again in each iteration. Otherwise, the line that stores the value is the line to change.
"""

import ast
import builtins
import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch

from legroom.observe.source.calls import CONSTRUCTORS, calls_in
from legroom.observe.source.files import (
    FUNCTIONS,
    contains,
    find_function_at,
    function_at,
    is_in_loop,
    own_nodes,
    tree_of,
    user_files,
)
from legroom.observe.source.syntax import called_name, flattened, is_number, last_name, literal_keys, pairs_of
from legroom.observe.source.user_files import is_user_file

_LIBRARY_METHODS = {name for kind in (list, dict, set, deque, str, torch.Tensor) for name in dir(kind)}
"""Methods of containers and tensors. A call of such a method is a call of the user's method only if the object is known
to be of the user's class.
"""
_REGISTERING = re.compile(
    "subscribe|register|attach|connect|listener|callback|hook|observer|handler|^bind$|^on$"
)
_PASSING = {
    "cat", "concat", "stack", "copy", "deepcopy", "replace", "partial", "ref", "heappush", "clone", "detach", "getattr",
}  # fmt: skip
"""Functions whose result retains or contains the argument."""
_SIZES = {"size", "numel", "dim", "get_last_lr"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class CallSite(NamedTuple):
    file: str
    line: int
    function: str
    passes_value: bool
    """Whether the function stores its argument without computing anything from it, as in `self.losses.append(loss)`."""
    passes_variable: bool
    """Whether the call passes only variables and numbers, as in `meter.update(loss)` and `log({"loss": loss})`. In
    `push(net(x))`, the call computes the value.
    """
    registers: bool
    """Whether the name of the function shows that it registers a callback, as in `bus.subscribe(handler)`."""


def find_call_site(file: str, line: int, holder: str = "") -> CallSite | None:
    """Return the only call of the function that contains this line, or None if the source does not show a single call.
    `holder` is the variable that retains the value, as in `logger.data["loss"]`. Its names and keys select one of
    several calls.
    """
    tree = tree_of(file) if is_user_file(file) else None
    if tree is None:
        return None
    function = find_function_at(tree, line)
    if not isinstance(function, _Function) or function.name in ("__new__", "__del__"):
        return None
    enclosing = _enclosing(tree, function)
    owner = enclosing[-1] if enclosing and isinstance(enclosing[-1], ast.ClassDef) else None
    files = tuple(dict.fromkeys([file, *user_files()]))
    called = _names_of(function, owner, enclosing, files)
    found = [
        (each, node)
        for each in files
        for node in _uses(each, called, owner, holder)
        if not (each == file and function.lineno <= node.lineno <= (function.end_lineno or 0))
    ]
    repeated = calls_in(tuple(sorted(files))).repeated
    found = [
        (each, node)
        for each, node in found
        if is_in_loop(each, node.lineno) or _runs_repeatedly(each, node.lineno, repeated)
    ]
    chosen = _most_likely(found, holder)
    places = {(each, node.lineno) for each, node in chosen}
    if len(places) != 1:
        return None
    ((where, at),) = places
    return CallSite(
        where,
        at,
        function_at(where, at),
        _stores_argument(function, line),
        all(_passes_variables(node) for _, node in chosen),
        bool(_REGISTERING.search(function.name)),
    )


def first_line(file: str, line: int) -> int:
    """Return the first line of the statement that contains a line, as in a traceback. The body of a lambda expression
    is a statement of its own.
    """
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        within = getattr(node, "lineno", line) < line <= (getattr(node, "end_lineno", None) or 0)
        if within and isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return):
            inner = [each for each in ast.walk(node) if isinstance(each, ast.Lambda)]
            if not any(each.lineno <= line <= (each.end_lineno or 0) for each in inner):
                return node.lineno
    return line


def _runs_repeatedly(file: str, line: int, repeated: frozenset[str]) -> bool:
    tree = tree_of(file)
    function = find_function_at(tree, line) if tree is not None else None
    if tree is None or not isinstance(function, _Function):
        return False
    if function.name in CONSTRUCTORS:
        classes = [each.name for each in _enclosing(tree, function) if isinstance(each, ast.ClassDef)]
        return bool(repeated.intersection(classes[-1:]))
    return function.name in repeated


def _passes_variables(node: ast.expr | ast.stmt) -> bool:
    inner = [each for value in _values_of(node) for each in ast.walk(value)]
    calls = [each for each in inner if isinstance(each, ast.Call)]
    computes = any(not is_number(each) and called_name(each) not in _SIZES for each in calls)
    return not computes and any(isinstance(each, ast.Name) for each in inner)


def _enclosing(tree: ast.Module, function: _Function) -> list[ast.ClassDef | _Function]:
    """Return the functions and classes that contain the function, outermost first."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node is not function
        and node.lineno < function.lineno
        and (node.end_lineno or 0) >= (function.end_lineno or 0)
    ]
    return sorted(found, key=lambda node: node.lineno)


class _Called(NamedTuple):
    methods: frozenset[str] = frozenset()
    """Names that are called on an object, as in `meter.update(...)`."""
    functions: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    """Properties, which are assigned."""
    objects: frozenset[str] = frozenset()
    """The names of the objects of the class, as far as the source shows them."""


def _names_of(
    function: _Function,
    owner: ast.ClassDef | None,
    enclosing: list[ast.ClassDef | _Function],
    files: tuple[str, ...],
) -> _Called:
    name = function.name
    if owner is not None:
        objects = frozenset(_assigned_from(owner.name, files))
        if name in CONSTRUCTORS:
            return _Called(functions=frozenset({owner.name}))
        if name == "__call__":
            return _Called(functions=objects, methods=objects)
        if any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in function.decorator_list):
            return _Called(attributes=frozenset({name}))
        return _Called(methods=frozenset({name}), objects=objects)
    if enclosing and isinstance(enclosing[-1], ast.FunctionDef | ast.AsyncFunctionDef):
        factory = enclosing[-1]
        returned = any(
            isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id == name
            for node in own_nodes(factory)
        )
        if returned:
            return _Called(functions=frozenset(_assigned_from(factory.name, files)))
    return _Called(functions=frozenset({name}))


def _assigned_from(called: str, files: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of variables and attributes to which the result of a function or class is assigned."""
    for file in files:
        tree = tree_of(file) if contains(file, called) else None
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                if called not in {called_name(each) for each in ast.walk(node.value)}:
                    continue
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from filter(None, (last_name(each) for target in targets for each in flattened(target)))


def _uses(
    file: str, called: _Called, owner: ast.ClassDef | None, holder: str
) -> Iterator[ast.expr | ast.stmt]:
    names = called.methods | called.functions | called.attributes
    tree = tree_of(file) if any(contains(file, name) for name in names) else None
    if tree is None:
        return
    known = called.objects | set(re.findall(r"\w+", holder))
    dispatched = _loop_variables(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Attribute) and each.attr in called.attributes for each in node.targets
        ):
            yield node
        if not isinstance(node, ast.Call):
            continue
        name, receiver = called_name(node), getattr(node.func, "value", None)
        if receiver is None:
            if name in called.functions:
                yield node
            continue
        if name not in called.methods | called.functions:
            continue
        object_name = last_name(receiver)
        if object_name in dispatched:
            continue  # `for callback in callbacks: callback.on_step(loss)` calls a method of many classes
        is_self = isinstance(receiver, ast.Name) and receiver.id in ("self", "cls")
        is_class = owner is not None and object_name == owner.name
        if name not in _LIBRARY_METHODS or is_self or is_class or object_name in known:
            yield node


def _loop_variables(tree: ast.Module) -> set[str]:
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
        for each in flattened(node.target)
        if (name := last_name(each))
    }


def _most_likely(
    found: list[tuple[str, ast.expr | ast.stmt]], holder: str
) -> list[tuple[str, ast.expr | ast.stmt]]:
    """Return the calls that use a key of the holder, and that pass more than numbers and strings."""
    keys = set(re.findall(r'\["([^"]+)"\]', holder))
    with_key = [(file, node) for file, node in found if keys & _words_in(node)]
    found = with_key or found
    return [(file, node) for file, node in found if not all(map(is_number, _values_of(node)))]


def _values_of(node: ast.expr | ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        return [*node.args, *(each.value for each in node.keywords)]
    return [node.value] if isinstance(node, ast.Assign) else []


def _words_in(node: ast.expr | ast.stmt) -> set[str]:
    words = {each.arg for each in ast.walk(node) if isinstance(each, ast.keyword) and each.arg}
    words |= {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    return words | set(literal_keys(node))


def _stores_argument(function: _Function, line: int) -> bool:
    """Return whether the statement on this line stores a parameter of the function, or a value that contains a
    parameter. A value that a model or another function computes from a parameter does not count.
    """
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    names = {each.arg for each in parameters if each is not None} - {"self", "cls"}
    for node in sorted(own_nodes(function), key=lambda each: getattr(each, "lineno", 0)):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.For | ast.AsyncFor):
            pairs = [(node.target, node.iter)]
        elif isinstance(node, ast.Assign):
            pairs = [pair for target in node.targets for pair in pairs_of(target, node.value)]
        for target, value in pairs:
            if _passes(value, names):
                names |= {each.id for each in flattened(target) if isinstance(each, ast.Name)}
    for node in own_nodes(function):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            return _passes(node.value, names)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return any(_passes(each, names) for each in _values_of(node.value))
    return False


def _passes(value: ast.expr, names: set[str]) -> bool:
    """Return whether the value contains one of the variables, not only the result of a function of the variable."""
    if isinstance(value, ast.Name):
        return value.id in names
    if isinstance(value, FUNCTIONS):
        return False
    if isinstance(value, ast.Call):
        called = called_name(value)
        receiver = getattr(value.func, "value", None)
        if receiver is not None and _passes(receiver, names):
            return True  # `loss.clone()`, `metrics.items()`
        contains = called in _PASSING or called in dir(builtins) or called.lstrip("_")[:1].isupper()
        if is_number(value) or not contains:
            return False
        return any(_passes(each, names) for each in _values_of(value))
    return any(
        _passes(each, names) for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)
    ) or (
        isinstance(value, ast.ListComp | ast.DictComp | ast.SetComp | ast.GeneratorExp)
        and any(_passes(each.iter, names) for each in value.generators)
    )
