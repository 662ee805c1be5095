"""Finds out whether the callers of a function in other files disable gradients."""

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from legroom.diagnose.lint.discovery import EXCLUDED_DIRECTORIES
from legroom.diagnose.lint.flow.syntax import disables_gradients
from legroom.diagnose.lint.project.modules import Module, parse_module, read_text, resolve, submodule

_MAX_FILES = 3000
"""A larger project is not searched for callers."""
_MAX_ENTRIES = 30_000
"""The same limit for files of all kinds. The folder of a script without a project may be a home directory."""
_MAX_DEPTH = 3
_ROOT_FILES = ((".git",), ("pyproject.toml", "setup.py", "setup.cfg"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_called_without_gradients(file: Path, function: str, depth: int = _MAX_DEPTH) -> bool:
    """Return True if other files call a function, and all of these calls run with gradients disabled.

    `function` is a name such as `validate`, or a method such as `Trainer.validate`.
    """
    calls = _calls(file, function)
    return bool(calls) and all(_has_no_gradients(module, node, depth) for module, node in calls)


def _calls(file: Path, function: str) -> list[tuple[Module, ast.Call]]:
    class_name, _, name = function.rpartition(".")
    files = [each for each in _project_files(file.parent) if each != file and f"{name}(" in _text(each)]
    if not class_name:
        return [each for other in files for each in _calls_in(other, file, name)]
    named = [each for other in files if class_name in _text(other) for each in _calls_in(other, None, name)]
    if named or any(f"def {name}(" in _text(other) for other in files):
        return named
    # self.env.rollout(policy): another file creates the object
    return [each for other in files for each in _calls_in(other, None, name)]


def _calls_in(other: Path, file: Path | None, name: str) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls to a function of a file, or to a method."""
    module = parse_module(other)
    for node in _nodes(other) if module is not None else ():
        if module is None or not isinstance(node, ast.Call):
            continue
        if file is None:
            if isinstance(node.func, ast.Attribute) and node.func.attr == name:
                yield module, node
        elif _refers_to(module, node.func, file, name):
            yield module, node


def _refers_to(module: Module, func: ast.expr, file: Path, name: str) -> bool:
    if isinstance(func, ast.Name):
        found = resolve(module, func.id)
    elif isinstance(func, ast.Attribute) and func.attr == name:
        source = submodule(module, ast.unparse(func.value))
        found = resolve(source, name) if source is not None else None
    else:
        return False
    return found is not None and found[0].file == file and found[1] == name


def _has_no_gradients(module: Module, node: ast.AST, depth: int) -> bool:
    parents = _parents(module.file)
    path: list[str] = []
    function: _Function | None = None
    current = node
    while current in parents:
        current = parents[current]
        if isinstance(current, (ast.With, ast.AsyncWith)) and any(
            _is_switch(item.context_expr) or _contains_switch(module, item.context_expr)
            for item in current.items
        ):
            return True
        if isinstance(current, _Function):
            if any(_is_switch(each) or _contains_switch(module, each) for each in current.decorator_list):
                return True
            function = function or current
        if isinstance(current, (_Function, ast.ClassDef)):
            path.append(current.name)
        if isinstance(current, (_Function, ast.Module)) and _are_disabled_before(module, current, node):
            return True
    if function is None:
        return False
    if depth == 0 or len(path) > 2:
        return False
    name = ".".join(reversed(path))
    inside = [
        each
        for each in _nodes(module.file)
        if isinstance(each, ast.Call) and _last_name(each.func) == function.name
    ]
    callers = [*((module, each) for each in inside), *_calls(module.file, name)]
    return bool(callers) and all(_has_no_gradients(other, each, depth - 1) for other, each in callers)


def _are_disabled_before(module: Module, scope: _Function | ast.Module, node: ast.AST) -> bool:
    """Return True if the last `torch.set_grad_enabled` statement before a node disables gradients.

    The statement may be in a function of the project, such as `setup()`.
    """
    disabled = False
    for each in _statements(scope):
        if each.lineno >= getattr(node, "lineno", 0):
            break
        name = _last_name(each.func)
        found = resolve(module, name) if isinstance(each.func, ast.Name) and name else None
        definition = found[0].definitions.get(found[1]) if found is not None else None
        switches = _statements(definition) if isinstance(definition, _Function) else [each]
        for switch in switches:
            if _last_name(switch.func) == "set_grad_enabled":
                disabled = _is_switch(switch)
    return disabled


def _is_switch(node: ast.AST) -> bool:
    """Return True for `torch.no_grad()`, `torch.inference_mode` and `torch.set_grad_enabled(False)`."""
    called = node.func if isinstance(node, ast.Call) else node
    name = _last_name(called)
    if name == "set_grad_enabled" and isinstance(node, ast.Call) and node.args:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value is False
    return disables_gradients(name)


def _contains_switch(module: Module, node: ast.expr) -> bool:
    """Return True for a context manager or decorator of the project that disables gradients."""
    owner, _, name = ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")
    source = submodule(module, owner) if owner else module
    found = resolve(source, name) if source is not None else None
    definition = found[0].definitions.get(found[1]) if found is not None else None
    return definition is not None and any(map(_is_switch, ast.walk(definition)))


def _last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _statements(scope: _Function | ast.Module) -> list[ast.Call]:
    """Return the statements of a function or file that are calls, including those in `if` and `try` statements."""
    found: list[ast.Call] = []
    pending = list(reversed(scope.body))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found.append(node.value)
        elif isinstance(node, (ast.If, ast.Try)):
            pending.extend(reversed([*node.body, *node.orelse]))
    return found


@cache
def _project_files(folder: Path) -> tuple[Path, ...]:
    """Return the Python files of the project that contains a folder, or nothing if the project is too large."""
    return next(filter(None, map(_files_in, _project_roots(folder))), ())


def _project_roots(folder: Path) -> Iterator[Path]:
    """Yield the folders that may be the root of the project: the repository, the nearest folder with a file such as
    pyproject.toml, and the folder that contains the outermost package.
    """
    folders = (folder, *folder.parents)
    for names in _ROOT_FILES:
        yield from [each for each in folders if any((each / name).exists() for name in names)][:1]
    yield next(each for each in folders if not (each / "__init__.py").exists() or each.parent == each)


@cache
def _files_in(root: Path) -> tuple[Path, ...]:
    """Return the Python files in a folder and its subfolders, or nothing if there are too many files."""
    found: list[Path] = []
    entries = 0
    for folder, folders, files in os.walk(root):
        entries += len(folders) + len(files)
        folders[:] = [
            each for each in folders if each not in EXCLUDED_DIRECTORIES and not each.startswith(".")
        ]
        found.extend(Path(folder, each) for each in sorted(files) if each.endswith(".py"))
        if len(found) > _MAX_FILES or entries > _MAX_ENTRIES:
            return ()
    return tuple(found)


def _text(file: Path) -> str:
    return read_text(file) or ""


@cache
def _nodes(file: Path) -> tuple[ast.AST, ...]:
    module = parse_module(file)
    return tuple(ast.walk(module.tree)) if module is not None else ()


@cache
def _parents(file: Path) -> dict[ast.AST, ast.AST]:
    return {child: node for node in _nodes(file) for child in ast.iter_child_nodes(node)}


CACHES = (_project_files, _files_in, _nodes, _parents)
"""The functions that remember files."""
