"""Recognizes operations by the source of their lines. The CUDA allocator does not record operations."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from legroom.memory.event_base import Frame
from legroom.observe.source.files import FUNCTIONS, find_function_at, tree_of
from legroom.observe.source.syntax import called_name, last_name

_PRODUCTS = {"matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "cdist", "linear"}
_LOADERS = {"load", "load_file", "load_checkpoint"}
_TRANSPOSING = {"transpose", "permute", "t", "swapaxes", "swapdims", "einsum", "rearrange"}
_REDUCTIONS = {"sum", "mean", "norm", "vector_norm"}


class Attention(NamedTuple):
    """A function that computes attention with two matrix products and a softmax."""

    lines: range
    softmax_lines: frozenset[int]
    has_options: bool = False
    """Whether the function uses a mask or dropout."""


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
    if not any(_contains_scores(node, _assigned_values(function)) for node in softmax):
        return None
    lines = (range(node.lineno, (node.end_lineno or 0) + 1) for node in softmax)
    first, last = getattr(function, "lineno", 0), getattr(function, "end_lineno", 0)
    names = {
        last_name(node).lower() for node in ast.walk(function) if isinstance(node, ast.Name | ast.Attribute)
    }
    has_options = any(word in name for name in names for word in ("mask", "drop"))
    return Attention(range(first, last + 1), frozenset(line for each in lines for line in each), has_options)


def _contains_scores(node: ast.AST, assigned: dict[str, list[ast.expr]]) -> bool:
    """Return whether a softmax is computed from products of queries and transposed keys. Additive scores, as in graph
    attention, are not products.
    """
    found: list[ast.AST] = [node]
    seen: set[str] = set()
    for each in found:  # grows while it is read
        for product in _products(each):
            operands = {part.id for part in ast.walk(product) if isinstance(part, ast.Name)}
            if any(
                map(_transposes, (product, *(value for name in operands for value in assigned.get(name, ()))))
            ):
                return True
        names = {part.id for part in ast.walk(each) if isinstance(part, ast.Name)} - seen
        seen |= names
        found += [value for name in sorted(names) for value in assigned.get(name, ())]
    return False


def _transposes(node: ast.AST) -> bool:
    return any(
        called_name(part) in _TRANSPOSING or (isinstance(part, ast.Attribute) and part.attr in ("T", "mT"))
        for part in ast.walk(node)
    )


def _assigned_values(function: ast.AST) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            names = {
                part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)
            }
            for name in names:
                values.setdefault(name, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            values.setdefault(node.target.id, []).append(node.value)
    return values


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


def creates_one_hot(frame: Frame) -> bool:
    """Return whether a line creates one-hot vectors, as in `F.one_hot(x, n)` and `torch.eye(n)[x]`."""
    return any(
        called_name(node) == "one_hot"
        or (isinstance(node, ast.Subscript) and called_name(node.value) == "eye")
        for statement in _statements_at(frame)
        for node in ast.walk(statement)
    )


def compares_samples(file: str) -> bool:
    """Return whether a file computes the similarities of all samples of a batch, as for a contrastive loss: `z @ z.T`, or
    classes that count the samples (`labels = torch.arange(n)`).
    """
    tree = tree_of(file)
    nodes = list(ast.walk(tree)) if tree is not None else []
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    return any(map(_multiplies_itself, nodes)) or any(
        any(map(_counts_samples, ast.walk(function))) and any(_products(function)) for function in functions
    )


def _counts_samples(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    names = " ".join(last_name(target).lower() for target in node.targets)
    counts = any(called_name(part) == "arange" for part in ast.walk(node.value))
    return counts and ("label" in names or "target" in names)


def _multiplies_itself(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        left, right = node.left, node.right
    elif called_name(node) in ("mm", "matmul") and isinstance(node, ast.Call) and len(node.args) == 2:
        left, right = node.args
    else:
        return False
    if called_name(right) == "t" and isinstance(right, ast.Call) and isinstance(right.func, ast.Attribute):
        right = right.func
    is_transposed = isinstance(right, ast.Attribute) and right.attr in ("t", "T")
    return is_transposed and ast.dump(left) == ast.dump(right.value)  # type: ignore[attr-defined]


def float64_lines(file: str) -> list[int]:
    """Return the lines that convert to float64 explicitly, such as `model.double()` and `dtype=torch.float64`."""
    tree = tree_of(file)
    return sorted(
        {
            node.lineno
            for node in (ast.walk(tree) if tree is not None else ())
            if (called_name(node) == "double" and isinstance(node, ast.Call) and not node.args)
            or (
                isinstance(node, ast.Attribute)
                and node.attr in ("float64", "double")
                and _is_torch(node.value)
            )
        }
    )


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "th")


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
