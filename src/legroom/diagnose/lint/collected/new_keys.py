"""Determines whether each step stores its value under a new key or replaces an old value."""

import re

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import iterates_data
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    has_modulo,
    last_name,
    method_name,
    names_in,
    path_of,
    receiver,
    root,
    walk,
)


def key_is_new(program: Program, store: StoreFact, scope: LoopFact | Function) -> bool:
    if store.how != "item" or averages_itself(program, store):
        return True
    if store.previous.is_tensor:  # a tensor that a function fills and returns is its result
        return not isinstance(scope, LoopFact) or iterates_data(scope)
    key = key_of(store)
    if not key or any(key_repeats(program, each) for each in key):
        return False
    names = {name for each in key for name in names_in(each)}
    if names and all(_is_part_of_model(program, store, each) for each in names):
        return False  # for name, parameter in model.named_parameters()
    if not isinstance(scope, LoopFact):
        return store.mapping and bool(names) and not isinstance(store.node, cst.Call)
    if not store.mapping:  # an index of a list or tensor is new only if it depends on the loop
        return bool(names & scope.bound)
    index = store.loops.index(scope)
    inner, outer = store.loops[index + 1 :], store.loops[:index]
    if any(names & loop.bound and _goes_through_names(program, loop) for loop in outer):
        return False  # for name, loader in loaders.items()
    if names.difference(*(loop.bound for loop in inner)):
        return True
    return any(_counts_data(loop, names, scope) for loop in inner)


def _is_part_of_model(program: Program, store: StoreFact, name: str, depth: int = 0) -> bool:
    """Return True if a key is the name or index of a parameter or layer, because each step then uses the same keys."""
    first = root(name)
    if first in _TEXT_FUNCTIONS:
        return True
    if any(
        first in loop.bound and isinstance(loop.node, cst.For) and _goes_through_model(loop.node.iter)
        for loop in store.loops
    ):
        return True
    made = [
        each.expression
        for each in program.stores
        if each.target == first and each.function is store.function and each.order < store.order
    ]
    return (
        bool(made)
        and depth < 3
        and all(
            bool(read := names_in(each))
            and all(_is_part_of_model(program, store, inner, depth + 1) for inner in read)
            for each in made
        )
    )


_TEXT_FUNCTIONS = frozenset(["str", "repr", "int", "id", "hash", "type", "len"])
_MODEL_PARTS = frozenset(
    [
        "named_parameters",
        "named_modules",
        "named_buffers",
        "named_children",
        "parameters",
        "modules",
        "children",
    ]
)


def _goes_through_model(iterable: cst.BaseExpression) -> bool:
    """Return True for an iterable over the parameters or layers of a model, such as `enumerate(model.parameters())`."""
    if not isinstance(iterable, cst.Call):
        return False
    if dotted(iterable.func) in {"enumerate", "zip", "list", "sorted", "reversed", "filter", "tuple"}:
        return any(_goes_through_model(each.value) for each in iterable.args)
    inner = receiver(iterable)
    if method_name(iterable) in {"items", "keys"} and isinstance(inner, cst.Call):
        return method_name(inner) == "state_dict"
    return method_name(iterable) in _MODEL_PARTS


def _goes_through_names(program: Program, loop: LoopFact) -> bool:
    iterable = loop.node.iter if isinstance(loop.node, cst.For) else None
    if isinstance(iterable, cst.Call):
        return method_name(iterable) in {"items", "keys"}
    return isinstance(iterable, (cst.List, cst.Tuple, cst.Dict)) or (
        iterable is not None and program.value(iterable).mapping
    )


def _counts_data(loop: LoopFact, names: set[str], scope: LoopFact) -> bool:
    """Return True if the keys are the indices of the samples in a batch, as in
    `for i, value in zip(indices.tolist(), values)`.
    """
    if not isinstance(loop.node, cst.For) or not isinstance(loop.node.target, cst.Tuple):
        return False
    source = loop.node.iter
    if not isinstance(source, cst.Call) or dotted(source.func) != "zip":
        return False
    for element, argument in zip(loop.node.target.elements, source.args, strict=False):
        if names_in(element.value) & names:
            given = argument.value
            listed = isinstance(given, cst.Call) and method_name(given) == "tolist"
            return listed or bool(names_in(given) & scope.bound)
    return False


def key_of(store: StoreFact) -> list[cst.CSTNode]:
    """Return the key under which a value is stored: a subscript, or the name in a call to `setattr`."""
    if isinstance(store.node, cst.Call):  # setattr(recorder, name, value), model.register_buffer(name, value)
        return [store.node.args[0 if method_name(store.node) else 1].value]
    target = store.node.targets[0].target if isinstance(store.node, cst.Assign) else None
    return [each.slice for each in target.slice] if isinstance(target, cst.Subscript) else []


def key_repeats(program: Program, key: cst.CSTNode) -> bool:
    """Return True if a key such as `step % 8` repeats."""
    if has_modulo(key):
        return True
    names = names_in(key)
    if names and all(_FEW_VALUES.search(last_name(each)) for each in names - {"str", "repr", "int"}):
        return True  # cache[str(device)]
    return any(each.target in names and has_modulo(each.expression) for each in program.stores)


_FEW_VALUES = re.compile(r"device|dtype|rank|mode$|phase$|split$", re.IGNORECASE)
"""Names of variables that have only a few different values in a run."""


def averages_itself(program: Program, store: StoreFact) -> bool:
    """Return True for a moving average such as `shadow[name] = 0.9 * shadow[name] + 0.1 * parameter`.

    A variable may contain the old value (`old = shadow[name]`). In a moving average, the graph of every step includes the graph of the previous step.
    """
    made = store.expression
    sides = (made.body, made.orelse) if isinstance(made, cst.IfExp) else (made,)
    if not store.uses_old_value:
        return False
    old = {
        each.target
        for each in program.stores
        if each.function is store.function
        and each.order < store.order
        and _reads_entry(each.expression, store)
    }
    return any(
        isinstance(side, cst.BinaryOperation)
        and (_reads_entry(each, store) or (isinstance(each, cst.Name) and each.value in old))
        and _is_operand(side, each)
        for side in sides
        for each in walk(side)
    )


def _reads_entry(node: cst.CSTNode, store: StoreFact) -> bool:
    return isinstance(node, (cst.Subscript, cst.Call)) and path_of(node) == store.target


def _is_operand(expression: cst.CSTNode, wanted: cst.CSTNode) -> bool:
    if isinstance(expression, cst.BinaryOperation):
        return _is_operand(expression.left, wanted) or _is_operand(expression.right, wanted)
    return expression is wanted
