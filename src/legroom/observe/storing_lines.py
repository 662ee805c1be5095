"""Which line puts things where they stay: read off the source, for a variable or attribute known to grow.

The objects say who keeps the memory, not who put it there. The source does: the statements that store into that
name are few, mostly one. It also says what the objects cannot: that a container is emptied again or limited in length
(then its growth is no leak), or that a cache looks before it stores (then growth may only be warming up).
"""

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from legroom.observe.attribution import is_user_file

_PUTS = {
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put", "put_nowait",
    "push", "write", "store", "register", "record", "log", "heappush", "insort", "insort_left", "insort_right",
}  # fmt: skip
_TAKES = {
    "pop",
    "popleft",
    "popitem",
    "clear",
    "remove",
    "discard",
    "get_nowait",
    "heappop",
    "heapreplace",
    "heappushpop",
}
_JOINS = {"cat", "concat", "concatenate", "hstack", "vstack", "stack", "pad", "append", "add"}
_FEEDS = (
    "add",
    "append",
    "register",
    "push",
    "put",
    "store",
    "log",
    "record",
    "update",
    "save",
    "collect",
    "keep",
)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MOST_SOURCE = 2_000_000


class Storing(NamedTuple):
    """A statement that stores into a name."""

    file: str
    line: int
    function: str
    feeds_itself: bool
    """The name stands on both sides: `total = total + loss`, `total += loss`, `h = cell(x, h)`."""
    adds: bool
    """... with a sum: `total = total + loss`, `total += loss`."""
    joins: bool
    """... with a function that makes it larger: `torch.cat([history, out])`."""
    stores_number: bool
    """What is stored is plainly a number or text: `losses.append(loss.item())`."""
    in_loop: bool
    replaces: bool = False
    """A plain assignment of something else: what was there before is gone."""


class Stored(NamedTuple):
    """All that the source says of a name."""

    statements: tuple[Storing, ...]
    shrinks: bool
    """Something takes things out of it or limits its length."""
    resets: bool
    """It is made anew within a loop: once in an epoch, mostly."""
    looks_first: bool
    """Something asks whether a key is in it: a cache."""

    @property
    def is_made_anew(self) -> bool:
        """Whether all that the source does is to assign something else with every turn."""
        return bool(self.statements) and all(each.replaces and each.in_loop for each in self.statements)

    @property
    def best(self) -> Storing | None:
        """The statement to name: one that adds rather than replaces, stores no plain number, within a loop or a function, else the first."""
        return min(
            self.statements,
            key=lambda each: (
                each.stores_number,
                each.replaces,
                not (each.feeds_itself or each.in_loop or each.function != ""),
                each.line,
            ),
            default=None,
        )


NOTHING = Stored((), shrinks=False, resets=False, looks_first=False)


def find_storing(
    name: str, *, is_attribute: bool, file: str | None, function: str = "", line: int = 0
) -> Stored:
    """Search the function that has the variable, else the whole file, else every file of the user's."""
    if not name.isidentifier():
        return NOTHING
    for files in (_first(file), _user_files()):
        searched = [
            _search(each, name, is_attribute, function if each == file else "", line) for each in files
        ]
        found = [each for each in searched if each is not None]
        statements = tuple(statement for each in found for statement in each.statements)
        if statements:
            return Stored(
                statements,
                any(each.shrinks for each in found),
                any(each.resets for each in found),
                any(each.looks_first for each in found),
            )
        if not is_attribute and file is not None and not file.startswith("<"):
            break
    return NOTHING


def find_feeding(root: str, file: str | None, function: str, line: int) -> Stored:
    """Where no statement names the growing thing itself (it lies inside a library's object): the calls of methods that
    hand something to that object, as in `optimizer.add_param_group(...)`."""
    tree = _tree(file) if file is not None and root.isidentifier() else None
    if tree is None or file is None:
        return NOTHING
    reader = _Reader(file, root, False, feeding=True)
    reader.read((_function(tree, function, line, root) if function else None) or tree)
    return Stored(tuple(reader.statements), False, False, False)


def is_limited_at(file: str, line: int) -> bool:
    """Whether the container that a line stores into, by whatever name it has there, is emptied or limited in length."""
    tree = _tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        if getattr(node, "lineno", 0) != line:
            continue
        owners: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PUTS:
            owners = [node.func.value]
        elif isinstance(node, ast.Assign):
            owners = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        for owner in owners:
            while isinstance(owner, ast.Subscript):
                owner = owner.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            found = find_storing(
                name, is_attribute=isinstance(owner, ast.Attribute), file=file, function=_around(tree, line), line=line
            )  # fmt: skip
            if found.shrinks:
                return True
    return False


