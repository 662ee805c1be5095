"""Finds functions that compute attention with two matrix products and a softmax."""

import ast

from legroom.memory.event_base import Frame
from legroom.observe.source.files import find_function_at, tree_of

_PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}


def attention_lines(frame: Frame) -> range | None:
    """Return the lines of the function that contains a line, if the function computes attention."""
    tree = tree_of(frame.file)
    if tree is None:
        return None
    function = find_function_at(tree, frame.line)
    if isinstance(function, ast.Module):
        return None
    calls = [_name_of(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    products = sum(name in _PRODUCTS for name in calls)
    products += sum(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) for node in ast.walk(function)
    )
    normalizes = any(name.lower().endswith("softmax") for name in calls)
    first, last = getattr(function, "lineno", 0), getattr(function, "end_lineno", 0)
    return range(first, last + 1) if normalizes and products >= 2 else None


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
