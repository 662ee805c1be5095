"""Recognizes operations by the source of their lines. The CUDA allocator does not record operations."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from legroom.memory.event_base import Frame
from legroom.observe.source.files import find_function_at, tree_of
from legroom.observe.source.syntax import called_name

_PRODUCTS = {"matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "cdist", "linear"}
_LOADERS = {"load", "load_file", "load_checkpoint"}
_REDUCTIONS = {"sum", "mean", "norm", "vector_norm"}


class Attention(NamedTuple):
    """A function that computes attention with two matrix products and a softmax."""

    lines: range
    softmax_lines: frozenset[int]


def attention_at(frame: Frame) -> Attention | None:
    """Return the function that contains a line, if the function computes attention."""
    tree = tree_of(frame.file)
    if tree is None:
        return None
    function = find_function_at(tree, frame.line)
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    softmax = [node for node in calls if called_name(node).lower().endswith("softmax")]
    if not softmax or len(list(_products(function))) < 2 or isinstance(function, ast.Module):
        return None
    lines = (range(node.lineno, (node.end_lineno or 0) + 1) for node in softmax)
    first, last = getattr(function, "lineno", 0), getattr(function, "end_lineno", 0)
    return Attention(range(first, last + 1), frozenset(line for each in lines for line in each))


def is_arithmetic(frame: Frame) -> bool:
    """Return whether a line combines tensors with an operator such as `-`, or calls a loss, without a matrix product."""
    statements = _statements_at(frame)
    if not statements or any(any(True for _ in _products(each)) for each in statements):
        return False
    return any(
        (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow)
        )
        or "loss" in called_name(node).lower()
        for statement in statements
        for node in ast.walk(statement)
    )


def is_pairwise_difference(frame: Frame) -> bool:
    """Return whether a line combines all rows of two tensors, as in `x[:, None] - y[None]`, and reduces the result."""
    return any(
        any(isinstance(node, ast.BinOp) and _combines_pairs(node) for node in ast.walk(statement))
        and any(called_name(node) in _REDUCTIONS for node in ast.walk(statement))
        for statement in _statements_at(frame)
    )


def loads_checkpoint(frame: Frame) -> bool:
    """Return whether a line reads a file whose contents the program passes to `load_state_dict`."""
    tree = tree_of(frame.file)
    return (
        tree is not None
        and any(
            called_name(node) in _LOADERS
            for statement in _statements_at(frame)
            for node in ast.walk(statement)
        )
        and any(called_name(node) == "load_state_dict" for node in ast.walk(tree))
    )


def _combines_pairs(node: ast.BinOp) -> bool:
    if not isinstance(node.op, ast.Sub | ast.Mult):
        return False
    left, right = _new_axis(node.left), _new_axis(node.right)
    return left is not None and right is not None and left != right


def _new_axis(node: ast.expr) -> int | None:
    """Return the index of the axis that an expression such as `x[:, None]` or `x.unsqueeze(1)` adds."""
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        added = [i for i, each in enumerate(parts) if isinstance(each, ast.Constant) and each.value is None]
        return added[0] if len(added) == 1 else None
    is_unsqueeze = called_name(node) == "unsqueeze"
    if isinstance(node, ast.Call) and is_unsqueeze and node.args and isinstance(node.args[0], ast.Constant):
        axis = node.args[0].value
        return axis if isinstance(axis, int) else None
    return None


def _statements_at(frame: Frame) -> list[ast.stmt]:
    tree = tree_of(frame.file)
    return [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return)
        and node.lineno <= frame.line <= (node.end_lineno or 0)
    ]


def _products(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield node
        if called_name(node) in _PRODUCTS:
            yield node
