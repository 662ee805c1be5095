"""Determines how to store a value without its graph. Finds the parts of an expression that have a graph, and the
method to append to each part."""

import re

import libcst as cst

from legroom.diagnose.lint.edits import Edit, append_to
from legroom.diagnose.lint.flow.call_results import names_a_loss
from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    last_name,
    method_name,
    names_in,
    path_of,
    receiver,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind

_LOSS_NAME = re.compile(r"loss|err[DG]?$|penalty", re.IGNORECASE)


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


def detach_edits(program: Program, store: StoreFact, target: str) -> tuple[str, list[Edit], bool]:
    """Return the method to append to each part (`.item()`, ...), the edits, and True if the edits are safe."""
    parts = parts_with_graph(program, store.expression, but=target if store.uses_old_value else "")
    if not parts or any(program.value(part).kind is not ValueKind.GRAPH for part in parts):
        return ".detach()", [], False
    if any(_is_one_of_several(part, store) for part in parts):
        return ".detach()", [], False
    scalar = all(is_scalar(program, part, store) for part in parts)
    as_tensor = is_used_as_tensor(program, store, target)
    if scalar:
        suffix, safe = (".detach()" if as_tensor else ".item()"), True
    else:
        suffix, safe = ".detach()", True
    return suffix, [edit for part in parts for edit in append_to(program, part, suffix)], safe


def _is_one_of_several(part: cst.BaseExpression, store: StoreFact) -> bool:
    """Return True if a name iterates over a literal list, whose items may not all be tensors."""
    return any(
        isinstance(loop.node, cst.For)
        and isinstance(loop.node.iter, (cst.Tuple, cst.List))
        and bool(names_in(part) & loop.bound)
        for loop in store.loops
    )


def is_scalar(program: Program, expression: cst.BaseExpression, store: StoreFact, depth: int = 0) -> bool:
    """Return True if a value is a scalar, such as a loss."""
    if isinstance(expression, cst.BinaryOperation):
        sides = [expression.left, expression.right]
        return all(
            is_scalar(program, side, store, depth)
            for side in sides
            if program.value(side).kind is ValueKind.GRAPH
        )
    if isinstance(expression, cst.Call):
        method = method_name(expression)
        if method in {"mean", "sum", "norm"} and not expression.args:
            return True
        name = dotted(expression.func) or method or ""
        return names_a_loss(name) or program.value(expression.func).kind is ValueKind.CRITERION
    path = dotted(expression)
    if path is None:
        return False
    if _LOSS_NAME.search(last_name(path)):
        return True
    if depth < 3:
        for each in reversed(program.stores):
            if each.target == path and each.function is store.function and each.order < store.order:
                return is_scalar(program, each.expression, store, depth + 1)
    return False


def is_used_as_tensor(program: Program, store: StoreFact, target: str) -> bool:
    """Return True if this file uses the stored value in a way that requires a tensor."""
    name = last_name(target)
    local = store.function.owns(target) and not isinstance(store.function.node, cst.Module)
    scope = store.function.body if local else program.module
    names = {name}
    for node in walk(scope):
        if isinstance(node, cst.Assign) and _reads(node.value, names) and not _calls_number(node.value):
            names |= {last_name(path) for each in node.targets if (path := path_of(each.target))}
        if isinstance(node, (cst.For, cst.CompFor)) and _reads(node.iter, names):
            names |= {path for each in walk(node.target) if (path := dotted(each))}
    for node in walk(scope):
        if isinstance(node, cst.Return) and local and node.value is not None and _reads(node.value, {name}):
            return True
        if not isinstance(node, cst.Call):
            continue
        owner = receiver(node)
        adds = method_name(node) in {"append", "extend", "items", "values"}
        if (
            owner is not None
            and not adds
            and _reads(owner, names)
            and program.value(owner).kind is not ValueKind.CONTAINER
        ):
            return True
        called = program.imports.qualified(node.func) or ""
        if called.startswith("torch.") and any(_reads(each.value, names) for each in node.args):
            return True
    return False


def _reads(node: cst.CSTNode, names: set[str]) -> bool:
    return any(last_name(path) in names for path in names_in(node))


def _calls_number(node: cst.CSTNode) -> bool:
    return any(isinstance(each, cst.Call) and method_name(each) in {"item", "tolist"} for each in walk(node))
