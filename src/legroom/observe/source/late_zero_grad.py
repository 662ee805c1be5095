"""Determines whether a training loop resets the gradients only after the forward pass."""

import ast
from collections.abc import Iterator

from legroom.memory.event_base import Frame
from legroom.observe.source.files import innermost_loop, tree_of


def keeps_gradients_until_backward(step: Frame) -> bool:
    """Return whether the gradients of a step are still alive during the next forward pass.

    `step` is the line that calls `optimizer.step()`. The loop around this line must call `zero_grad` once, after the
    line that computes the loss and before the backward pass. If the loop has another form, the result is False.
    """
    tree = tree_of(step.file)
    if tree is None:
        return False
    loop = innermost_loop(tree, step.line)
    if loop is None:
        return False
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
    return bool(computed) and max(computed) < resets[0].lineno < backward[0].lineno


def _calls(loop: ast.AST, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node