def _around(tree: ast.Module | None, line: int) -> str:
    """The innermost function around a line."""
    functions = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(functions, key=lambda node: node.lineno).name if functions else ""


def is_called_in_loop(file: str, line: int) -> bool:
    """Whether the statement on this line stands within a loop of its function."""
    tree = _tree(file)
    return tree is not None and any(
        isinstance(node, _LOOPS) and node.lineno < line <= (node.end_lineno or 0) for node in ast.walk(tree)
    )


def _first(file: str | None) -> list[str]:
    return [file] if file is not None else []


def _user_files() -> list[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [file for file in files if isinstance(file, str) and file.endswith(".py") and is_user_file(file)]


def _search(file: str, name: str, is_attribute: bool, function: str, line: int) -> Stored | None:
    tree = _tree(file)
    if tree is None:
        return None
    scope: ast.AST = tree
    if function and not is_attribute:
        scope = _function(tree, function, line, name) or tree
    reader = _Reader(file, name, is_attribute)
    reader.read(scope)
    return Stored(tuple(reader.statements), reader.shrinks, reader.resets, reader.looks_first)


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        path = Path(file)
        if not path.is_file():  # a notebook's cell
            return ast.parse("".join(linecache.getlines(file)))
        if path.stat().st_size > _MOST_SOURCE:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _function(tree: ast.Module, name: str, line: int, variable: str) -> ast.AST | None:
    """The function of that name around `line`; for a variable that it takes from a function around it, that one."""
    within: list[ast.AST] = []

    def descend(node: ast.AST, above: list[ast.AST]) -> None:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, _FUNCTIONS)
            if (
                isinstance(child, _FUNCTIONS)
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


def _binds(function: ast.AST, variable: str) -> bool:
    for node in _own_nodes(function):
        if isinstance(node, ast.Name) and node.id == variable and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.arg) and node.arg == variable:
            return True
    return False


def _assigns_its_own(function: ast.AST, variable: str) -> bool:
    """Whether a function assigns to a variable of that name that is another than the one outside it."""
    own = list(_own_nodes(function))
    declared = (node.names for node in own if isinstance(node, ast.Global | ast.Nonlocal))
    return not any(variable in names for names in declared) and any(
        isinstance(node, ast.Name) and node.id == variable and isinstance(node.ctx, ast.Store) for node in own
    )


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(node))


