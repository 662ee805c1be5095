"""Finds where the batch size of a DataLoader comes from: the line of a number, or the name of a setting.

The search starts at the line that creates the loader. If the batch size is a parameter of a function, the search
continues at the line that calls the function.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from legroom.memory.event_base import Frame
from legroom.observe.source.constants import is_positive_integer
from legroom.observe.source.files import find_function_at, tree_of
from legroom.observe.source.syntax import key_name, parameters_of


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of the setting, or the position of the number. `file` is empty if only the name is known."""

    path: str
    """The expression that reads the setting, for example `config.val.batch_size`."""
    name: str = ""
    file: str = ""
    line: int = 0


def loader_argument(frames: Sequence[Frame]) -> Origin | None:
    """Return the origin of the batch size. `frames` are the user's lines that created the loader, innermost first."""
    called, name, position = "", "batch_size", 1
    default: tuple[str, ast.expr | None] = "", None
    """The default value of the parameter, and its file."""
    for frame in frames:
        tree = tree_of(frame.file)
        if tree is None:
            return None
        file, value = frame.file, _argument(tree, frame.line, called, name, position)
        if value is None:
            file, value = default
        while (
            isinstance(value, ast.Call) and value.args
        ):  # `int(args.batch_size)`, `config.get("batch_size", 8)`
            value = value.args[0]
        if value is not None and is_positive_integer(value):
            return Origin("", file=file, line=value.lineno)
        if not isinstance(value, ast.Name):
            return None if value is None else Origin(ast.unparse(value), key_name(value))
        function = find_function_at(tree, frame.line)
        parameters = _parameters(function)
        if value.id not in parameters:
            return Origin(value.id, value.id)
        names = list(parameters)
        name, position = value.id, names.index(value.id) - (names[0] in ("self", "cls"))
        called, default = (
            getattr(function, "name", "").replace("__init__", ""),
            (frame.file, parameters[name]),
        )
    return None


def _argument(tree: ast.Module, line: int, called: str, name: str, position: int) -> ast.expr | None:
    """Return the argument `name` of the call on a line. `called` is the name of the function, or "" if unknown."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or 0)
        and (not called or called == key_name(node.func))
    ]
    for call in calls:
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
    for call in calls:
        is_loader = bool(called) or "DataLoader" in key_name(call.func) or name != "batch_size"
        if (
            is_loader
            and len(call.args) > position
            and not any(isinstance(each, ast.Starred) for each in call.args)
        ):
            return call.args[position]
    return None


def _parameters(function: ast.AST) -> dict[str, ast.expr | None]:
    """Return the default values of the parameters of a function, by name."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    return {parameter.arg: default for parameter, default in parameters_of(function.args)}
