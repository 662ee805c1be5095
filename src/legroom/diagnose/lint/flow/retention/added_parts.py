"""Finds the new elements of a container that includes the old one, as in `history = [*history, x]` or
`torch.cat([history, x])`.
"""

from collections.abc import Set

import libcst as cst

from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_call_of,
    keyword,
    method_name,
    path_of,
    positional,
    receiver,
)
from legroom.diagnose.lint.flow.values import ValueKind

_CONCATENATING = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"}
_METHODS_OF_HISTORY = {"detach", "contiguous", "clone", "cpu", "to", "float", "half"}


def added_parts(
    expression: cst.BaseExpression, target: str, classes: Set[str] = frozenset()
) -> list[cst.BaseExpression]:
    """Return the elements that a new container adds to the container `target`.

    An object of a class in `classes` counts as a container of its constructor's arguments.
    """
    if isinstance(expression, cst.BinaryOperation) and isinstance(expression.operator, (cst.Add, cst.BitOr)):
        sides = [expression.left, expression.right]
        return _without(sides, target) if any(dotted(each) == target for each in sides) else []
    if isinstance(expression, (cst.List, cst.Tuple, cst.Set, cst.Dict)):
        parts = [each.value for each in expression.elements]
        return [each for each in parts if dotted(each) != target] if _includes(parts, target) else []
    if not isinstance(expression, cst.Call) or not expression.args:
        return []
    given = [each.value for each in expression.args]
    if dotted(expression.func) in {"sorted", "list", "tuple"}:
        return added_parts(given[0], target, classes)
    if is_call_of(expression, "chain"):
        return _without(given, target) if _includes(given, target) else []
    if dotted(expression.func) in classes:
        return [each for each in given if dotted(each) != target] if _includes(given, target) else []
    return []


def _includes(parts: list[cst.BaseExpression], target: str) -> bool:
    return len(parts) > 1 and any(dotted(each) == target for each in parts)


def _without(parts: list[cst.BaseExpression], target: str) -> list[cst.BaseExpression]:
    return [
        element.value
        for each in parts
        if dotted(each) != target and isinstance(each, (cst.List, cst.Tuple, cst.Dict, cst.Set))
        for element in each.elements
    ]


def window_parts(program: Program, store: StoreFact) -> list[cst.BaseExpression]:
    """Return the tensors in `torch.cat([...])[-100:]`, if the result has a graph.

    Without a graph, the slice limits the memory, so nothing grows.
    """
    expression = store.expression
    if not isinstance(expression, cst.Subscript) or store.value.kind is not ValueKind.GRAPH:
        return []
    if any(each.node is store.node for each in store.function.stored_parameters.values()):
        return []  # reported at the call that passes the tensor
    return concatenated_parts(program, expression.value)


def is_concatenated_to_itself(program: Program, store: StoreFact) -> bool:
    """Return True if a statement concatenates a tensor to itself, as in `x = torch.cat([x, ...])` and
    `cache["k"] = torch.cat([cache["k"], ...])`.
    """
    parts = concatenated_parts(program, store.expression) or window_parts(program, store)
    if store.how == "item":
        return not store.varying_key and any(
            isinstance(each, cst.Subscript) and path_of(each) == store.target for each in parts
        )
    return store.how == "assign" and store.target in {dotted(each) for each in parts}


def is_concatenated_through_name(program: Program, store: StoreFact) -> bool:
    """Return True if a tensor is concatenated to itself through a variable, as in `self.keys = keys` after
    `keys = torch.cat([self.keys, keys])`.
    """
    name = dotted(store.expression)
    if store.how != "assign" or not store.uses_old_value or name is None:
        return False
    return any(
        each.target == name
        and each.function is store.function
        and each.order < store.order
        and store.target in map(dotted, concatenated_parts(program, each.expression))
        for each in program.stores
    )


def concatenated_parts(program: Program, expression: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the tensors that `torch.cat([...])` concatenates. The call may be part of a conditional expression, or be
    followed by a method such as `.detach()`.
    """
    if isinstance(expression, cst.IfExp):
        return [
            *concatenated_parts(program, expression.body),
            *concatenated_parts(program, expression.orelse),
        ]
    if not isinstance(expression, cst.Call):
        return []
    name = program.imports.qualified(expression.func) or ""
    if not name.startswith("torch.") or name.rpartition(".")[2] not in _CONCATENATING:
        owner = receiver(expression)
        return (
            concatenated_parts(program, owner)
            if method_name(expression) in _METHODS_OF_HISTORY and owner is not None
            else []
        )
    given = positional(expression)[0] if positional(expression) else keyword(expression, "tensors")
    if given is None or not isinstance(given.value, (cst.List, cst.Tuple)):
        return []
    return [each.value for each in given.value.elements]
