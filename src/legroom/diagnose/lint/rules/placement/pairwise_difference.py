"""LG311: A pairwise difference allocates all pairs with all features

## What it detects
The rule checks for differences and products such as `x.unsqueeze(1) - y.unsqueeze(0)` or `x[:, None] * y[None]` if one
operand contains the features of the whole dataset, and the program then sums the result or computes its norm. The rule
also checks for `cosine_similarity` with such operands, and for the differences of all points of a point cloud if the
program selects the nearest points with functions such as `topk`.

The report of an out-of-memory error uses this code for such a line of any size, if it needs at least 30% of the memory.

## Why this is a problem
The difference of N and M vectors with D features has N × M × D elements. The distances need only N × M elements. For
4,096 queries, 30,000 samples and 512 features, the difference uses 234 GiB, and the distances use 469 MiB.

## Example
```python
difference = queries.unsqueeze(1) - gallery.unsqueeze(0)
distances = difference.pow(2).sum(-1).sqrt()
```

## Use instead
```python
distances = torch.cdist(queries, gallery)
```

## Fix safety
No automatic fix is available, because `torch.cdist` may round differently.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.whole_data import is_whole_dataset
from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_call_of,
    last_name,
    method_name,
    names_in,
    positional,
    receiver,
    walk,
)
from legroom.diagnose.lint.rule import Problem

CODE = "LG311"
_FUNCTIONS = ("cosine_similarity", "pairwise_distance")
_REDUCTIONS = ("sum", "norm", "mean", "vector_norm")


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("unsqueeze", "None"):
        return
    found: dict[cst.CSTNode, list[tuple[cst.BaseExpression, int]]] = {
        node: known
        for kind in (cst.BinaryOperation, cst.Call)
        for node in program.nodes_of(kind)
        if (known := _pair(node)) is not None
    }
    for function in program.functions.values() if found else ():
        for node in walk(function.body, into_functions=False):
            pair = found.get(node)
            if pair is None:
                continue
            is_reduced = isinstance(node, cst.Call) or _is_reduced(program, node, function)
            if is_reduced and (
                any(is_whole_dataset(program, each, function) for each, _ in pair)
                or _finds_neighbors(program, node, pair, function)
            ):
                yield Problem(
                    node=node,
                    message="This intermediate tensor has one element for each pair and feature",
                    help="Use `torch.cdist` for distances or `x @ y.T` for products: the result has one element for each pair",
                )


def _pair(node: cst.CSTNode) -> list[tuple[cst.BaseExpression, int]] | None:
    """Return the two tensors to which an expression adds different axes, and the indices of the axes."""
    known = [side for each in _operands(node) if (side := _with_new_axis(each)) is not None]
    return known if len(known) > 1 and known[0][1] != known[1][1] else None


def _operands(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the operands of a difference, a product or a call to `cosine_similarity`."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Subtract, cst.Multiply)):
        return [node.left, node.right]
    if isinstance(node, cst.Call) and any(is_call_of(node, name) for name in _FUNCTIONS):
        return [each.value for each in positional(node)[:2]]
    return []


def _with_new_axis(node: cst.BaseExpression) -> tuple[cst.BaseExpression, int] | None:
    """Return the tensor to which an expression adds an axis, and the index of the axis. For example, return `x` and 1
    for `x.unsqueeze(1)`, `x[:, None]` and `x[:, None, :]`.
    """
    if isinstance(node, cst.Call) and method_name(node) == "unsqueeze":
        given, owner = positional(node), receiver(node)
        axis = given[0].value if given else None
        return (owner, int(axis.value)) if owner is not None and isinstance(axis, cst.Integer) else None
    if isinstance(node, cst.Subscript):
        added = [
            index
            for index, each in enumerate(node.slice)
            if isinstance(each.slice, cst.Index) and dotted(each.slice.value) == "None"
        ]
        return (node.value, added[0]) if len(added) == 1 else None
    return None


def _finds_neighbors(
    program: Program, node: cst.CSTNode, sides: list[tuple[cst.BaseExpression, int]], function: Function
) -> bool:
    """Return True if the program selects the nearest points from the distances of all points of a cloud.

    The points are in batches of clouds (`x.unsqueeze(2) - y.unsqueeze(1)`), or one cloud is compared with itself.
    """
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Subtract):
        return False
    (one, first), (other, second) = sides[:2]
    in_batches = {first, second} == {1, 2}
    if not in_batches and program.source(one) != program.source(other):
        return False
    selecting = {"topk", "argsort", "sort", "kthvalue"} | ({"min", "argmin", "amin"} if in_batches else set())
    names = _assigned_from(program, node, function)
    return any(
        isinstance(each, cst.Call)
        and last_name(dotted(each.func) or method_name(each) or "") in selecting
        and (names & names_in(each) or program.inside(node, each))
        for each in walk(function.body, into_functions=False)
    )


def _assigned_from(program: Program, node: cst.CSTNode, function: Function) -> set[str]:
    """Return the names to which a function assigns the result of an expression, or a value computed from it."""
    names: set[str] = set()
    for store in program.stores:
        if store.function is not function or store.how != "assign":
            continue
        if program.inside(node, store.expression) or names & names_in(store.expression):
            names.add(store.target)
    return names


def _is_reduced(program: Program, node: cst.CSTNode, function: Function) -> bool:
    """Return True if the program computes a sum or norm from the difference, directly or through a variable."""
    names: set[str] = set()
    for each in program.ancestors(node):
        if isinstance(each, cst.Call) and any(is_call_of(each, name) for name in _REDUCTIONS):
            return True
        if isinstance(each, cst.Call) and method_name(each) in _REDUCTIONS:
            return True
        if isinstance(each, cst.Assign):
            names = {path for target in each.targets if (path := dotted(target.target)) is not None}
            break
        if isinstance(each, cst.BaseStatement):
            break
    return any(
        isinstance(each, cst.Call) and method_name(each) in _REDUCTIONS and names & names_in(each)
        for each in (walk(function.body, into_functions=False) if names else ())
    )
