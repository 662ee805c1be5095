"""Finds an evaluation that the script contains, but that the trace did not reach.

A trace ends after a few training steps. If the batches come from a DataLoader, the trace also covers the first
validation batch. Other evaluations are not traced: an evaluation without a DataLoader, or one that runs only every few
epochs. The evaluations are found in the source of the script and of its modules. The lines that ran are recorded.
"""

import ast
import builtins
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from legroom.memory.events import Alloc, Event
from legroom.observe.source.files import matches, parse, user_files
from legroom.observe.source.syntax import is_main_block
from legroom.observe.source.user_files import is_user_file

_CONTEXTS = ("no_grad", "inference_mode")
_EVALUATES = re.compile(
    r"_*(eval|evaluate|evaluation|val|valid|validate|validation|test|testing)"
    r"(_(all|batch|data|epoch|iter|loop|loss|model|net|network|one_epoch|set|step))?"
)
_TRAINING_FLAGS = re.compile(r"(is_?|do_?)?(train|training)(_mode)?")
"""Parameters that show whether a function trains or evaluates, if the same function does both."""
_LIBRARIES = ("torch", "numpy")
_MARKS = re.compile(
    rb"(?<![a-zA-Z])(?:no_grad|inference_mode|backward|eval|evaluate|evaluation|val|valid|validate|validation|test|testing)"
    rb"(?![a-z])"
)
"""The parts of the names in an evaluation, such as `val` in `val_loader` but not in `value`, and in a function that also
trains. A file without them is not parsed."""


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The lines of an evaluation in the source."""

    file: str
    first: int
    last: int
    is_certain: bool = False
    """Whether a name shows that the code is an evaluation. Code under `no_grad` may also generate samples."""


@dataclass(slots=True)
class ExecutedLines:
    """The lines of the user's code that entered `torch.no_grad()` or called `eval()` on a model."""

    lines: set[tuple[str, int]] = field(default_factory=set)

    def record(self) -> None:
        """Record the lines from now on. The recording never ends, because the process exits after the trace."""
        for context in (torch.no_grad, torch.inference_mode):
            context.__enter__ = self._recorded(context.__enter__)  # type: ignore[method-assign]
        torch.nn.Module.eval = self._recorded(torch.nn.Module.eval)  # type: ignore[method-assign]

    def _recorded(self, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            if is_user_file(caller.f_code.co_filename):
                self.lines.add((os.path.abspath(caller.f_code.co_filename), caller.f_lineno))
            return function(*args, **kwargs)

        return call

    def with_allocations(self, events: Iterable[Event]) -> set[tuple[str, int]]:
        frames = {event.frame for event in events if type(event) is Alloc and event.frame is not None}
        return self.lines | {(os.path.abspath(frame.file), frame.line) for frame in frames}


def untraced_evaluation(executed: set[tuple[str, int]], files: Iterable[str] | None = None) -> str:
    """Return the location of an evaluation that did not run, for example `train.py:89`, or "" if there is none.

    `executed` contains the lines that ran. `files` are the files to search, and the first of them is the script.
    """
    if files is None:
        main = os.path.abspath(str(getattr(sys.modules.get("__main__"), "__file__", None) or ""))
        files = sorted({os.path.abspath(file) for file in user_files()}, key=lambda file: file != main)
    files = list(files)
    # Most evaluations are in the script itself, and parsing all files of a large project takes seconds.
    return _first_untraced(files[:1], executed) or _first_untraced(files, executed)


def _first_untraced(files: list[str], executed: set[tuple[str, int]]) -> str:
    def has_run(found: _Evaluation) -> bool:
        return any(path == found.file and found.first <= line <= found.last for path, line in executed)

    trees: dict[str, ast.Module] = {}
    for number, file in enumerate(files):
        tree = parse(file) if matches(file, _MARKS) else None
        if tree is not None:
            trees[file] = _without_main(tree) if number else tree
    functions: dict[str, list[_Evaluation]] = {}
    shared = _functions_that_train(trees.values())
    for file, tree in trees.items():
        imported = _imported(tree)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and _EVALUATES.fullmatch(node.name)
                and _calls_model(node, imported)
            ):
                functions.setdefault(node.name, []).append(_span(file, node, is_certain=True))
    # A call may refer to any function of this name. If one of them ran, the call is assumed to refer to it.
    functions = {name: found for name, found in functions.items() if not any(map(has_run, found))}
    for file, tree in trees.items():
        missed = [found for found in _evaluations(file, tree, functions, shared) if not has_run(found)]
        if missed:
            first = min(missed, key=lambda each: (not each.is_certain, each.file != file, each.first))
            return f"{os.path.basename(first.file)}:{first.first}"
    return ""


