"""The user's source, parsed: files that were loaded, cells of notebooks. What cannot be read says nothing."""

import ast
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from legroom.observe.dispatch.attribution import is_user_file

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.While, ast.AsyncFor)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MOST_SOURCE = 2_000_000


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    try:
        path = Path(file)
        if not path.is_file():  # a notebook's cell
            return ast.parse("".join(linecache.getlines(file)))
        if path.stat().st_size > _MOST_SOURCE:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def user_files() -> list[str]:
    """The source files of the user's that are loaded now."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [file for file in files if isinstance(file, str) and file.endswith(".py") and is_user_file(file)]


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function itself, not in functions and classes within it."""
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(node))


def function_around(tree: ast.Module, name: str, line: int, variable: str) -> ast.AST | None:
    """The function of that name around `line`; for a variable that it takes from a function around it, that one."""
    within: list[ast.AST] = []

    def descend(node: ast.AST, above: list[ast.AST]) -> None:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, FUNCTIONS)
            if (
                isinstance(child, FUNCTIONS)
                and getattr(child, "name", "<lambda>") == name
                and (not line or child.lineno - 20 <= line <= (child.end_lineno or line))
            ):
                within[:] = [*above, child]
            descend(child, [*above, child] if is_function else above)

    descend(tree, [])
    for node in reversed(within):
        if _binds(node, variable):
            return node
    return within[0] if within else None


@lru_cache(maxsize=256)
def functions_in(file: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and methods of a file by name; of several, the first."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, node)
    return found


def name_around(file: str, line: int) -> str:
    """The innermost function around a line; "" outside all."""
    tree = tree_of(file)
    functions = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(functions, key=lambda node: node.lineno).name if functions else ""


def family_around(file: str, line: int) -> frozenset[str]:
    """The class around a line, with those of the file that it derives from and that derive from it; empty outside all."""
    tree = tree_of(file)
    kinds = [node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.ClassDef)]
    within = [node for node in kinds if node.lineno <= line <= (node.end_lineno or 0)]
    family = {max(within, key=lambda node: node.lineno).name} if within else set()
    grown = bool(family)
    while grown:
        grown = False
        for node in kinds:
            related = {node.name, *(each.id for each in node.bases if isinstance(each, ast.Name))}
            if related & family and not related <= family:
                family |= related
                grown = True
    return frozenset(family)


def line_of_function(file: str, name: str, first: int) -> int:
    """Where `def name` stands, of a function whose first line (with decorators) is known."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            lines = [node.lineno, *(each.lineno for each in node.decorator_list)]
            if min(lines) == first:
                return node.lineno
    return first


def is_in_loop(file: str, line: int, *, itself: bool = True) -> bool:
    """Whether the statement on this line stands within a loop of its function, or (`itself`) runs through one itself."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, LOOPS) and node.lineno < line <= (node.end_lineno or 0):
            return True
        if itself and isinstance(node, COMPREHENSIONS) and node.lineno <= line <= (node.end_lineno or 0):
            return True
    return False


def built_at(file: str, line: int) -> str | None:
    """The name that what a statement builds piece by piece will have (`losses = [step(x) for x in data]`, `list(map(...))`): until
    it is done, no name leads there. "" where the statement gives it none, None where it builds nothing."""
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
