"""Determines whether a training loop resets the gradients only after the forward pass."""

import ast
from collections.abc import Iterator

from legroom.memory.event_base import Frame
from legroom.observe.source.files import LOOPS, tree_of


def keeps_gradients_until_backward(step: Frame) -> bool:
    """Return whether the gradients of a step are still alive during the next forward pass.

    `step` is the line that calls `optimizer.step()`. The loop around this line must call `zero_grad` once, after the
    line that computes the loss and before the backward pass. If the loop has another form, the result is False.
    """
    tree = tree_of(step.file)
    if tree is None:
        return False
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, LOOPS) and node.lineno <= step.line <= (node.end_lineno or 0)
    ]
    if not loops:
        return False
    loop = max(loops, key=lambda node: node.lineno)
    resets, backward = list(_calls(loop, "zero_grad")), list(_calls(loop, "backward"))
    if len(resets) != 1 or len(backward) != 1:
        return False
    names = {node.id for node in ast.walk(backward[0]) if isinstance(node, ast.Name)}
    computed = [
        node.lineno
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for each in ast.walk(target)
        if isinstance(each, ast.Name) and each.id in names and node.lineno < backward[0].lineno
    ]
    return any(line < resets[0].lineno for line in computed) and resets[0].lineno < backward[0].lineno


def _calls(loop: ast.AST, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node
