"""Determines whether the limit of a container is too high to keep memory small.

A replay buffer of 100,000 entries with a graph fills the GPU long before the buffer is full.
"""

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    keyword,
    last_name,
    method_name,
    names_in,
    path_of,
    string_value,
    walk,
)

_MAX_SMALL = 10_000
"""The highest number of entries that counts as a limit. A higher limit has no effect, because no run reaches it."""


def is_small(program: Program, limit: cst.BaseExpression, function: Function) -> bool:
    if isinstance(limit, cst.Name) and limit.value == "None":
        return False
    found = possible_numbers(program, limit, function)
    return not found or min(found) <= _MAX_SMALL


def is_unlimited(program: Program, store: StoreFact) -> bool:
    """Return True if the limit is too high, or if the container is a replay buffer."""
    return is_replayed(program, store.target) or _has_high_limit(program, store)


def is_replayed(program: Program, target: str) -> bool:
    """Return True if the program draws random entries from a container such as a replay buffer.

    A replay buffer keeps its entries for many steps, even if it has a limit.
    """
    name = last_name(target)
    return name in program.drawn_names or name in program.pool_names


def _has_high_limit(program: Program, store: StoreFact) -> bool:
    found = [
        limit
        for node in program.nodes_of(cst.Comparison)
        if _measures(node.left, last_name(store.target))
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


def possible_numbers(program: Program, node: cst.BaseExpression, function: Function) -> list[int]:
    """Return the numbers that an expression may evaluate to."""
    return [
        int(float(text)) if isinstance(each, cst.Float) else int(text, 0)
        for each in literals(program, node, function)
        for text in (each.value.replace("_", ""),)
    ]


def literals(
    program: Program, node: cst.BaseExpression, function: Function, depth: int = 0
) -> list[cst.Integer | cst.Float]:
    """Return the numbers that an expression may evaluate to.

    The expression is a literal, a constant, an argument of a constructor, or the default of an option or of a field.
    If one of these numbers is unknown, the result is empty.
    """
    if isinstance(node, (cst.Integer, cst.Float)):
        return [node]
    if isinstance(node, cst.Call) and dotted(node.func) == "int" and node.args:
        return literals(program, node.args[0].value, function, depth + 1)
    path = dotted(node)
    if path is None or depth > 4:
        return []
    if path.startswith("self."):
        owner = program.method(function.class_name, "__init__")
        return _assigned(program, path, owner, depth) if owner is not None else []
    if path in function.parameters:
        return _passed(program, path, function, depth)
    if path in function.local_names:
        return _assigned(program, path, function, depth)
    return _assigned(program, path, program.top, depth) or _default_of_field(program, path, depth)


def _assigned(program: Program, path: str, function: Function, depth: int) -> list[cst.Integer | cst.Float]:
    found = [
        value
        for node in walk(function.body, into_functions=False)
        if type(node) is cst.Assign
        for each in node.targets
        for target, value in _pairs(each.target, node.value)
        if dotted(target) == path
    ]
    return literals(program, found[0], function, depth + 1) if len(found) == 1 else []


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return the targets of an assignment with their values.

    An example with two targets is `WARMUP, CAPACITY = 1_000, 500_000`.
    """
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        return [(one.value, other.value) for one, other in zip(target.elements, value.elements, strict=False)]
    return [(target, value)]


def _default_of_field(program: Program, path: str, depth: int) -> list[cst.Integer | cst.Float]:
    """Return the default of a field or option such as `config.context` or `args.context`, if this file defines it
    exactly once.
    """
    owner, _, name = path.rpartition(".")
    if not owner:
        return []
    found: list[cst.BaseExpression] = [
        node.value
        for node in program.nodes_of(cst.AnnAssign)
        if dotted(node.target) == name and node.value is not None
    ]
    for node in program.nodes_of(cst.Call):
        if method_name(node) == "add_argument":
            options = {(string_value(each.value) or "").lstrip("-").replace("-", "_") for each in node.args}
            given = keyword(node, "default")
            found += [given.value] if name in options and given is not None else []
    return literals(program, found[0], program.top, depth + 1) if len(found) == 1 else []


def _passed(program: Program, name: str, function: Function, depth: int) -> list[cst.Integer | cst.Float]:
    called = function.class_name if function.name == "__init__" else function.name
    sites = [
        node for node in program.nodes_of(cst.Call) if called and last_name(dotted(node.func) or "") == called
    ]
    scopes = {id(site.call): site.caller for site in function.call_sites}
    found: list[cst.Integer | cst.Float] = []
    for call in sites:
        given = [argument.value for parameter, argument in function.receives(call) if parameter == name]
        scope = scopes.get(id(call), program.top)
        known = literals(program, given[0], scope, depth + 1) if given else _default(program, name, function)
        if not known:
            return []
        found += known
    return found or _default(program, name, function)


def _default(program: Program, name: str, function: Function) -> list[cst.Integer | cst.Float]:
    parameters = function.node.params.params if isinstance(function.node, cst.FunctionDef) else ()
    return [
        number
        for each in parameters
        if each.name.value == name and each.default is not None and not names_in(each.default)
        for number in literals(program, each.default, program.top)
    ]
