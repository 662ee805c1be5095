"""Determines how to store a value without its graph. Finds the parts of an expression that have a graph."""

import libcst as cst

from legroom.diagnose.lint.edits import Edit, append_to
from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, names_in, path_of, receiver
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.proofs import can_be_detached


def parts_with_graph(
    program: Program, expression: cst.BaseExpression, *, but: str = ""
) -> list[cst.BaseExpression]:
    """Return the smallest parts of a stored expression that have a graph, excluding the path `but`."""
    if but and path_of(expression) == but:  # also an item of it
        return []
    if isinstance(expression, cst.BinaryOperation):
        parts = [
            *parts_with_graph(program, expression.left, but=but),
            *parts_with_graph(program, expression.right, but=but),
        ]
        is_separate = not but or but not in names_in(expression)
        return [expression] if is_separate and len(parts) > 1 else parts
    if isinstance(expression, (cst.Tuple, cst.List)):
        return [
            part for each in expression.elements for part in parts_with_graph(program, each.value, but=but)
        ]
    if isinstance(expression, cst.IfExp):
        sides = (expression.body, expression.orelse)
        return [part for side in sides for part in parts_with_graph(program, side, but=but)]
    if isinstance(expression, cst.Call) and but and but in names_in(expression):
        operands = (receiver(expression), *(each.value for each in expression.args))
        return [
            part for each in operands if each is not None for part in parts_with_graph(program, each, but=but)
        ]
    if isinstance(expression, cst.Call) and dotted(expression.func) == "dict":
        return [part for each in expression.args for part in parts_with_graph(program, each.value, but=but)]
    if isinstance(expression, cst.Dict):
        return [
            part for each in expression.elements for part in parts_with_graph(program, each.value, but=but)
        ]
    return [expression] if program.value(expression).has_graph else []


def detach_edits(program: Program, store: StoreFact, target: str) -> tuple[list[Edit], bool]:
    """Return the edits that store the value without its graph, and True if they are safe.

    The fix adds `.detach()` and not `.item()`: a sum of Python numbers is rounded differently from a sum of tensors.
    """
    parts = parts_with_graph(program, store.expression, but=target if store.uses_old_value else "")
    if not parts or any(program.value(part).kind is not ValueKind.GRAPH for part in parts):
        return [], False
    if any(_is_one_of_several(part, store) for part in parts):
        return [], False
    edits = [edit for part in parts for edit in append_to(program, part, ".detach()")]
    return edits, can_be_detached(program, parts, store)


def _is_one_of_several(part: cst.BaseExpression, store: StoreFact) -> bool:
    """Return True if a name iterates over a literal list, whose items may not all be tensors."""
    return any(
        isinstance(loop.node, cst.For)
        and isinstance(loop.node.iter, (cst.Tuple, cst.List))
        and bool(names_in(part) & loop.bound)
        for loop in store.loops
    )
