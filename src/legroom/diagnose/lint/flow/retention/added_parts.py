"""Finds the new elements of a container that is created from the old container, as in `history = [*history, x]`."""

from collections.abc import Set

import libcst as cst

from legroom.diagnose.lint.flow.syntax import dotted, is_call_of


def added_parts(
    expression: cst.BaseExpression, target: str, classes: Set[str] = frozenset()
) -> list[cst.BaseExpression]:
    """Return the new elements of a container that includes the old container. An object of one of `classes` contains its
    arguments."""
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
    """Return the elements of the literal containers in `parts`, except the container `target`."""
    return [
        element.value
        for each in parts
        if dotted(each) != target and isinstance(each, (cst.List, cst.Tuple, cst.Dict, cst.Set))
        for element in each.elements
    ]