def _without_main(tree: ast.Module) -> ast.Module:
    """Remove the code under `if __name__ == "__main__":` from an imported module, because it does not run."""
    body = [each for node in tree.body for each in (node.orelse if is_main_block(node) else [node])]
    return ast.Module(body, tree.type_ignores)


def _evaluations(
    file: str,
    tree: ast.Module,
    functions: dict[str, list[_Evaluation]],
    shared: dict[str, ast.FunctionDef],
) -> Iterator[_Evaluation]:
    imported = _imported(tree)
    parts = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (node.name == "forward" or node.name.startswith("__"))
        for inner in ast.walk(node)
        if isinstance(inner, ast.With)
    }
    """The blocks in the methods of models and data sets. These methods are parts of a training step."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            is_context = any(_is_context(item.context_expr) for item in node.items)
            if is_context and id(node) not in parts and _calls_model(node, imported):
                yield _span(file, node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(map(_is_context, node.decorator_list)) and _calls_model(node, imported):
                yield _span(file, node)
        elif isinstance(node, ast.Call):
            name = _name(node.func)
            if isinstance(node.func, ast.Attribute) and name == "eval" and not (node.args or node.keywords):
                yield _span(file, node, is_certain=True)
            elif _EVALUATES.fullmatch(name):
                yield from functions.get(name, ())
            elif name in shared and _turns_training_off(node, shared[name]):
                yield _span(file, node, is_certain=True)


def _functions_that_train(trees: Iterable[ast.Module]) -> dict[str, ast.FunctionDef]:
    """Return the functions that run a backward pass and have a parameter that turns it off, by name."""
    return {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(_TRAINING_FLAGS.fullmatch(each.arg) for each in (*node.args.args, *node.args.kwonlyargs))
        and any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in ast.walk(node))
    }


def _turns_training_off(call: ast.Call, function: ast.FunctionDef) -> bool:
    names = [each.arg for each in function.args.args]
    if names[:1] == ["self"]:
        names = names[1:]
    passed = [*zip(names, call.args, strict=False), *((each.arg or "", each.value) for each in call.keywords)]
    return any(
        _TRAINING_FLAGS.fullmatch(name) and isinstance(value, ast.Constant) and value.value is False
        for name, value in passed
    )


def _calls_model(node: ast.AST, imported: set[str]) -> bool:
    """Return whether the code contains a call that may be a call of a model, and not only calls of built-in functions,
    of libraries, and of methods of tensors. For example, an update of averaged weights is not an evaluation.
    """
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        function = call.func
        if isinstance(function, ast.Name):
            if not hasattr(builtins, function.id) and function.id not in imported:
                return True
        elif isinstance(function, ast.Attribute):
            root: ast.expr = function
            while isinstance(root, ast.Attribute):
                root = root.value
            is_library = isinstance(root, ast.Name) and root.id in imported
            is_method = any(
                hasattr(each, function.attr) for each in (torch.Tensor, torch.nn.Module, str, dict, list)
            )
            if not is_library and (not is_method or function.attr == "forward"):
                return True
    return False


def _imported(tree: ast.Module) -> set[str]:
    """Return the names of imported modules, and of everything that is imported from torch and numpy."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _LIBRARIES:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _is_context(node: ast.expr) -> bool:
    return _name(node.func if isinstance(node, ast.Call) else node) in _CONTEXTS


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _span(file: str, node: ast.stmt | ast.expr, *, is_certain: bool = False) -> _Evaluation:
    return _Evaluation(file, node.lineno, node.end_lineno or node.lineno, is_certain)
