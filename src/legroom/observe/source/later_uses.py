"""Determines whether a program still needs a local variable after a line."""

import ast
from collections.abc import Iterator

from legroom.memory.event_base import Frame
from legroom.observe.source.files import FUNCTIONS, LOOPS, tree_of


def is_used_later(frame: Frame, name: str) -> bool:
    """Return whether a variable is still needed: the running statement of `frame` reads the variable, or later code
    reads it before assigning another value.

    Only the order of the lines is considered, not the conditions under which they run. In a loop, the next iteration is
    considered as well. Attributes are always treated as needed. If the source code cannot be read, no variable is
    treated as needed.
    """
    tree = tree_of(frame.file)
    if tree is None or not name.isidentifier():
        return not name.isidentifier()
    around = [node for node in ast.walk(tree) if _contains(node, frame.line)]
    functions = [node for node in around if isinstance(node, FUNCTIONS)]
    scope: ast.AST = max(functions, key=lambda node: node.lineno) if functions else tree
    uses = sorted(_uses(scope, name))
    statements = [node for node in around if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    begin = max((node.lineno for node in statements), default=frame.line)
    end = max((node.end_lineno or 0 for node in statements), default=frame.line)
    if any(is_read and begin <= line <= end for line, _, is_read in uses):
        return True
    after = next((is_read for line, _, is_read in uses if line > end), False)
    start = min((node.lineno for node in around if isinstance(node, LOOPS)), default=None)
    if after or start is None or (scope is not tree and start < getattr(scope, "lineno", 0)):
        return after
    return next((is_read for line, _, is_read in uses if line >= start), False)


def assigned_names(frame: Frame) -> set[str]:
    tree = tree_of(frame.file)
    if tree is None:
        return set()
    assignments = [
        node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _contains(node, frame.line)
    ]
    targets = (node for each in assignments for target in each.targets for node in ast.walk(target))
    return {node.id for node in targets if isinstance(node, ast.Name)}


def _uses(scope: ast.AST, name: str) -> Iterator[tuple[int, int, bool]]:
    """For each use of a name, yield the line, the order of the use within the line, and whether the use reads the
    value."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name:
            is_read = isinstance(node.ctx, ast.Load)
            # The right-hand side of an assignment is evaluated first.
            yield node.lineno, 0 if is_read else 1, is_read
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            yield node.lineno, 0, True


def _contains(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)
