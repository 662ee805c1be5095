"""Finds the calls that store an object by passing it to other code.

A library stores a hook, a callback or the function of a thread in its own container. The user's code does not mention
this container. A constructor stores its arguments in attributes. In both cases, the call that passes the object is the
line to report.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from legroom.observe.source.calls import CONSTRUCTORS, calls_in
from legroom.observe.source.files import (
    contains,
    function_at,
    functions_in,
    is_in_loop,
    own_nodes,
    tree_of,
    user_files,
)
from legroom.observe.source.statements import StoringStatement
from legroom.observe.source.storing_lines import NO_USAGE, NameUsage
from legroom.observe.source.syntax import called_name, pairs_of


class Callback(NamedTuple):
    """A function of the user's code that a library or a thread retains."""

    name: str
    file: str
    line: int
    """The first line of the function, including decorators."""
    classes: frozenset[str] = frozenset()
    """For the method `run` of a thread class, the class and its base classes."""


def find_registrations(callback: Callback, files: tuple[str, ...]) -> tuple[StoringStatement, ...]:
    """Return the calls that pass the function to another function, as in `layer.register_forward_hook(save)` and
    `Thread(target=self.run)`. For a thread class, the calls that create a thread are returned.
    """
    found = []
    for file in dict.fromkeys((callback.file, *files)):
        is_own = file == callback.file
        names = {callback.name, *callback.classes}
        tree = tree_of(file) if is_own or any(contains(file, name) for name in names) else None
        for call in _calls(tree):
            values = [*call.args, *(each.value for each in call.keywords)]
            passes = any(_refers_to(value, callback, is_own) for value in values)
            if (passes and called_name(call) not in _WRAPPERS) or called_name(call) in callback.classes:
                found.append(_statement(file, call))
    return tuple(found)


def find_partial_detach(statement: StoringStatement) -> StoringStatement | None:
    """Return the `return` statement of the function that detaches the state carried between iterations, as in `state =
    repackage(state)`. If the state still has a graph after the call, the function does not detach all parts of the
    state. The result is None if the statement calls no function that detaches values.
    """
    tree = tree_of(statement.file)
    for assignment in ast.walk(tree) if tree is not None else ():
        if not isinstance(assignment, ast.Assign) or assignment.lineno != statement.line:
            continue
        function = functions_in(statement.file).get(called_name(assignment.value))
        if function is None or not any(called_name(each) in _DETACHING for each in ast.walk(function)):
            continue
        returns = [each for each in own_nodes(function) if isinstance(each, ast.Return)]
        line = max((each.lineno for each in returns), default=function.lineno)
        return statement._replace(line=line, function=function.name)
    return None


_DETACHING = {"detach", "detach_"}


def find_calls(name: str, files: tuple[str, ...]) -> tuple[StoringStatement, ...]:
    """Return the calls to the function with this full name, as in `atexit.register(...)`."""
    last = name.rpartition(".")[2]
    return tuple(
        _statement(file, call)
        for file in files
        for call in _calls(tree_of(file) if contains(file, last) else None)
        if ast.unparse(call.func) == name
    )


def find_key_statements(key: str, files: tuple[str, ...]) -> tuple[StoringStatement, ...]:
    """Return the expressions that store another object under a key, as in `{"previous": info}` and `info["previous"] =
    other`.
    """
    found = []
    for file in files:
        tree = tree_of(file) if contains(file, key) else None
        for node in ast.walk(tree) if tree is not None else ():
            pairs: list[tuple[ast.AST | None, ast.expr]] = []
            if isinstance(node, ast.Dict):
                pairs = list(zip(node.keys, node.values, strict=True))
            elif isinstance(node, ast.Assign):
                pairs = [(each.slice, node.value) for each in node.targets if isinstance(each, ast.Subscript)]
            for name, value in pairs:
                is_key = isinstance(name, ast.Constant) and name.value == key
                if is_key and not isinstance(value, ast.Constant):
                    found.append(_statement(file, value))
    return tuple(found)


_WRAPPERS = {"partial", "wraps", "WeakMethod", "ref"}
"""Functions that only wrap another function. The enclosing call registers the wrapped function."""


def _calls(tree: ast.AST | None) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree is not None else iter(())


