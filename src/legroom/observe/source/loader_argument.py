"""Finds where the batch size of a DataLoader comes from: the line of a number, or the name of a setting.

The search starts at the line that creates the loader. If the batch size is a parameter of a function, the search
continues at the line that calls the function.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from legroom.memory.event_base import Frame
from legroom.observe.source.constants import is_positive_integer
from legroom.observe.source.files import find_function_at, related_classes_at, tree_of
from legroom.observe.source.syntax import key_name, parameters_of


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of the setting, or the position of the number."""

    path: str = ""
    """The expression that reads the setting, for example `config.val.batch_size`."""
    name: str = ""
    position: tuple[str, int, int] | None = None
    """The file, line and column of the number, or None if only the name is known."""


def loader_argument(frames: Sequence[Frame]) -> Origin | None:
    """Return the origin of the batch size. `frames` are the user's lines that created the loader, innermost first."""
    called, name, position = frozenset[str](), "batch_size", 1
    default: tuple[str, ast.expr | None] = "", None
    """The default value of the parameter, and its file."""
    for frame in frames:
        tree = tree_of(frame.file)
        passed = _passed(tree, frame.line, called, name, position) if tree is not None else []
        texts = {"" if value is None else ast.unparse(value) for value in passed}
        if tree is None or len(texts) != 1 or (len(passed) > 1 and is_positive_integer(passed[0])):
            return None  # several calls on the line pass different values, or the same number twice
        uses_default = passed[0] is None
        file, value = default if uses_default else (frame.file, passed[0])
        if value is None:
            return None
        value = _source_of(value)
        if is_positive_integer(value):
            return Origin(position=(file, value.lineno, value.col_offset))
        function = find_function_at(tree, frame.line)
        parameters = _parameters(function)
        if not isinstance(value, ast.Name) or value.id not in parameters or uses_default:
            return Origin(ast.unparse(value), key_name(value))
        name, default = value.id, (frame.file, parameters[value.id])
        called = _names_of(function, frame)
        position = _position(function, name)
    return None


def _passed(
    tree: ast.Module, line: int, called: frozenset[str], name: str, position: int
) -> list[ast.expr | None]:
    """Return the value that each call on a line passes for a parameter. The value is None if the call uses the default
    value. `called` are the names of the function, or empty for a DataLoader.
    """
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    named = [
        call
        for call in calls
        if (key_name(call.func) in called if called else "DataLoader" in key_name(call.func))
    ]
    if named:
        return [_argument(call, name, position) for call in named]
    # The function may be called by another name, for example `loader_class(data, batch_size=8)`.
    return [keyword.value for call in calls for keyword in call.keywords if keyword.arg == name]


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """Return the argument of a call, or the `*args` or `**kwargs` that may contain it."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    for number, argument in enumerate(call.args):
        if number == position or isinstance(argument, ast.Starred):
            return argument
    unpacked = [keyword.value for keyword in call.keywords if keyword.arg is None]
    return ast.Starred(unpacked[0]) if unpacked else None


def _source_of(value: ast.expr) -> ast.expr:
    """Return the argument from which a call takes its result, for example `args.bs` in `max(1, int(args.bs))`."""
    while isinstance(value, ast.Call):
        function = key_name(value.func)
        arguments = value.args[1:] if function == "getattr" else value.args
        if function in ("max", "min"):
            arguments = [each for each in arguments if not isinstance(each, ast.Constant)]
        if not arguments or function == "len":
            break
        value = arguments[0]
    return value


def _names_of(function: ast.AST, frame: Frame) -> frozenset[str]:
    """Return the names by which a function is called. A constructor is called by the name of its class."""
    name = getattr(function, "name", "")
    return related_classes_at(frame.file, frame.line) | {name} if name == "__init__" else frozenset({name})


def _position(function: ast.AST, name: str) -> int:
    """Return the position of an argument in a call, or -1 for a keyword-only parameter."""
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return names.index(name) - (names[0] in ("self", "cls")) if name in names else -1


def _parameters(function: ast.AST) -> dict[str, ast.expr | None]:
    """Return the default values of the parameters of a function, by name."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    return {parameter.arg: default for parameter, default in parameters_of(function.args)}
