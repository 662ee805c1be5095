"""Determines from the source code whether a line loads the whole input of a program, instead of one batch."""

import ast
from collections.abc import Iterator

from legroom.memory.event_base import Frame
from legroom.observe.source.files import COMPREHENSIONS, FUNCTIONS, LOOPS, tree_of

_FACTORIES = {
    "arange", "empty", "full", "linspace", "normal", "ones", "rand", "randint", "randn", "randperm", "zeros",
}  # fmt: skip
_MAX_CALLERS = 5


def is_loaded_once(frame: Frame) -> bool:
    """Return whether a line runs once, and the size of its data comes from a file instead of the source code.

    A line in a loop may create one batch per iteration. A size in the source code, such as `torch.randn(64, 784)` or
    `data[:64]`, may be a batch size that the user can reduce. If the source code cannot be read, or a caller of the
    function is unknown, return False.
    """
    tree = tree_of(frame.file)
    if tree is None:
        return False
    statements = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _contains(node, frame.line)
    ]
    own = [node for node in statements if not hasattr(node, "body")]
    return bool(own) and _runs_once(tree, frame.line) and not _has_size_in_source(tree, own[-1])


def _runs_once(tree: ast.Module, line: int, depth: int = 0) -> bool:
    around = [node for node in ast.walk(tree) if _contains(node, line)]
    if depth > _MAX_CALLERS or any(
        isinstance(node, (*LOOPS, *COMPREHENSIONS, ast.Lambda)) for node in around
    ):
        return False
    functions = [node for node in around if isinstance(node, FUNCTIONS)]
    if not functions:
        return True
    name = getattr(max(functions, key=lambda node: node.lineno), "name", "")
    if name == "__init__":
        classes = [node for node in around if isinstance(node, ast.ClassDef)]
        name = max(classes, key=lambda node: node.lineno).name if classes else name
    calls = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == name]
    return bool(calls) and all(_runs_once(tree, call, depth + 1) for call in calls)


def _has_size_in_source(tree: ast.Module, statement: ast.stmt) -> bool:
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for node in (statement, *_assignments(tree, names)):
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and _called(part) in _FACTORIES:
                return True
            if isinstance(part, ast.Slice) and any(
                isinstance(end, ast.Constant) for end in (part.lower, part.upper)
            ):
                return True
    return False


def _assignments(tree: ast.Module, names: set[str]) -> Iterator[ast.Assign]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = {
                each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)
            }
            if targets & names:
                yield node


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _contains(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)
