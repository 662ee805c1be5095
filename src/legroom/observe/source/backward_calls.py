"""Finds the variables that a line differentiates."""

import ast

from legroom.memory.event_base import Frame
from legroom.observe.source.files import find_function_at, tree_of
from legroom.observe.source.syntax import is_backward_call


def differentiated_names(frame: Frame) -> frozenset[str]:
    """Return the variables in the backward call on a line. The result is empty if the function runs other backward
    passes too, because they may use the graphs that this one does not use.
    """
    tree = tree_of(frame.file)
    if tree is None:
        return frozenset()
    calls = [
        node
        for node in ast.walk(find_function_at(tree, frame.line))
        if isinstance(node, ast.Call) and is_backward_call(node)
    ]
    if len(calls) != 1 or not calls[0].lineno <= frame.line <= (calls[0].end_lineno or 0):
        return frozenset()
    return frozenset(node.id for node in ast.walk(calls[0]) if isinstance(node, ast.Name))
