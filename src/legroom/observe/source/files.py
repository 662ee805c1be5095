"""Parses the user's source: loaded files and notebook cells. Files that cannot be read are skipped."""

import ast
import io
import linecache
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from legroom.observe.source.loaded_modules import user_modules

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.While, ast.AsyncFor)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MAX_SOURCE_BYTES = 2_000_000


@lru_cache(maxsize=16)
def tree_of(file: str) -> ast.Module | None:
    """Return the parsed source of a file, or None if the file has no source. Only a few trees are cached, because their
    nodes slow down every heap scan."""
    return parse(file)


def parse(file: str) -> ast.Module | None:
    """Parse a file without caching the tree. The caller caches the information that it needs."""
    source = _source(file)
    try:
        return ast.parse(source) if source else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def contains(file: str, name: str) -> bool:
    # This check is much faster than parsing the file.
    return name.encode() in _source(file)


def matches(file: str, pattern: re.Pattern[bytes]) -> bool:
    return pattern.search(_source(file)) is not None


def _source(file: str) -> bytes:
    try:
        path = Path(file)
        if not path.is_file():  # a notebook cell
            return "".join(linecache.getlines(file)).encode()
        return b"" if path.stat().st_size > _MAX_SOURCE_BYTES else path.read_bytes()
    except (OSError, ValueError):
        return b""


def split_lines(source: str) -> list[str]:
    """Split source code into lines with their line endings. The lines have the same numbers as in a syntax tree and in
    an editor. In contrast, `str.splitlines` also splits at form feeds and at Unicode separators.
    """
    return io.StringIO(source, newline="").readlines()


def user_files() -> list[str]:
    return [file for file, _ in user_modules() if file.endswith(".py")]


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, except those inside nested functions and classes."""
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(node))


def find_function(tree: ast.Module, name: str, line: int, variable: str) -> ast.AST | None:
    """Return the function with this name that contains `line`. If `variable` is a local variable of an enclosing
    function, return the enclosing function.
    """
    within: list[ast.AST] = []

    def descend(node: ast.AST, above: list[ast.AST]) -> None:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, FUNCTIONS)
            if (
                isinstance(child, FUNCTIONS)
                and getattr(child, "name", "<lambda>") == name
                and (not line or child.lineno - 20 <= line <= (child.end_lineno or line))
                and not (line and within and child.lineno > line)  # another function of the same name follows
            ):
                within[:] = [*above, child]
            descend(child, [*above, child] if is_function else above)

    descend(tree, [])
    for node in reversed(within):
        if _binds(node, variable):
            return node
    return within[0] if within else None


@lru_cache(maxsize=16)
def functions_in(file: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return a dict that maps names to the functions and methods of a file. If several functions have the same name,
    the dict contains the first one.
    """
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, node)
    return found


def function_at(file: str, line: int) -> str:
    """Return the name of the innermost function that contains a line, or "" outside any function."""
    tree = tree_of(file)
    return getattr(find_function_at(tree, line), "name", "") if tree is not None else ""


def find_function_at(tree: ast.Module, line: int) -> ast.AST:
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(functions, key=lambda node: node.lineno, default=tree)


def related_classes_at(file: str, line: int) -> frozenset[str]:
    """Return the name of the class that contains a line, and the names of its base classes and subclasses in the file.
    The result is empty outside any class.
    """
    tree = tree_of(file)
    classes = [
        node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.ClassDef)
    ]
    within = [node for node in classes if node.lineno <= line <= (node.end_lineno or 0)]
    found = {max(within, key=lambda node: node.lineno).name} if within else set()
    grown = bool(found)
    while grown:
        grown = False
        for node in classes:
            related = {node.name, *(each.id for each in node.bases if isinstance(each, ast.Name))}
            if related & found and not related <= found:
                found |= related
                grown = True
    return frozenset(found)


def line_of_cache(file: str, name: str, first: int) -> int:
    """Return the line of the decorator that caches a function, or the line of `def name` if no decorator caches it.
    `first` is the first line of the function, including decorators.
    """
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            lines = [node.lineno, *(each.lineno for each in node.decorator_list)]
            if min(lines) == first:
                caches = (each.lineno for each in node.decorator_list if "cache" in ast.dump(each))
                return next(caches, node.lineno)
    return first


def innermost_loop(tree: ast.Module, line: int) -> ast.For | ast.While | ast.AsyncFor | None:
    """Return the innermost loop around a line, including the lines of the loop itself."""
    found = None
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, LOOPS):
            found = node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, name, ())
            stack += (
                (each for each in children if _contains(each, line)) if isinstance(children, list) else ()
            )
    return found


def _contains(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)  # a `case` block has no line
    return first is None or first <= line <= (getattr(node, "end_lineno", None) or 0)


def is_in_loop(file: str, line: int, *, itself: bool = True) -> bool:
    """Return whether the statement on this line is in a loop. With `itself`, also return True if the statement contains
    a comprehension.
    """
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, LOOPS) and node.lineno < line <= (node.end_lineno or 0):
            return True
        if itself and isinstance(node, COMPREHENSIONS) and node.lineno <= line <= (node.end_lineno or 0):
            return True
    return False


def calls_in_loop(name: str, files: Iterable[str]) -> bool:
    for file in files:
        tree = tree_of(file) if contains(file, name.rpartition(".")[2]) else None
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, LOOPS) and any(
                isinstance(each, ast.Call) and ast.unparse(each.func) == name for each in ast.walk(node)
            ):
                return True
    return False


def clears_cache(function: str, files: Iterable[str]) -> bool:
    """Return whether a loop or a function in one of these files calls `function.cache_clear()`."""
    for file in files:
        tree = tree_of(file) if contains(file, "cache_clear") else None
        for scope in ast.walk(tree) if tree is not None else ():
            if not isinstance(scope, (*LOOPS, *FUNCTIONS)):
                continue
            for node in ast.walk(scope):
                if isinstance(node, ast.Attribute) and node.attr == "cache_clear":
                    owner = node.value
                    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                    if name == function:
                        return True
    return False


def built_at(file: str, line: int) -> str | None:
    """Return the variable to which the statement on this line assigns a new container, as in `losses = [step(x) for x
    in data]`. While the statement runs, the variable does not reference the container yet. The result is "" if the
    statement assigns no variable, and None if it creates no container.
    """
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.stmt) or isinstance(
            node, (*FUNCTIONS, *LOOPS, ast.ClassDef, ast.If, ast.With, ast.Try)
        ):
            continue
        if node.lineno <= line <= (node.end_lineno or 0) and any(map(_builds, ast.walk(node))):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            return target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
    return None


def _builds(node: ast.AST) -> bool:
    if isinstance(node, COMPREHENSIONS):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple", "dict", "set", "sorted")  # fmt: skip


def _binds(function: ast.AST, variable: str) -> bool:
    for node in own_nodes(function):
        if isinstance(node, ast.Name) and node.id == variable and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.arg) and node.arg == variable:
            return True
    return False
