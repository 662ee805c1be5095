"""Finds the assignment that defines a variable, in the same file or in a module that the file imports."""

import ast
import importlib.util
import sys
from collections.abc import Iterator

from legroom.memory.event_base import Frame
from legroom.observe.source.files import FUNCTIONS, own_nodes, tree_of
from legroom.observe.source.loaded_modules import user_modules
from legroom.observe.source.syntax import pairs_of, parameters_of


def definition_of(value: ast.expr, frame: Frame) -> tuple[Frame, ast.expr] | None:
    """Return the value that is assigned to a variable (`SIZE` or `config.SIZE`), and the line of the assignment. Return
    None if the variable is assigned several times, or if it is an attribute of an object that is not a module.
    """
    tree = tree_of(frame.file)
    if tree is None:
        return None
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        return _in_module(_imported(tree, value.value.id, frame.file), value.attr)
    if not isinstance(value, ast.Name):
        return None
    for scope in _scopes(tree, frame.line):
        if isinstance(scope, FUNCTIONS) and value.id in [each.arg for each, _ in parameters_of(scope.args)]:
            return None
        if _count_assignments(scope, value.id):
            assigned = assigned_value(scope, value.id)
            name = getattr(scope, "name", "<module>")
            return None if assigned is None else (Frame(frame.file, assigned.lineno, name), assigned)
    for module, name in _import_of(tree, value.id, frame.file):
        found = _in_module(module, name)
        if found is not None:
            return found
    return None


def assigned_value(scope: ast.AST, name: str) -> ast.expr | None:
    """Return the value of the only assignment to a variable in a function or a module."""
    assigned = [
        value
        for node in own_nodes(scope)
        for target, value in _assignments(node)
        if isinstance(target, ast.Name) and target.id == name
    ]
    return assigned[0] if len(assigned) == _count_assignments(scope, name) == 1 else None


def _count_assignments(scope: ast.AST, name: str) -> int:
    """Return how many statements bind a variable, including loops, `with` blocks, unpacked tuples and `+=`."""
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in own_nodes(scope)
    )


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from pairs_of(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value


def _scopes(tree: ast.Module, line: int) -> list[ast.AST]:
    """Return the functions that contain a line, innermost first, and the module."""
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return [*sorted(functions, key=lambda node: -node.lineno), tree]


def _in_module(file: str | None, name: str) -> tuple[Frame, ast.expr] | None:
    tree = tree_of(file) if file else None
    value = assigned_value(tree, name) if tree is not None else None
    return None if value is None or file is None else (Frame(file, 0, "<module>"), value)


def _imported(tree: ast.Module, name: str, file: str) -> str | None:
    """Return the file of the module that a file imports as `name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _file_of(alias.name)
    for module, attribute in _import_of(tree, name, file, only_named=True):
        package = _name_of(module)
        if package:
            return _file_of(f"{package}.{attribute}")
    return None


def _import_of(
    tree: ast.Module, name: str, file: str, *, only_named: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the files from which a file imports `name`, and the name there."""
    package = getattr(sys.modules.get(_name_of(file)), "__package__", None) or ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == name or (alias.name == "*" and not only_named):
                try:
                    module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                except ImportError:
                    continue
                found = _file_of(module)
                if found:
                    yield found, name if alias.name == "*" else alias.name


def _file_of(module: str) -> str | None:
    return next((file for file, each in user_modules() if each.__name__ == module), None)


def _name_of(file: str | None) -> str:
    return next((each.__name__ for name, each in user_modules() if name == file), "")
