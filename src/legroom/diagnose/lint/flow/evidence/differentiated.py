"""Finds the names of tensors that a backward pass uses.

For a tensor from an unknown function, its use in a backward pass is the only evidence that it has a graph.
"""

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.syntax import dotted, last_name, method_name, receiver, walk
from legroom.diagnose.lint.flow.values import (
    GRAPHLESS_METHODS,
    LOSS_FUNCTIONS,
    MADE_LIKE_METHODS,
    NUMBER_METHODS,
)


def differentiated_names(function: Function) -> frozenset[str]:
    """Return the paths of the tensors on which `backward` is called, or that are passed to `backward`.

    If such a tensor is a sum, the paths of its summands are included.

    For example, `loss = reconstruction + divergence` is a sum with two summands.
    """
    found: set[str] = set()
    for node in walk(function.body, into_functions=False):
        if type(node) is not cst.Call:
            continue
        if (dotted(node.func) or "").endswith("autograd.grad") and node.args:
            found.update(filter(None, [dotted(node.args[0].value)]))
        if method_name(node) not in {"backward", "manual_backward"}:
            continue
        owner = receiver(node)
        if isinstance(owner, cst.Call) and method_name(owner) in {"scale", "mean", "sum"}:
            owner = owner.args[0].value if owner.args else receiver(owner)
        given = node.args[0].value if node.args and node.args[0].keyword is None else None
        name = dotted(given) or ""
        start = owner if given is None or "grad" in name else given  # accelerator.backward(loss)
        found.update(_summands(start))
    for _ in range(2 if found else 0):  # loss = reconstruction + divergence
        for node in walk(function.body, into_functions=False):
            if type(node) is cst.Assign and any(dotted(each.target) in found for each in node.targets):
                made = node.value
                found.update(_summands(made) if isinstance(made, cst.BinaryOperation) else _operand(made))
    return frozenset(found)


def _summands(node: cst.CSTNode | None) -> set[str]:
    """Return the names of the summands of a sum, such as `reconstruction` and `divergence` for
    `reconstruction + 0.5 * divergence`.
    """
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, (cst.Add, cst.Subtract)):
            return _summands(node.left) | _summands(node.right)
        if isinstance(node.operator, (cst.Multiply, cst.Divide)):
            sides = [each for each in (node.left, node.right) if not isinstance(each, cst.BaseNumber)]
            return _summands(sides[0]) if len(sides) == 1 else set()
        return set()
    path = dotted(node)
    return {path} if path is not None else set()


def _operand(node: cst.CSTNode) -> set[str]:
    """Return the name of the only tensor from which a result is computed. The result has a graph only if that tensor
    has a graph. Examples are `error` for `error.pow(2).mean()` and `torch.mean(error ** 2)`, `output` for
    `F.mse_loss(output, y)`, and `losses` for `sum(losses)`.
    """
    if isinstance(node, cst.Call):
        method, owner = method_name(node), receiver(node)
        first = node.args[0].value if node.args else None
        if LOSS_FUNCTIONS.search(last_name(dotted(node.func) or "")) and first is not None:
            return _operand(first)
        if dotted(node.func) == "sum" and first is not None:  # sum(losses.values())
            items = (
                receiver(first) if isinstance(first, cst.Call) and method_name(first) == "values" else first
            )
            return {path} if (path := dotted(items)) is not None else set()
        if dotted(owner) in {"torch", "F"}:
            return _operand(first) if first is not None and len(node.args) == 1 else set()
        if method is None or owner is None or method in _OTHER_METHODS or not _are_numbers(node):
            return set()
        return _operand(owner)
    if isinstance(node, cst.UnaryOperation):
        return _operand(node.expression)
    if isinstance(node, cst.BinaryOperation):
        sides = [each for each in (node.left, node.right) if not isinstance(each, cst.BaseNumber)]
        return _operand(sides[0]) if len(sides) == 1 else set()
    return {node.value} if isinstance(node, cst.Name) else set()


_OTHER_METHODS = GRAPHLESS_METHODS | NUMBER_METHODS | MADE_LIKE_METHODS


def _are_numbers(call: cst.Call) -> bool:
    return all(
        isinstance(each.value, (cst.BaseNumber, cst.UnaryOperation, cst.Tuple)) or each.keyword is not None
        for each in call.args
    )
