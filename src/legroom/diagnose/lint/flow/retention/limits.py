"""Determines whether the limit of a container is too high to keep memory small.

A replay buffer of 100,000 entries with a graph fills the GPU long before the buffer is full.
"""

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, names_in, path_of, walk

_MAX_SMALL = 10_000
"""A limit above this number of entries has no effect, because no run reaches it."""


def is_small(program: Program, limit: cst.BaseExpression, function: Function) -> bool:
    if isinstance(limit, cst.Name) and limit.value == "None":
        return False
    sizes = _sizes(program, limit, function)
    return not sizes or min(sizes) <= _MAX_SMALL


def is_unlimited(program: Program, store: StoreFact) -> bool:
    """Return True if the limit is too high, or if the container is a replay buffer."""
    return is_replayed(program, store.target) or _has_high_limit(program, store)


def is_replayed(program: Program, target: str) -> bool:
    """Return True if the program draws random entries of a container, as from a replay buffer.

    A replay buffer keeps its entries for many steps, even if it has a limit.
    """
    return last_name(target) in program.drawn_names


def _has_high_limit(program: Program, store: StoreFact) -> bool:
    found = [
        limit
        for node in program.nodes
        if isinstance(node, cst.Comparison) and _measures(node.left, last_name(store.target))
        for limit in (node.comparisons[0].comparator,)
    ]
    return bool(found) and not any(is_small(program, each, store.function) for each in found)


def _measures(node: cst.BaseExpression, name: str) -> bool:
    return (
        isinstance(node, cst.Call)
        and dotted(node.func) == "len"
        and bool(node.args)
        and last_name(path_of(node.args[0].value) or "") == name
    )


def _sizes(program: Program, limit: cst.BaseExpression, function: Function, depth: int = 0) -> list[int]:
    """Return the numbers that an expression may evaluate to: a literal, a constant or an argument of a constructor."""
    if isinstance(limit, cst.Integer):
        return [int(limit.value.replace("_", ""), 0)]
    if isinstance(limit, cst.Call) and dotted(limit.func) == "int" and limit.args:
        limit = limit.args[0].value
    if isinstance(limit, cst.Float):
        return [int(float(limit.value.replace("_", "")))]
    path = dotted(limit)
    if path is None or depth > 3:
        return []
    if path.startswith("self."):
        owner = program.method(function.class_name, "__init__")
        return _assigned(program, path, owner, depth) if owner is not None else []
    if path in function.parameters:
        return _passed(program, path, function, depth)
    if path in function.local_names:
        return _assigned(program, path, function, depth)
    return _assigned(program, path, program.top, depth)


def _assigned(program: Program, path: str, function: Function, depth: int) -> list[int]:
    found = [
        node.value
        for node in walk(function.body, into_functions=False)
        if isinstance(node, cst.Assign) and any(dotted(each.target) == path for each in node.targets)
    ]
    return _sizes(program, found[0], function, depth + 1) if len(found) == 1 else []


def _passed(program: Program, name: str, function: Function, depth: int) -> list[int]:
    called = function.class_name if function.name == "__init__" else function.name
    calls = [
        node
        for node in program.nodes
        if isinstance(node, cst.Call) and called and last_name(dotted(node.func) or "") == called
    ]
    sizes: list[int] = []
    for call in calls:
        given = [argument.value for parameter, argument in function.receives(call) if parameter == name]
        known = (
            _sizes(program, given[0], program.top, depth + 1) if given else _default(program, name, function)
        )
        if not known:
            return []
        sizes += known
    return sizes or _default(program, name, function)


def _default(program: Program, name: str, function: Function) -> list[int]:
    parameters = function.node.params.params if isinstance(function.node, cst.FunctionDef) else ()
    return [
        size
        for each in parameters
        if each.name.value == name and each.default is not None and not names_in(each.default)
        for size in _sizes(program, each.default, program.top)
    ]