def _refers_to(value: ast.expr, callback: Callback, is_own: bool) -> bool:
    """Return whether an argument refers to the function of `callback`: its name, a method of this name, or a lambda
    expression on its line. The function may be wrapped, as in `partial(save, name)`, or returned by a factory, as in
    `make_hook(name)`.
    """
    if isinstance(value, ast.Lambda):
        return is_own and callback.name == "<lambda>" and value.lineno == callback.line
    if isinstance(value, ast.Call):
        inner = [*value.args, *(each.value for each in value.keywords)]
        if called_name(value) in _WRAPPERS and any(_refers_to(each, callback, is_own) for each in inner):
            return True
        return is_own and _contains_function(value, callback)
    name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
    return name == callback.name


def _contains_function(factory: ast.Call, callback: Callback) -> bool:
    """Return whether the function that `factory` calls is in the file of the callback and defines the callback."""
    tree = tree_of(callback.file)
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == called_name(factory)
        and node.lineno < callback.line <= (node.end_lineno or 0)
        for node in (ast.walk(tree) if tree is not None else ())
    )


def _statement(file: str, call: ast.expr) -> StoringStatement:
    return StoringStatement(
        file, call.lineno, function_at(file, call.lineno), uses_itself=False, adds=False, concatenates=False,
        stores_number=False, in_loop=is_in_loop(file, call.lineno),
    )  # fmt: skip


def find_creating_calls(classes: frozenset[str], attribute: str, file: str | None) -> NameUsage:
    """Find the calls that create an object of a class and pass the value of `attribute`, as in `state = State(step,
    previous=state)`. For a dataclass, which has no `__init__` in the source code, the argument has the name of the
    attribute. If no call passes the value, all calls that create an object are returned. Calls that run only once are
    returned only if there are no others.
    """
    own = tree_of(file) if file is not None else None
    parameter, position = _parameter(own, classes, attribute)
    calls = [
        (each, node)
        for each in dict.fromkeys([*([file] if file is not None else []), *user_files()])
        for node in _calls(tree_of(each))
        if called_name(node) in (*classes, "replace", "_replace")
    ]
    passing = [(each, node) for each, node in calls if _passes(node, parameter, position)]
    created = passing or [(each, node) for each, node in calls if called_name(node) in classes]
    created = [(each, node) for each, node in created if each == file] or created
    counts = calls_in(tuple(dict.fromkeys(each for each, _ in created)))
    several = counts.repeated | counts.passed
    created = [
        (each, node)
        for each, node in created
        if is_in_loop(each, node.lineno) or function_at(each, node.lineno) in several
    ] or created
    return NO_USAGE._replace(
        statements=tuple(
            _statement(each, node)._replace(uses_itself=True, in_loop=True) for each, node in created
        )
    )


def _passes(call: ast.Call, parameter: str, position: int | None) -> bool:
    values = [each.value for each in call.keywords if each.arg == parameter]
    if position is not None and position < len(call.args):
        values.append(call.args[position])
    return any(not isinstance(value, ast.Constant) for value in values)


def _parameter(tree: ast.AST | None, classes: frozenset[str], attribute: str) -> tuple[str, int | None]:
    """Return the name and position of the constructor parameter that is assigned to the attribute. The parameters of a
    dataclass or a `NamedTuple` are its fields. Without such a parameter, the name of the attribute is returned.
    """
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.ClassDef) or node.name not in classes:
            continue
        for function in node.body:
            if not isinstance(function, ast.FunctionDef) or function.name not in CONSTRUCTORS:
                continue
            names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][1:]
            keywords = [each.arg for each in function.args.kwonlyargs]
            for target, value in _assignments(function):
                is_attribute = isinstance(target, ast.Attribute) and target.attr == attribute
                if is_attribute and isinstance(value, ast.Name) and value.id in (*names, *keywords):
                    return value.id, names.index(value.id) if value.id in names else None
        fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
        names = [each.id for each in fields if isinstance(each, ast.Name)]
        if attribute in names and not any(isinstance(each, ast.FunctionDef) and each.name in CONSTRUCTORS for each in node.body):  # fmt: skip
            return attribute, names.index(attribute)
    return attribute, None


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from pairs_of(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