class _Reader:
    """Walks a scope once and notes what is done with one name."""

    def __init__(self, file: str, name: str, is_attribute: bool, *, feeding: bool = False) -> None:
        """`feeding`: any method whose name says that it takes something in counts."""
        self.file = file
        self._feeding = feeding
        self.statements: list[Storing] = []
        self.shrinks = False
        self.resets = False
        self.looks_first = False
        self._name = name
        self._is_attribute = is_attribute

    def read(self, scope: ast.AST) -> None:
        self._descend(scope, getattr(scope, "name", "") if isinstance(scope, _FUNCTIONS) else "", 0)

    def _descend(self, node: ast.AST, function: str, loops: int) -> None:
        for child in ast.iter_child_nodes(node):
            self._look(child, function, loops)
            before = len(self.statements)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                self._descend(child, child.name, 0)
                if not self._is_attribute and _assigns_its_own(child, self._name):
                    del self.statements[before:]  # stored into a variable of that function, by the same name
            else:
                self._descend(child, function, loops + isinstance(child, _LOOPS))

    def _look(self, node: ast.AST, function: str, loops: int) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None:
                self._assignment(node, targets, node.value, function, loops)
        elif isinstance(node, ast.AugAssign):
            if self._is(node.target) or self._is_item(node.target):
                self._store(node, [node.value], function, loops, feeds_itself=True, adds=True)
        elif isinstance(node, ast.Call):
            self._call(node, function, loops)
        elif isinstance(node, ast.Delete):
            self.shrinks |= any(self._is_item(target) or self._is(target) for target in node.targets)
        elif isinstance(node, ast.Compare):
            self._comparison(node)

    def _assignment(
        self, node: ast.stmt, targets: list[ast.expr], value: ast.expr, function: str, loops: int
    ) -> None:
        paired = [pair for target in targets for pair in _paired(target, value)]
        if len(paired) > 1:  # self.losses, self.seen = [], []
            for target, part in paired:
                self._assignment(node, [target], part, function, loops)
            return
        flat = [each for target in targets for each in _flat(target)]
        if any(self._is_item(target) for target in flat):
            sliced = any(isinstance(t, ast.Subscript) and isinstance(t.slice, ast.Slice) for t in flat)
            if sliced:
                self.shrinks = True  # `buffer[:] = ...` makes it anew
            inner = [each for each in ast.walk(value) if isinstance(each, ast.expr)]
            feeds_itself = any(map(self._is, inner))
            joins = feeds_itself and any(_called(each) in _JOINS for each in inner)
            self._store(node, [value], function, loops, feeds_itself=feeds_itself, joins=joins)
        elif any(self._is(target) for target in flat):
            if any(self._is(inner) for inner in ast.walk(value) if isinstance(inner, ast.expr)):
                if self._is_cut(value):
                    self.shrinks = True
                else:
                    joins = any(_called(inner) in _JOINS for inner in ast.walk(value))
                    adds = any(isinstance(inner, ast.BinOp) for inner in (value, *_branches(value)))
                    self._store(node, [value], function, loops, feeds_itself=True, adds=adds, joins=joins)
            elif loops and _is_empty(value):
                self.resets = True
            elif not _is_empty(value):
                self._store(node, [value], function, loops, replaces=True)

    def _call(self, node: ast.Call, function: str, loops: int) -> None:
        called = _called(node)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_name = owner is not None and (self._is(owner) or self._is_item(owner))
        first_is_name = bool(node.args) and self._is(node.args[0])
        if called in _TAKES and (of_name or first_is_name):
            self.shrinks = True
        elif called in _PUTS and (of_name or first_is_name):
            self._store(node, node.args[1:] if first_is_name and not of_name else node.args, function, loops)
        elif self._feeding and of_name and node.args and called.startswith(_FEEDS):
            self._store(node, node.args, function, loops)
        elif called == "get" and of_name:
            self.looks_first = True

    def _comparison(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops) and any(
            map(self._is, sides)
        ):
            self.looks_first = True
        measured = any(
            isinstance(side, ast.Call) and _called(side) == "len" and side.args and self._is(side.args[0])
            for side in sides
        )
        if measured and any(isinstance(op, ast.Gt | ast.GtE | ast.Lt | ast.LtE | ast.Eq) for op in node.ops):
            self.shrinks = True

    def _store(
        self,
        node: ast.AST,
        values: list[ast.expr],
        function: str,
        loops: int,
        *,
        feeds_itself: bool = False,
        adds: bool = False,
        joins: bool = False,
        replaces: bool = False,
    ) -> None:
        number = bool(values) and all(_is_number(value) for value in values)
        line = getattr(node, "lineno", 0)
        self.statements.append(
            Storing(self.file, line, function, feeds_itself, adds, joins, number, loops > 0, replaces)
        )

    def _is(self, node: ast.AST) -> bool:
        if self._is_attribute:
            return isinstance(node, ast.Attribute) and node.attr == self._name
        if isinstance(node, ast.Starred):
            return self._is(node.value)
        return isinstance(node, ast.Name) and node.id == self._name

    def _is_item(self, node: ast.AST) -> bool:
        """`name[...]`, and deeper."""
        return isinstance(node, ast.Subscript) and (self._is(node.value) or self._is_item(node.value))

    def _is_cut(self, value: ast.expr) -> bool:
        """Whether what replaces the name is limited: a slice with an end counted from somewhere, or detached."""
        if isinstance(value, ast.Subscript):
            parts = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
            return any(isinstance(part, ast.Slice) for part in parts)
        return any(
            isinstance(inner, ast.Subscript)
            and self._is(inner.value)
            and any(
                isinstance(part, ast.Slice)
                for part in (inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice])
            )
            for inner in ast.walk(value)
        )


def _branches(value: ast.expr) -> list[ast.expr]:
    """`a if c else b` → a, b."""
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else []


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`a, b = x, y` → (a, x), (b, y)."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for each, part in zip(target.elts, value.elts, strict=True):
            yield from _paired(each, part)
    else:
        yield target, value


def _flat(target: ast.expr) -> Iterable[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _flat(element)
    else:
        yield target


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_empty(value: ast.expr) -> bool:
    """`[]`, `{}`, `list()`, `deque(maxlen=3)`, `0`, `None`: where something starts anew."""
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.Call):
        return not value.args and _called(value) in (
            "list",
            "dict",
            "set",
            "deque",
            "tuple",
            "OrderedDict",
            "Counter",
        )
    return isinstance(value, ast.Constant)


_NUMBERS = {"item", "float", "int", "len", "str", "tolist", "numpy", "format", "perf_counter", "time"}


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant | ast.JoinedStr) or _called(value) in _NUMBERS
