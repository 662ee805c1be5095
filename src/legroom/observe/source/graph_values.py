"""Determines from the source code whether a line can store a tensor that has an autograd graph."""

import ast
import re
from functools import lru_cache

from legroom.observe.source.files import FUNCTIONS, tree_of
from legroom.observe.source.syntax import called_name, is_in_place

_DISABLING = re.compile(r"(?:^|_)(?:no_grad|inference_mode)(?:_|$)")
_WITHOUT_GRAPH = {"detach", "item", "tolist", "numpy", "float", "int", "len", "str"}


@lru_cache(maxsize=256)
def may_store_graph(file: str, line: int) -> bool:
    """Return whether the statement at a line can store a tensor with a graph. The result is False if the statement
    detaches all values, or if gradients are disabled and the values are computed there.
    """
    tree = tree_of(file)
    statement = next((each for each in ast.walk(tree) if _is_simple(each, line)), None) if tree else None
    if tree is None or statement is None:
        return True
    values = _stored_values(statement)
    if values and all(called_name(each) in _WITHOUT_GRAPH for each in values):
        return False
    contexts = [each for each in ast.walk(tree) if _contains(each, line) and _gradients_in(each) is not None]
    innermost = max(contexts, key=lambda each: each.lineno, default=None)  # type: ignore[attr-defined]
    if innermost is None or _gradients_in(innermost):
        return True
    computed = {
        each.id
        for each in ast.walk(innermost)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    # `total += loss` computes a tensor without a graph, but `losses.append(loss)` stores a tensor of the caller.
    is_sum = isinstance(statement, ast.AugAssign) and isinstance(statement.value, ast.Name | ast.Attribute)
    return not is_sum and any(
        isinstance(each, ast.Attribute) or (isinstance(each, ast.Name) and each.id not in computed)
        for each in values
    )


def _is_simple(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.stmt) and not hasattr(node, "body") and _contains(node, line)


def _contains(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _stored_values(statement: ast.AST) -> list[ast.expr]:
    """Return the values that a statement stores, without the tuples, lists and dicts that contain them."""
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
        if is_in_place(value):  # `total.add_(loss)`
            return []
        stack = [*value.args, *(each.value for each in value.keywords)]
    else:
        stack = [value] if isinstance(value, ast.expr) else []
    values = []
    while stack:
        each = stack.pop()
        if isinstance(each, ast.Tuple | ast.List | ast.Set):
            stack += each.elts
        elif isinstance(each, ast.Dict):
            stack += each.values
        else:
            values.append(each)
    return values


def _gradients_in(node: ast.AST) -> bool | None:
    """Return whether gradients are enabled in a `with` block or a decorated function, or None if it changes nothing."""
    if isinstance(node, ast.With | ast.AsyncWith):
        switches = [each.context_expr for each in node.items]
    elif isinstance(node, FUNCTIONS):
        switches = list(getattr(node, "decorator_list", []))
    else:
        return None
    for each in switches:
        function = each.func if isinstance(each, ast.Call) else each
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if _DISABLING.search(name):
            return False
        if name in ("enable_grad", "set_grad_enabled"):
            argument = each.args[0] if isinstance(each, ast.Call) and each.args else None
            return not (isinstance(argument, ast.Constant) and argument.value is False)
    return None
